"""The Triton kernels on a GPU: TRITON_INTERPRET=0 pytest tests/gpu. Skipped without one; has not been run yet."""

import os
from dataclasses import replace

import pytest
import torch

from bert_mlperf.comm.control import Control
from bert_mlperf.train import setup
from bert_mlperf.train.step import train_step
from tests.kernels import (
    test_attention,
    test_bias_gelu,
    test_dropout_add_layer_norm,
    test_embedding_layer_norm,
    test_linear_cross_entropy,
)
from tests.kernels.acceptance import check_kernel
from tests.kernels.inputs import masks
from tests.train import test_kernels

if not torch.cuda.is_available():
    pytest.skip("there is no CUDA device", allow_module_level=True)
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("Triton is interpreted: set TRITON_INTERPRET=0", allow_module_level=True)

CUDA = torch.device("cuda")
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def on_cuda(tensors):
    return [tensor.to(CUDA) for tensor in tensors]


def dropout_on_cuda(dropout):
    return replace(dropout, samples_R=dropout.samples_R.to(CUDA), positions_R=dropout.positions_R.to(CUDA))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bias_gelu_on_the_device(dtype):
    inputs = on_cuda([torch.randn(1023, 4096).to(dtype), torch.randn(4096).to(dtype)])
    upstream = torch.randn(1023, 4096, device=CUDA)
    check_kernel(test_bias_gelu.GELU["triton"], test_bias_gelu.of_torch, inputs, upstream)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "of_test, kernel",
    [
        (test_dropout_add_layer_norm, test_dropout_add_layer_norm.NORM),
        (test_embedding_layer_norm, test_embedding_layer_norm.EMBED),
    ],
    ids=["dropout_add", "embedding"],
)
def test_layer_norms_on_the_device(of_test, kernel, dtype):
    dropout = dropout_on_cuda(masks(1023))
    check_kernel(
        lambda *t: kernel["triton"](*t, epsilon=of_test.EPSILON, dropout=dropout),
        lambda *t: of_test.of_torch(*t, dropout),
        on_cuda(of_test.inputs_of(1023, 1024, dtype)),
        torch.randn(1023, 1024, device=CUDA),
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_linear_cross_entropy_on_the_device(dtype):
    of_test = test_linear_cross_entropy
    inputs = on_cuda(of_test.inputs_of(300, 1024, 30522, dtype))
    check_kernel(of_test.LOSS["triton"], of_test.of_torch, inputs, torch.tensor(0.37, device=CUDA))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("drops", [True, False])
def test_attention_on_the_device(dtype, drops):
    of_test, lengths = test_attention, [1, 17, 512, 300]
    rows, tokens = of_test.rows_of(lengths, lengths), sum(lengths)
    rows = type(rows)(*on_cuda([rows.query_offsets_B1, rows.key_offsets_B1]), rows.query_bounds, rows.key_bounds)
    dropout = dropout_on_cuda(of_test.dropout_of(lengths, torch.cat([torch.arange(n) for n in lengths])))
    given = dropout if drops else None
    check_kernel(
        lambda packed: of_test.ATTENTION["triton"](packed, rows, dropout=given),
        lambda packed: of_test.of_torch(packed[:, 0], packed[:, 1:], rows, given),
        [torch.randn(tokens, 3, 2, 64, device=CUDA).to(dtype)],
        torch.randn(tokens, 2, 64, device=CUDA),
    )


def test_two_steps_give_the_losses_of_the_cpu():
    alone = Control(rank=0, world_size=1)
    runs = {torch.device("cpu"): test_kernels.run_of("auto"), CUDA: test_kernels.run_of("auto", device="cuda")}
    states = [setup.build_state(run, alone, device, seed=5, checkpoint=None) for device, run in runs.items()]
    for index in range(2):
        expected, found = (train_step(state, test_kernels.step_of(index)).loss.item() for state in states)
        assert found == pytest.approx(expected, rel=1e-4)
