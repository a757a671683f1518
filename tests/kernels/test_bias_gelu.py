"""bias_gelu against torch's GELU: output, gradients, odd sizes, bad input."""

import pytest
import torch
import torch.nn.functional as F

from bert_mlperf.kernels.bias_gelu import OPERATIONS
from bert_mlperf.kernels.unsupported import Unsupported
from tests.kernels.acceptance import check_kernel
from tests.kernels.inputs import FAST, FP16, FP32, IMPLEMENTATIONS, values

GELU = OPERATIONS["bias_gelu"]
SIZES = [(1, 64), (3, 96), (17, 1024), (1023, 130), (130, 33)]


def of_torch(x, bias):
    return F.gelu(x + bias, approximate="tanh")


@pytest.mark.parametrize("rows, columns", SIZES)
@pytest.mark.parametrize("name, dtype", IMPLEMENTATIONS)
def test_output_and_gradients(name, dtype, rows, columns):
    inputs = [values(rows, columns, dtype=dtype, scale=2), values(columns, dtype=dtype, seed=1)]
    check_kernel(GELU[name], of_torch, inputs, values(rows, columns, dtype=dtype, seed=2))


@pytest.mark.parametrize("name", FAST)
def test_large_numbers_of_both_signs_are_themselves_and_zero(name):
    x = torch.tensor([[-1e4, -20.0, 20.0, 1e4]])
    out = GELU[name](x.requires_grad_(), torch.zeros(4))
    (gradient,) = torch.autograd.grad(out.sum(), x)
    assert out[0].tolist() == pytest.approx([0, 0, 20, 1e4], abs=1e-20)
    assert gradient[0].tolist() == pytest.approx([0, 0, 1, 1], abs=1e-20)


@pytest.mark.parametrize("name", FAST)
def test_no_rows(name):
    x, bias = torch.empty(0, 8, requires_grad=True), torch.zeros(8, requires_grad=True)
    gradients = torch.autograd.grad(GELU[name](x, bias).sum(), (x, bias))
    assert gradients[0].shape == (0, 8) and gradients[1].tolist() == 8 * [0]


@pytest.mark.parametrize("name", FAST)
def test_strided_inputs_are_the_same_numbers(name):
    x, bias = values(6, 10, dtype=FP32), values(20, dtype=FP32, seed=1)[::2]
    assert torch.equal(GELU[name](x.t(), bias[:6]), GELU[name](x.t().contiguous(), bias[:6].contiguous()))


@pytest.mark.parametrize("name", FAST)
def test_bad_input_is_named(name):
    x, bias = values(3, 8, dtype=FP32), values(8, dtype=FP32)
    for arguments, sentence in (
        ((x, bias[:7]), r"bias_F has shape \(7,\), expected \(8,\)"),
        ((x, bias.half()), "bias_F is float16, expected float32 like the others"),
        ((x.double(), bias), "the inputs are float64, expected float32, bfloat16 or float16"),
        ((x[0], bias), r"x_RF has shape \(8,\), expected \[rows, columns\]"),
    ):
        with pytest.raises(ValueError, match=sentence):
            GELU[name](*arguments)


def test_fp16_is_not_for_the_native_kernel():
    with pytest.raises(Unsupported, match="float16 has no native CPU kernel"):
        GELU["native"](values(3, 8, dtype=FP16), values(8, dtype=FP16))
