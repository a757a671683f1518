"""Random inputs of kernel tests, and which implementation is tested in which dtype."""

import pytest
import torch
from torch import Tensor

from bert_mlperf.kernels import native
from bert_mlperf.kernels.dropout import Dropout
from bert_mlperf.kernels.jit import HAS_TRITON

FP32, FP16, BF16 = torch.float32, torch.float16, torch.bfloat16
no_triton = pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed")
no_native = pytest.mark.skipif(native.unavailable() is not None, reason=f"no native kernels: {native.unavailable()}")
IMPLEMENTATIONS = [
    pytest.param("reference", FP32, id="reference fp32"),
    pytest.param("reference", FP16, id="reference fp16"),
    pytest.param("reference", BF16, id="reference bf16"),
    pytest.param("triton", FP32, id="triton fp32", marks=no_triton),
    pytest.param("triton", FP16, id="triton fp16", marks=no_triton),  # the interpreter's bf16 is wrong in some versions
    pytest.param("native", FP32, id="native fp32", marks=no_native),
    pytest.param("native", BF16, id="native bf16", marks=no_native),
]
FAST = [pytest.param("triton", marks=no_triton), pytest.param("native", marks=no_native)]


def values(*shape: int, dtype: torch.dtype, seed: int = 0, scale: float = 1.0) -> Tensor:
    """Normal numbers, rounded to the dtype."""
    return (scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))).to(dtype)


def masks(rows: int, probability: float = 0.1) -> Dropout:
    """Rows of samples of 7 positions."""
    place = torch.arange(rows, dtype=torch.int32)
    return Dropout(probability, 2**62 + 12345, place // 7 + 1000, place % 7)
