"""Attention on the CPU: one call of kernels/native/attention.cpp for all samples and heads.

Nothing is computed on padding, scores are fp32, and of forward only the output and the log-sum-exp of each row are
kept.
"""

import math
from typing import Any

import torch
from torch import Tensor

from bert_mlperf.kernels import native
from bert_mlperf.kernels.checks import native_suffix
from bert_mlperf.kernels.dropout import Dropout
from bert_mlperf.kernels.unsupported import Unsupported

MOST_SIZE = 256  # of a head: buffers in attention.cpp


def check(packed: Tensor) -> None:
    """Unsupported if attention.cpp has no function for this."""
    native_suffix(packed.dtype)
    if packed.shape[3] > MOST_SIZE:
        raise Unsupported(f"head size {packed.shape[3]} is above {MOST_SIZE}")


def forward(q_QND: Tensor, kv_T2ND: Tensor, rows: Any, dropout: Dropout | None) -> tuple[Tensor, Tensor]:
    """Output [Q, N, D] and the log-sum-exp of each row, fp32 [N, Q]. `q_QND` and `kv_T2ND` may be views of one packed
    tensor: only the distance of their rows is free."""
    suffix, (num_queries, heads, size) = native_suffix(q_QND.dtype), q_QND.shape
    out_QND = q_QND.new_empty(num_queries, heads, size)
    lse_NQ = torch.empty(heads, num_queries, dtype=torch.float32)
    arguments = _shape(q_QND, kv_T2ND, rows)
    native.call(
        f"attention_forward_{suffix}",
        q_QND,
        kv_T2ND[:, 0],
        kv_T2ND[:, 1],
        out_QND,
        lse_NQ,
        *arguments,
        *native.masks(dropout),
    )
    return out_QND, lse_NQ


def backward(
    q_QND: Tensor,
    kv_T2ND: Tensor,
    out_QND: Tensor,
    lse_NQ: Tensor,
    upstream_QND: Tensor,
    dq_QND: Tensor,
    dkv_T2ND: Tensor,
    rows: Any,
    dropout: Dropout | None,
) -> None:
    """Fills `dq_QND` and `dkv_T2ND`, which may be views of one packed tensor like their inputs."""
    native.call(
        f"attention_backward_{native_suffix(q_QND.dtype)}",
        *(q_QND, kv_T2ND[:, 0], kv_T2ND[:, 1], lse_NQ, upstream_QND),
        *(dq_QND, dkv_T2ND[:, 0], dkv_T2ND[:, 1], dq_QND.stride(0), dkv_T2ND.stride(0)),
        *_shape(q_QND, kv_T2ND, rows),
        *native.masks(dropout),
    )


def _shape(q_QND: Tensor, kv_T2ND: Tensor, rows: Any) -> tuple[Any, ...]:
    _, heads, size = q_QND.shape
    assert q_QND.stride()[1:] == (size, 1) and kv_T2ND.stride()[2:] == (size, 1)
    bounds = [torch.tensor(numbers, dtype=torch.int64) for numbers in (rows.query_bounds, rows.key_bounds)]
    return (*bounds, rows.num_samples, heads, size, q_QND.stride(0), kv_T2ND.stride(0), 1 / math.sqrt(size))
