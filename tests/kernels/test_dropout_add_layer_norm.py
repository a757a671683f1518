"""dropout_add_layer_norm against torch's own operations with the same masks."""

import pytest
import torch
import torch.nn.functional as F

from bert_mlperf.kernels.dropout import keep_hidden
from bert_mlperf.kernels.dropout_add_layer_norm import OPERATIONS
from bert_mlperf.kernels.unsupported import Unsupported
from tests.kernels.acceptance import check_kernel
from tests.kernels.inputs import FAST, FP16, FP32, IMPLEMENTATIONS, masks, values

NORM = OPERATIONS["dropout_add_layer_norm"]
SIZES = [(1, 64), (3, 1024), (17, 96), (150, 130), (1023, 64)]
EPSILON = 1e-12


def of_torch(x, bias, residual, weight, shift, dropout=None):
    z = x if bias is None else x + bias
    if dropout is not None:
        z = z * (keep_hidden(dropout, z.shape[1]) * dropout.scale).to(z.dtype)
    return F.layer_norm(z if residual is None else residual + z, z.shape[1:], weight, shift, EPSILON)


def inputs_of(rows, hidden, dtype):
    x, residual = values(rows, hidden, dtype=dtype), values(rows, hidden, dtype=dtype, seed=1)
    bias, weight, shift = (values(hidden, dtype=dtype, seed=seed) for seed in (2, 3, 4))
    return [x, bias, residual, weight + 1, shift]


@pytest.mark.parametrize("rows, hidden", SIZES)
@pytest.mark.parametrize("drops", [True, False], ids=["dropout", ""])
@pytest.mark.parametrize("name, dtype", IMPLEMENTATIONS)
def test_output_and_gradients(name, dtype, drops, rows, hidden):
    if name == "triton" and drops:
        rows = min(rows, 150)  # the counter is slow in the interpreter
    dropout = masks(rows) if drops else None
    check_kernel(
        lambda *tensors: NORM[name](*tensors, epsilon=EPSILON, dropout=dropout),
        lambda *tensors: of_torch(*tensors, dropout),
        inputs_of(rows, hidden, dtype),
        values(rows, hidden, dtype=dtype, seed=5),
    )


@pytest.mark.parametrize("has_bias, has_residual", [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("name, dtype", IMPLEMENTATIONS)
def test_without_bias_or_residual(name, dtype, has_bias, has_residual):
    x, bias, residual, weight, shift = inputs_of(17, 96, dtype)
    given = [x, *([bias] if has_bias else []), *([residual] if has_residual else []), weight, shift]

    def with_none(function):
        def call(x, *others):
            others = list(others)
            bias = others.pop(0) if has_bias else None
            residual = others.pop(0) if has_residual else None
            return function(x, bias, residual, *others)

        return call

    check_kernel(
        with_none(lambda *tensors: NORM[name](*tensors, epsilon=EPSILON, dropout=masks(17))),
        with_none(lambda *tensors: of_torch(*tensors, masks(17))),
        given,
        values(17, 96, dtype=dtype, seed=5),
    )


@pytest.mark.parametrize("name", FAST)
def test_a_large_mean_does_not_spoil_the_variance(name):
    x, bias, residual, weight, shift = inputs_of(4, 64, FP32)
    out = NORM[name](x + 1000, bias, residual, weight, shift, epsilon=EPSILON, dropout=None)
    exact = of_torch(*((t + 1000 * (t is x)).double() for t in (x, bias, residual, weight, shift)))
    assert (out - exact).abs().max() < 1e-3


@pytest.mark.parametrize("name", FAST)
def test_no_rows(name):
    tensors = [t.requires_grad_() for t in inputs_of(0, 64, FP32)]
    out = NORM[name](*tensors, epsilon=EPSILON, dropout=masks(0))
    gradients = torch.autograd.grad(out.sum(), tensors)
    assert out.shape == (0, 64) and all((g == 0).all() for g in gradients)


@pytest.mark.parametrize("name", FAST)
def test_strided_inputs_are_the_same_numbers(name):
    x, bias, residual, weight, shift = inputs_of(6, 64, FP32)
    wide = torch.stack([x, residual], dim=2)
    out = NORM[name](wide[..., 0], bias, wide[..., 1], weight, shift, epsilon=EPSILON, dropout=masks(6))
    assert torch.equal(out, NORM[name](x, bias, residual, weight, shift, epsilon=EPSILON, dropout=masks(6)))


@pytest.mark.parametrize("name", FAST)
def test_bad_input_is_named(name):
    x, bias, residual, weight, shift = inputs_of(6, 64, FP32)
    for tensors, dropout, sentence in (
        ((x, bias, residual[:5], weight, shift), None, r"residual_RH has shape \(5, 64\), expected \(6, 64\)"),
        ((x, bias[:3], residual, weight, shift), None, r"bias_H has shape \(3,\), expected \(64,\)"),
        ((x, bias, residual.half(), weight, shift), None, "residual_RH is float16, expected float32 like the others"),
        ((x, bias, residual, weight, shift), masks(5), r"dropout.samples_R is torch.int32 \(5,\), expected"),
        ((x[0], bias, residual, weight, shift), None, r"x_RH has shape \(64,\), expected \[rows, hidden\]"),
    ):
        with pytest.raises(ValueError, match=sentence):
            NORM[name](*tensors, epsilon=EPSILON, dropout=dropout)


def test_what_is_unsupported_says_so():
    with pytest.raises(Unsupported, match="float16 has no native CPU kernel"):
        NORM["native"](*inputs_of(3, 64, FP16), epsilon=EPSILON, dropout=None)
    with pytest.raises(Unsupported, match="hidden size 8,193 is above 8,192"):
        NORM["triton"](*inputs_of(1, 8193, FP32), epsilon=EPSILON, dropout=None)


def test_the_native_sums_do_not_depend_on_the_number_of_threads():
    def gradients(threads):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            tensors = [t.requires_grad_() for t in inputs_of(333, 96, FP32)]
            out = NORM["native"](*tensors, epsilon=EPSILON, dropout=masks(333))
            return torch.autograd.grad(out.square().sum(), tensors)
        finally:
            torch.set_num_threads(before)

    assert all(torch.equal(one, two) for one, two in zip(gradients(1), gradients(2), strict=True))
