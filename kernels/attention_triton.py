"""Attention in Triton (kernels/attention.py has the equations and the legend): three kernels, none with atomics.

    forward    a block of queries of one head of one sample goes over the keys with an online softmax in base 2, as in
               Dao et al., FlashAttention (2022); drops after the softmax: the sum is over all probabilities
    dQ         a block of queries goes over the keys; first stores delta = sum_d dO O = sum_k P dP for the next kernel
    dK, dV     a block of keys goes over the queries, transposed: P' and dS' are left factors as they come out
               dP = keep scale (dO V'),  dS = P (dP - delta)
               dQ = dS K / sqrt(D),  dK = dS' Q / sqrt(D),  dV = P_dropped' dO

The grid is (blocks of the longest sample, heads, samples); programs beyond the end of their sample return at once.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bert_mlperf.kernels.aot import AotCase
from bert_mlperf.kernels.dropout import Dropout, keep_tile, triton_masks
from bert_mlperf.kernels.jit import divide_up, jit, tl
from bert_mlperf.kernels.unsupported import Unsupported

LOG2_E = math.log2(math.e)
HEAD_SIZES = (16, 32, 64, 128)


@dataclass(frozen=True)
class Blocks:
    """Rows and columns of a tile of scores, and how the GPU works on it."""

    queries: int
    keys: int
    warps: int
    stages: int


@jit
def _tile(pointer, stride, rows, inside, D: tl.constexpr):
    """[rows, D] of one head from its first row `pointer` on; zero where there is no row."""
    return tl.load(pointer + rows[:, None] * stride + tl.arange(0, D)[None, :], mask=inside[:, None], other=0.0)


@jit
def _keep(key, first_key, positions_Q, samples_Q, head, threshold, BLOCK_K: tl.constexpr):
    """bool [queries, BLOCK_K]: what dropout keeps of the keys from `first_key` on."""
    groups_G = first_key // 8 + tl.arange(0, BLOCK_K // 8)
    return keep_tile(key, groups_G[None, :], positions_Q[:, None], samples_Q[:, None], head, threshold)


@jit(do_not_specialize=["num_queries", "dropout_key", "threshold"])
def _forward(
    q,  # [Q, N, D] in rows `query_stride` apart, like all of fp32, fp16 or bf16 where nothing is said
    k,  # [T, N, D] in rows `key_stride` apart
    v,  # as k
    out,  # [Q, N, D] contiguous
    lse,  # fp32 [N, Q]: natural logarithm of sum_k exp(q . k / sqrt(D))
    query_offsets,  # int32 [B + 1]
    key_offsets,  # int32 [B + 1]
    positions,  # int32 [Q], None without dropout
    samples,  # int32 [Q], None without dropout
    query_stride,
    key_stride,
    num_queries,
    dropout_key,
    threshold,
    keep_scale,
    scale_log2,  # log2(e) / sqrt(D)
    HEADS: tl.constexpr,
    D: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    first, head, sample = tl.program_id(0) * BLOCK_Q, tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    query_start, key_start = tl.load(query_offsets + sample).to(tl.int64), tl.load(key_offsets + sample).to(tl.int64)
    queries = (tl.load(query_offsets + sample + 1) - query_start).to(tl.int32) - first
    num_keys = (tl.load(key_offsets + sample + 1) - key_start).to(tl.int32)
    if queries <= 0:
        return
    query_start += first
    row_Q, column_K = tl.arange(0, BLOCK_Q), tl.arange(0, BLOCK_K)
    inside_Q = row_Q < queries
    q_QD = _tile(q + query_start * query_stride + head * D, query_stride, row_Q, inside_Q, D)
    if positions is not None:
        positions_Q = tl.load(positions + query_start + row_Q, mask=inside_Q, other=0)
        samples_Q = tl.load(samples + query_start + row_Q, mask=inside_Q, other=0)
    k += key_start * key_stride + head * D
    v += key_start * key_stride + head * D
    max_Q = tl.full([BLOCK_Q], float("-inf"), tl.float32)
    sum_Q = tl.zeros([BLOCK_Q], tl.float32)
    out_QD = tl.zeros([BLOCK_Q, D], tl.float32)
    for first_key in range(0, num_keys, BLOCK_K):
        key_K = first_key + column_K
        inside_K = key_K < num_keys
        k_KD = _tile(k, key_stride, key_K, inside_K, D)
        scores_QK = tl.dot(q_QD, tl.trans(k_KD), input_precision="ieee")
        scores_QK = tl.where(inside_K[None, :], scores_QK, float("-inf"))
        new_max_Q = tl.maximum(max_Q, tl.max(scores_QK, 1) * scale_log2)  # finite: a block has at least one key
        p_QK = tl.exp2(scores_QK * scale_log2 - new_max_Q[:, None])
        correction_Q = tl.exp2(max_Q - new_max_Q)
        sum_Q = sum_Q * correction_Q + tl.sum(p_QK, 1)
        max_Q = new_max_Q
        if positions is not None:
            keep_QK = _keep(dropout_key, first_key, positions_Q, samples_Q, tl.program_id(1), threshold, BLOCK_K)
            p_QK = tl.where(keep_QK, p_QK, 0.0)
        v_KD = _tile(v, key_stride, key_K, inside_K, D)
        out_QD = tl.dot(p_QK.to(v_KD.dtype), v_KD, out_QD * correction_Q[:, None], input_precision="ieee")
    out_QD *= keep_scale / tl.where(sum_Q > 0, sum_Q, 1.0)[:, None]  # without keys the output is 0
    at_QD = (row_Q * (HEADS * D))[:, None] + tl.arange(0, D)[None, :]
    tl.store(out + (query_start * HEADS + head) * D + at_QD, out_QD.to(out.dtype.element_ty), mask=inside_Q[:, None])
    tl.store(
        lse + head * num_queries + query_start + row_Q, (max_Q + tl.log2(sum_Q)) / 1.4426950408889634, mask=inside_Q
    )


@jit(do_not_specialize=["num_queries", "dropout_key", "threshold"])
def _backward_queries(
    q,  # [Q, N, D] in rows `query_stride` apart
    k,  # [T, N, D] in rows `key_stride` apart
    v,  # as k
    out,  # [Q, N, D] contiguous
    lse,  # fp32 [N, Q]
    upstream,  # [Q, N, D] contiguous: the gradient of `out`
    dq,  # as q
    delta,  # fp32 [N, Q], written
    query_offsets,  # int32 [B + 1]
    key_offsets,  # int32 [B + 1]
    positions,  # int32 [Q], None without dropout
    samples,  # int32 [Q], None without dropout
    query_stride,
    key_stride,
    num_queries,
    dropout_key,
    threshold,
    keep_scale,
    scale,  # 1 / sqrt(D)
    HEADS: tl.constexpr,
    D: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    first, head, sample = tl.program_id(0) * BLOCK_Q, tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    query_start, key_start = tl.load(query_offsets + sample).to(tl.int64), tl.load(key_offsets + sample).to(tl.int64)
    queries = (tl.load(query_offsets + sample + 1) - query_start).to(tl.int32) - first
    num_keys = (tl.load(key_offsets + sample + 1) - key_start).to(tl.int32)
    if queries <= 0:
        return
    query_start += first
    row_Q, column_K = tl.arange(0, BLOCK_Q), tl.arange(0, BLOCK_K)
    inside_Q = row_Q < queries
    dense = (query_start * HEADS + head) * D
    upstream_QD = _tile(upstream + dense, HEADS * D, row_Q, inside_Q, D)
    out_QD = _tile(out + dense, HEADS * D, row_Q, inside_Q, D)
    delta_Q = tl.sum(upstream_QD.to(tl.float32) * out_QD.to(tl.float32), 1)
    tl.store(delta + head * num_queries + query_start + row_Q, delta_Q, mask=inside_Q)
    lse_Q = tl.load(lse + head * num_queries + query_start + row_Q, mask=inside_Q, other=0.0) * 1.4426950408889634
    q_QD = _tile(q + query_start * query_stride + head * D, query_stride, row_Q, inside_Q, D)
    if positions is not None:
        positions_Q = tl.load(positions + query_start + row_Q, mask=inside_Q, other=0)
        samples_Q = tl.load(samples + query_start + row_Q, mask=inside_Q, other=0)
    k += key_start * key_stride + head * D
    v += key_start * key_stride + head * D
    scale_log2 = scale * 1.4426950408889634
    dq_QD = tl.zeros([BLOCK_Q, D], tl.float32)
    for first_key in range(0, num_keys, BLOCK_K):
        key_K = first_key + column_K
        inside_K = key_K < num_keys
        k_KD = _tile(k, key_stride, key_K, inside_K, D)
        v_KD = _tile(v, key_stride, key_K, inside_K, D)
        scores_QK = tl.dot(q_QD, tl.trans(k_KD), input_precision="ieee")
        p_QK = tl.exp2(scores_QK * scale_log2 - lse_Q[:, None])
        dp_QK = tl.dot(upstream_QD, tl.trans(v_KD), input_precision="ieee")
        if positions is not None:
            keep_QK = _keep(dropout_key, first_key, positions_Q, samples_Q, tl.program_id(1), threshold, BLOCK_K)
            dp_QK = tl.where(keep_QK, dp_QK, 0.0) * keep_scale
        ds_QK = p_QK * (dp_QK - delta_Q[:, None])
        # p of a missing key is exp(-lse), which may be infinite; with one key dP is delta, and rounding all there is
        ds_QK = tl.where(inside_K[None, :] & (num_keys > 1), ds_QK, 0.0)
        dq_QD = tl.dot(ds_QK.to(k_KD.dtype), k_KD, dq_QD, input_precision="ieee")
    dq += query_start * query_stride + head * D
    at_QD = (row_Q * query_stride)[:, None] + tl.arange(0, D)[None, :]
    tl.store(dq + at_QD, (dq_QD * scale).to(dq.dtype.element_ty), mask=inside_Q[:, None])


@jit(do_not_specialize=["num_queries", "dropout_key", "threshold"])
def _backward_keys(
    q,  # [Q, N, D] in rows `query_stride` apart
    k,  # [T, N, D] in rows `key_stride` apart
    v,  # as k
    lse,  # fp32 [N, Q]
    delta,  # fp32 [N, Q]
    upstream,  # [Q, N, D] contiguous
    dk,  # as k
    dv,  # as v
    query_offsets,  # int32 [B + 1]
    key_offsets,  # int32 [B + 1]
    positions,  # int32 [Q], None without dropout
    samples,  # int32 [Q], None without dropout
    query_stride,
    key_stride,
    num_queries,
    dropout_key,
    threshold,
    keep_scale,
    scale,  # 1 / sqrt(D)
    HEADS: tl.constexpr,
    D: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    first, head, sample = tl.program_id(0) * BLOCK_K, tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    query_start, key_start = tl.load(query_offsets + sample).to(tl.int64), tl.load(key_offsets + sample).to(tl.int64)
    queries = (tl.load(query_offsets + sample + 1) - query_start).to(tl.int32)
    num_keys = (tl.load(key_offsets + sample + 1) - key_start).to(tl.int32)
    keys = num_keys - first
    if keys <= 0:
        return
    key_start += first
    row_Q, row_K = tl.arange(0, BLOCK_Q), tl.arange(0, BLOCK_K)
    inside_K = row_K < keys
    key_base = key_start * key_stride + head * D
    k_KD = _tile(k + key_base, key_stride, row_K, inside_K, D)
    v_KD = _tile(v + key_base, key_stride, row_K, inside_K, D)
    q += query_start * query_stride + head * D
    upstream += (query_start * HEADS + head) * D
    lse += head * num_queries + query_start
    delta += head * num_queries + query_start
    scale_log2 = scale * 1.4426950408889634
    dk_KD = tl.zeros([BLOCK_K, D], tl.float32)
    dv_KD = tl.zeros([BLOCK_K, D], tl.float32)
    for first_query in range(0, queries, BLOCK_Q):
        query_Q = first_query + row_Q
        inside_Q = query_Q < queries
        # a missing query has q, dO, lse and delta 0: it adds nothing. Missing keys spoil only rows that are not stored
        q_QD = _tile(q, query_stride, query_Q, inside_Q, D)
        lse_Q = tl.load(lse + query_Q, mask=inside_Q, other=0.0) * 1.4426950408889634
        scores_KQ = tl.dot(k_KD, tl.trans(q_QD), input_precision="ieee")
        p_KQ = tl.exp2(scores_KQ * scale_log2 - lse_Q[None, :])
        upstream_QD = _tile(upstream, HEADS * D, query_Q, inside_Q, D)
        dp_KQ = tl.dot(v_KD, tl.trans(upstream_QD), input_precision="ieee")
        dropped_KQ = p_KQ
        if positions is not None:
            positions_Q = tl.load(positions + query_start + query_Q, mask=inside_Q, other=0)
            samples_Q = tl.load(samples + query_start + query_Q, mask=inside_Q, other=0)
            keep_QK = _keep(dropout_key, first, positions_Q, samples_Q, tl.program_id(1), threshold, BLOCK_K)
            keep_KQ = tl.trans(keep_QK)
            dropped_KQ = tl.where(keep_KQ, p_KQ, 0.0)
            dp_KQ = tl.where(keep_KQ, dp_KQ, 0.0) * keep_scale
        dv_KD = tl.dot(dropped_KQ.to(upstream_QD.dtype), upstream_QD, dv_KD, input_precision="ieee")
        delta_Q = tl.load(delta + query_Q, mask=inside_Q, other=0.0)
        ds_KQ = tl.where(num_keys > 1, p_KQ * (dp_KQ - delta_Q[None, :]), 0.0)
        dk_KD = tl.dot(ds_KQ.to(q_QD.dtype), q_QD, dk_KD, input_precision="ieee")
    at_KD = (row_K * key_stride)[:, None] + tl.arange(0, D)[None, :]
    tl.store(dk + key_base + at_KD, (dk_KD * scale).to(dk.dtype.element_ty), mask=inside_K[:, None])
    tl.store(dv + key_base + at_KD, (dv_KD * keep_scale).to(dv.dtype.element_ty), mask=inside_K[:, None])


SMALL = Blocks(queries=32, keys=32, warps=4, stages=2)  # fp32 and wide heads
FORWARD = Blocks(queries=128, keys=64, warps=8, stages=2)
BACKWARD_QUERIES = Blocks(queries=128, keys=64, warps=8, stages=2)
BACKWARD_KEYS = Blocks(queries=32, keys=64, warps=4, stages=2)


def blocks_of(blocks: Blocks, dtype: torch.dtype, size: int) -> Blocks:
    """`blocks` were chosen for 16 bits and heads of 64, so that nothing spills on sm_80, sm_90 and sm_100."""
    return SMALL if dtype == torch.float32 or size > 64 else blocks


def check(packed: Tensor) -> None:
    """Unsupported if there is no kernel for heads of this size."""
    if packed.shape[3] not in HEAD_SIZES:
        raise Unsupported(f"head size {packed.shape[3]} is none of {', '.join(map(str, HEAD_SIZES))}")


def forward(q_QND: Tensor, kv_T2ND: Tensor, rows: Any, dropout: Dropout | None) -> tuple[Tensor, Tensor]:
    """Output [Q, N, D] and the log-sum-exp of each row, fp32 [N, Q]. `q_QND` and `kv_T2ND` may be views of one packed
    tensor: only the distance of their rows is free."""
    num_queries, heads, size = q_QND.shape
    out_QND = q_QND.new_empty(num_queries, heads, size)
    lse_NQ = torch.empty(heads, num_queries, dtype=torch.float32, device=q_QND.device)
    blocks = blocks_of(FORWARD, q_QND.dtype, size)
    if num_queries > 0:
        _forward[(divide_up(rows.max_queries, blocks.queries), heads, rows.num_samples)](
            *(q_QND, kv_T2ND[:, 0], kv_T2ND[:, 1], out_QND, lse_NQ),
            *_shape(q_QND, kv_T2ND, rows, dropout),
            LOG2_E / math.sqrt(size),
            **_constants(blocks, heads, size),
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
    (_, heads, size), delta_NQ = q_QND.shape, torch.empty_like(lse_NQ)
    k_TND, v_TND = kv_T2ND.unbind(1)
    shape, scale = _shape(q_QND, kv_T2ND, rows, dropout), 1 / math.sqrt(size)
    blocks = blocks_of(BACKWARD_QUERIES, q_QND.dtype, size)
    if q_QND.numel() > 0:
        _backward_queries[(divide_up(rows.max_queries, blocks.queries), heads, rows.num_samples)](
            *(q_QND, k_TND, v_TND, out_QND, lse_NQ, upstream_QND, dq_QND, delta_NQ, *shape, scale),
            **_constants(blocks, heads, size),
        )
    blocks = blocks_of(BACKWARD_KEYS, q_QND.dtype, size)
    if kv_T2ND.numel() > 0:
        _backward_keys[(divide_up(rows.max_keys, blocks.keys), heads, rows.num_samples)](
            *(q_QND, k_TND, v_TND, lse_NQ, delta_NQ, upstream_QND, *dkv_T2ND.unbind(1), *shape, scale),
            **_constants(blocks, heads, size),
        )


def _shape(q_QND: Tensor, kv_T2ND: Tensor, rows: Any, dropout: Dropout | None) -> tuple[Any, ...]:
    offsets = (rows.query_offsets_B1, rows.key_offsets_B1)
    strides = (q_QND.stride(0), kv_T2ND.stride(0), q_QND.shape[0])
    samples, positions, *masks = triton_masks(dropout)
    return (*offsets, positions, samples, *strides, *masks)


def _constants(blocks: Blocks, heads: int, size: int) -> dict[str, int]:
    tile = {"HEADS": heads, "D": size, "BLOCK_Q": blocks.queries, "BLOCK_K": blocks.keys}
    return tile | {"num_warps": blocks.warps, "num_stages": blocks.stages}


def aot_cases() -> list[AotCase]:
    """The three kernels for BERT-Large in bf16, with dropout and without."""
    tensors = dict.fromkeys(("q", "k", "v", "out", "upstream", "dq", "dk", "dv"), "*bf16")
    tensors |= dict.fromkeys(("lse", "delta"), "*fp32") | dict.fromkeys(("query_offsets", "key_offsets"), "*i32")
    numbers = {
        "query_stride": "i32",
        "key_stride": "i32",
        "num_queries": "i32",
        "dropout_key": "i64",
        "threshold": "i32",
    }
    numbers |= {"keep_scale": "fp32", "scale": "fp32", "scale_log2": "fp32"}
    cases = []
    for name, function, blocks in (
        ("forward", _forward, FORWARD),
        ("backward, queries", _backward_queries, BACKWARD_QUERIES),
        ("backward, keys", _backward_keys, BACKWARD_KEYS),
    ):
        for drops in (True, False):
            masks = dict.fromkeys(("positions", "samples"), "*i32") if drops else {}
            constants: dict[str, Any] = {"HEADS": 16, "D": 64, "BLOCK_Q": blocks.queries, "BLOCK_K": blocks.keys}
            if not drops:
                constants |= {"positions": None, "samples": None}
            given = {key: kind for key, kind in (tensors | numbers | masks).items() if key in function.arg_names}
            title = f"attention {name}{'' if drops else ', no dropout'}"
            cases.append(
                AotCase(
                    title,
                    function,
                    given,
                    constants,
                    blocks.warps,
                    blocks.stages,
                    divisible_by_16=("query_stride", "key_stride"),
                )
            )
    return cases
