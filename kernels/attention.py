"""Variable-length self-attention on unpadded tokens.

    P = softmax_k(q . k / sqrt(D)) over the keys of the same sample;   out = drop(P) v

Of forward only the output and the log-sum-exp of each row are kept, never a [Q, K] matrix.

Legend: B samples, T tokens (keys), Q query rows, N heads, D head size. Sample b owns query rows [query_offsets[b],
query_offsets[b + 1]) and tokens [key_offsets[b], key_offsets[b + 1]).
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bert_mlperf.kernels import attention_library, attention_native, attention_triton
from bert_mlperf.kernels.checks import check_dropout, check_shapes
from bert_mlperf.kernels.compiled import compiled
from bert_mlperf.kernels.dropout import Dropout, keep_attention

NAME = "attention"


@dataclass(frozen=True)
class AttentionRows:
    """Where the rows of each sample lie; made once per batch, used by every layer."""

    query_offsets_B1: Tensor  # int32, on the device
    key_offsets_B1: Tensor  # int32; in self-attention the same tensor
    query_bounds: tuple[int, ...]  # the same numbers on the host
    key_bounds: tuple[int, ...]

    def __post_init__(self) -> None:
        for name in ("query", "key"):  # on a GPU the host does not wait to see
            offsets, bounds = getattr(self, f"{name}_offsets_B1"), getattr(self, f"{name}_bounds")
            if offsets.device.type == "cpu" and tuple(offsets.tolist()) != tuple(bounds):
                raise ValueError(f"attention: {name}_offsets_B1 and {name}_bounds differ, expected the same numbers")

    @property
    def num_samples(self) -> int:
        return len(self.key_bounds) - 1

    @property
    def num_queries(self) -> int:
        return self.query_bounds[-1]

    @property
    def num_keys(self) -> int:
        return self.key_bounds[-1]

    @cached_property
    def max_queries(self) -> int:
        return max((end - start for start, end in pairwise(self.query_bounds)), default=0)

    @cached_property
    def max_keys(self) -> int:
        return max((end - start for start, end in pairwise(self.key_bounds)), default=0)


def attention_reference(
    packed_T3ND: Tensor,
    rows: AttentionRows,
    *,
    queries_QND: Tensor | None = None,
    dropout: Dropout | None = None,
) -> Tensor:
    """The equation above, sample by sample; [Q, N, D] in the dtype of the inputs.

    `packed_T3ND` [T, 3, N, D] holds query, key and value of every token. With `queries_QND` [Q, N, D] it holds key and
    value only, [T, 2, N, D]. `dropout` has the samples and positions of the query rows.
    """
    check(packed_T3ND, rows, queries_QND, dropout)
    q_QND, kv_T2ND = unpack(packed_T3ND, queries_QND)
    dtype = torch.promote_types(q_QND.dtype, torch.float32)
    out = [q_QND[:0]]
    for (q0, q1), (k0, k1) in zip(pairwise(rows.query_bounds), pairwise(rows.key_bounds), strict=True):
        k_KND, v_KND = kv_T2ND[k0:k1].to(dtype).unbind(1)
        scores_NQK = torch.einsum("qnd,knd->nqk", q_QND[q0:q1].to(dtype), k_KND) / math.sqrt(q_QND.shape[2])
        weights_NQK = scores_NQK.softmax(-1)
        if dropout is not None:
            of_sample = replace(dropout, samples_R=dropout.samples_R[q0:q1], positions_R=dropout.positions_R[q0:q1])
            keep = [keep_attention(of_sample, head, k1 - k0) for head in range(q_QND.shape[1])]
            weights_NQK = weights_NQK * (torch.stack(keep) * dropout.scale).to(dtype)
        out.append(torch.einsum("nqk,knd->qnd", weights_NQK, v_KND).to(q_QND.dtype))
    return torch.cat(out)


def unpack(packed: Tensor, queries_QND: Tensor | None) -> tuple[Tensor, Tensor]:
    """Queries [Q, N, D] and [T, 2, N, D] keys and values: views of what was given."""
    return packed[:, 0] if queries_QND is None else queries_QND, packed[:, -2:]


def check(packed: Tensor, rows: AttentionRows, queries_QND: Tensor | None, dropout: Dropout | None) -> None:
    """ValueError if they do not go together."""
    parts = 3 if queries_QND is None else 2
    if packed.dim() != 4 or packed.shape[1] != parts:
        what = "query, key and value" if parts == 3 else "key and value, beside queries_QND"
        raise ValueError(
            f"{NAME}: packed has shape {tuple(packed.shape)}, expected [tokens, {parts}, heads, size]: {what}"
        )
    q_QND, _ = unpack(packed, queries_QND)
    heads, size = packed.shape[2:]
    check_shapes(NAME, packed.dtype, queries_QND=(q_QND, (rows.num_queries, heads, size)))
    if packed.shape[0] != rows.num_keys:
        raise ValueError(
            f"{NAME}: packed has {packed.shape[0]} tokens, expected {rows.num_keys}, where the offsets end"
        )
    for name, bounds in (("query", rows.query_bounds), ("key", rows.key_bounds)):
        if bounds[0] != 0 or any(end < start for start, end in pairwise(bounds)):
            raise ValueError(f"{NAME}: {name}_bounds are {bounds}, expected ascending numbers from 0 on")
    if len(rows.query_bounds) != len(rows.key_bounds):
        raise ValueError(
            f"{NAME}: the queries are those of {len(rows.query_bounds) - 1} samples, the keys of {rows.num_samples}"
        )
    check_dropout(NAME, dropout, rows.num_queries)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, packed: Tensor, queries: Tensor | None, rows: AttentionRows, dropout: Dropout | None, path: Any
    ) -> Tensor:
        q_QND, kv_T2ND = unpack(packed, queries)
        out_QND, lse_NQ = path.forward(q_QND, kv_T2ND, rows, dropout)
        ctx.save_for_backward(packed, queries, out_QND, lse_NQ)
        ctx.rows, ctx.dropout, ctx.path = rows, dropout, path
        return out_QND

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream_QND: Tensor) -> tuple[Tensor | None, ...]:
        packed, queries, out_QND, lse_NQ = ctx.saved_tensors
        dpacked = torch.empty_like(packed)
        dqueries = None if queries is None else torch.empty_like(queries)
        saved = (*unpack(packed, queries), out_QND, lse_NQ, upstream_QND.contiguous())
        ctx.path.backward(*saved, *unpack(dpacked, dqueries), ctx.rows, ctx.dropout)
        return dpacked, dqueries, None, None, None


def _call(
    path: Any,
    packed_T3ND: Tensor,
    rows: AttentionRows,
    *,
    queries_QND: Tensor | None = None,
    dropout: Dropout | None = None,
) -> Tensor:
    """The reference's values by attention_native.py or attention_triton.py. ValueError on shapes or dtypes that do not
    go together; Unsupported, as their `check` says, for dtypes and head sizes."""
    check(packed_T3ND, rows, queries_QND, dropout)
    path.check(packed_T3ND)
    queries = None if queries_QND is None else queries_QND.contiguous()
    return _Attention.apply(packed_T3ND.contiguous(), queries, rows, dropout, path)


def _of_library(
    packed_T3ND: Tensor,
    rows: AttentionRows,
    *,
    queries_QND: Tensor | None = None,
    dropout: Dropout | None = None,
) -> Tensor:
    """Attention of flash-attn or torch (kernels/attention_library.py). ValueError as above; Unsupported where neither
    can."""
    check(packed_T3ND, rows, queries_QND, dropout)
    return attention_library.attention(packed_T3ND, rows, queries_QND, dropout)


OPERATIONS = {
    NAME: {
        "reference": attention_reference,
        "native": partial(_call, attention_native),
        "triton": partial(_call, attention_triton),
        "compiled": compiled(attention_reference),
        "library": _of_library,
    }
}

aot_cases = attention_triton.aot_cases
