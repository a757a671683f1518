"""The libraries' own variable-length attention, to choose instead of ours and to be compared with.

flash-attn, if it is installed, does everything in bf16 and fp16; its dropout masks are its own, drawn from the
device's random state: with it a sample has other masks on another number of ranks, and recomputed layers other masks
than in forward. torch's varlen_attn has no dropout. Both are for CUDA and have not been run here.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from bert_mlperf.kernels.dropout import Dropout
from bert_mlperf.kernels.unsupported import Unsupported


@cache
def flash_attention() -> Callable[..., Any] | None:
    """flash_attn_varlen_func, or None."""
    try:
        from flash_attn import flash_attn_varlen_func
    except ImportError:
        return None
    return flash_attn_varlen_func


@cache
def varlen_attention() -> Callable[..., Any] | None:
    """torch.nn.attention.varlen.varlen_attn, or None in a torch that has none."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    return varlen_attn


def attention(packed: Tensor, rows: Any, queries_QND: Tensor | None, dropout: Dropout | None) -> Tensor:
    """[Q, N, D] (kernels/attention.py says from what). Unsupported if no library can."""
    if packed.dtype == torch.float32:
        raise Unsupported("the libraries' attention is for 16 bits, the inputs are float32")
    q_QND = packed[:, 0] if queries_QND is None else queries_QND
    k_TND, v_TND = packed[:, -2], packed[:, -1]
    offsets = (rows.query_offsets_B1, rows.key_offsets_B1, rows.max_queries, rows.max_keys)
    flash = flash_attention()
    if flash is not None:
        return flash(q_QND, k_TND, v_TND, *offsets, dropout_p=0.0 if dropout is None else dropout.probability)
    if dropout is not None:
        raise Unsupported("flash-attn is not installed, and torch's varlen_attn has no dropout")
    varlen = varlen_attention()
    if varlen is None:
        raise Unsupported("neither flash-attn nor torch's varlen_attn is there")
    return varlen(q_QND, k_TND, v_TND, *offsets)
