"""Word, position and segment embeddings, their LayerNorm and dropout.

    z = word[ids] + position[positions] + segment[segments];   y = drop(LayerNorm(z) weight + shift)
    (kernels/layer_norm.py)

The gradient of the word embeddings is sparse, a row for each token: the decoder's dense one, tied to it, is added
elsewhere. Those of positions and segments are added up over the tokens in fp32, in one order.

Legend: T tokens, H hidden, V vocabulary, P positions, G segments.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from bert_mlperf.kernels import native
from bert_mlperf.kernels.aot import AotCase
from bert_mlperf.kernels.checks import check_indices, check_shapes, native_suffix
from bert_mlperf.kernels.compiled import compiled
from bert_mlperf.kernels.dropout import Dropout, keep_hidden
from bert_mlperf.kernels.jit import divide_up, jit, tl
from bert_mlperf.kernels.layer_norm import (
    BLOCK_ROWS,
    block_of,
    check_dropout,
    gradient_of_row,
    keep_scale,
    load_row,
    masks_of,
    normalise,
    row_programs,
)

NAME = "embedding_layer_norm"


def embedding_layer_norm_reference(
    word_VH: Tensor,
    position_PH: Tensor,
    segment_GH: Tensor,
    weight_H: Tensor,
    shift_H: Tensor,
    ids_T: Tensor,
    positions_T: Tensor,
    segments_T: Tensor,
    *,
    epsilon: float,
    dropout: Dropout | None,
) -> Tensor:
    """The equation above, [T, H] in the dtype of `word_VH`; indices are int64."""
    dtype = torch.promote_types(word_VH.dtype, torch.float32)
    z_TH = F.embedding(ids_T, word_VH, sparse=True).to(dtype)
    z_TH = z_TH + position_PH.to(dtype)[positions_T] + segment_GH.to(dtype)[segments_T]
    y_TH = F.layer_norm(z_TH, z_TH.shape[1:], weight_H.to(dtype), shift_H.to(dtype), epsilon)
    if dropout is not None:
        y_TH = y_TH * (keep_hidden(dropout, y_TH.shape[1]) * dropout.scale).to(dtype)
    return y_TH.to(word_VH.dtype)


@jit(do_not_specialize=["key", "threshold"])
def _forward_kernel(
    word,  # [V, H]
    position,  # [P, H]
    segment,  # [G, H]
    weight,  # [H]
    shift,  # [H]
    ids,  # int64 [T]
    positions,  # int64 [T]
    segments,  # int64 [T]
    z,  # [T, H]
    y,  # [T, H]
    mean,  # fp32 [T]
    rstd,  # fp32 [T]
    samples,  # int32 [T]
    drop_positions,  # int32 [T]
    key,
    threshold,
    scale,
    epsilon,
    num_columns,
    DROPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < num_columns
    value = load_row(word, tl.load(ids + row), columns, num_columns)
    value += load_row(position, tl.load(positions + row), columns, num_columns)
    value += load_row(segment, tl.load(segments + row), columns, num_columns)
    xhat, row_mean, row_rstd = normalise(value, columns, num_columns, epsilon)
    out = xhat * load_row(weight, 0, columns, num_columns) + load_row(shift, 0, columns, num_columns)
    if DROPS:
        out *= keep_scale(row, samples, drop_positions, key, threshold, scale, BLOCK)
    tl.store(z + row * num_columns + columns, value.to(z.dtype.element_ty), mask=inside)
    tl.store(y + row * num_columns + columns, out.to(y.dtype.element_ty), mask=inside)
    tl.store(mean + row, row_mean)
    tl.store(rstd + row, row_rstd)


@jit(do_not_specialize=["key", "threshold"])
def _backward_kernel(
    z,  # [T, H]
    weight,  # [H]
    mean,  # fp32 [T]
    rstd,  # fp32 [T]
    dy,  # [T, H]
    dz,  # [T, H]
    partial,  # fp32 [2, programs, H]: of weight and shift
    samples,  # int32 [T]
    drop_positions,  # int32 [T]
    key,
    threshold,
    scale,
    num_rows,
    num_columns,
    DROPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    program, programs = tl.program_id(0).to(tl.int64), tl.num_programs(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < num_columns
    weights = load_row(weight, 0, columns, num_columns)
    of_weight = tl.zeros([BLOCK], dtype=tl.float32)
    of_shift = tl.zeros([BLOCK], dtype=tl.float32)
    for row in range(program, num_rows, programs):
        upstream = load_row(dy, row, columns, num_columns)
        if DROPS:
            upstream *= keep_scale(row, samples, drop_positions, key, threshold, scale, BLOCK)
        row_rstd = tl.load(rstd + row)
        xhat = tl.where(inside, (load_row(z, row, columns, num_columns) - tl.load(mean + row)) * row_rstd, 0.0)
        gradient = gradient_of_row(xhat, upstream, weights, row_rstd, num_columns)
        of_weight += upstream * xhat
        of_shift += upstream
        tl.store(dz + row * num_columns + columns, gradient.to(dz.dtype.element_ty), mask=inside)
    at = partial + program * num_columns + columns
    tl.store(at, of_weight, mask=inside)
    tl.store(at + programs * num_columns, of_shift, mask=inside)


class _Triton:
    @staticmethod
    def forward(
        tables: list[Tensor], indices: list[Tensor], epsilon: float, dropout: Dropout | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """y, z, mean and rstd."""
        rows, hidden = indices[0].numel(), tables[0].shape[1]
        y, z = tables[0].new_empty(rows, hidden), tables[0].new_empty(rows, hidden)
        mean, rstd = torch.empty(2, rows, dtype=torch.float32, device=z.device)
        block, warps = block_of(hidden)
        if rows > 0:
            key, threshold, scale, samples, positions = masks_of(dropout, mean)
            _forward_kernel[(rows,)](
                *(*tables, *indices, z, y, mean, rstd, samples, positions, key, threshold, scale, epsilon, hidden),
                DROPS=dropout is not None,
                BLOCK=block,
                num_warps=warps,
            )
        return y, z, mean, rstd

    @staticmethod
    def backward(
        z: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor, dy: Tensor, dropout: Dropout | None
    ) -> tuple[Tensor, Tensor]:
        """dz, and the gradients of weight and shift, fp32 [2, H]."""
        (rows, hidden), dz = z.shape, torch.empty_like(z)
        block, warps = block_of(hidden)
        partial = torch.empty(2, row_programs(rows), hidden, dtype=torch.float32, device=z.device)
        if rows > 0:
            key, threshold, scale, samples, positions = masks_of(dropout, mean)
            _backward_kernel[(row_programs(rows),)](
                *(z, weight, mean, rstd, dy, dz, partial, samples, positions, key, threshold, scale, rows, hidden),
                DROPS=dropout is not None,
                BLOCK=block,
                num_warps=warps,
            )
        return dz, partial.sum(1)


class _Native:
    @staticmethod
    def forward(
        tables: list[Tensor], indices: list[Tensor], epsilon: float, dropout: Dropout | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """y, z, mean and rstd."""
        rows, hidden, suffix = indices[0].numel(), tables[0].shape[1], native_suffix(tables[0].dtype)
        y, z = tables[0].new_empty(rows, hidden), tables[0].new_empty(rows, hidden)
        mean, rstd = torch.empty(2, rows)
        native.call(
            f"embedding_layer_norm_forward_{suffix}",
            *(*tables, *indices, z, y, mean, rstd, rows, hidden, epsilon),
            *native.masks(dropout),
        )
        return y, z, mean, rstd

    @staticmethod
    def backward(
        z: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor, dy: Tensor, dropout: Dropout | None
    ) -> tuple[Tensor, Tensor]:
        """dz, and the gradients of weight and shift, fp32 [2, H]."""
        (rows, hidden), dz = z.shape, torch.empty_like(z)
        partial = torch.empty(divide_up(rows, BLOCK_ROWS), 2, hidden)
        native.call(
            f"embedding_layer_norm_backward_{native_suffix(z.dtype)}",
            *(z, weight, mean, rstd, dy, dz, partial, rows, hidden, BLOCK_ROWS),
            *native.masks(dropout),
        )
        return dz, partial.sum(0)


class _EmbeddingLayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, launch: Any, epsilon: float, dropout: Dropout | None, *tensors: Tensor) -> Tensor:
        y, *saved = launch.forward(list(tensors[:5]), list(tensors[5:]), epsilon, dropout)
        ctx.save_for_backward(saved[0], tensors[3], *saved[1:], *tensors[5:])
        ctx.launch, ctx.dropout, ctx.rows = launch, dropout, [table.shape[0] for table in tensors[:3]]
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        z, weight, mean, rstd, ids, positions, segments = ctx.saved_tensors
        dz, sums_2H = ctx.launch.backward(z, weight, mean, rstd, dy.contiguous(), ctx.dropout)
        words, num_positions, num_segments = ctx.rows
        dword = torch.sparse_coo_tensor(ids[None], dz, (words, dz.shape[1]), check_invariants=False)
        dposition = summed_by(positions, dz, num_positions)
        dsegment = summed_by(segments, dz, num_segments)
        return (None, None, None, dword, dposition, dsegment, *sums_2H.to(dy.dtype), None, None, None)


def summed_by(index_T: Tensor, rows_TH: Tensor, count: int) -> Tensor:
    """[count, H]: the sum of the rows with each index, added up in fp32 and in one order."""
    sums = torch.zeros(count, rows_TH.shape[1], dtype=torch.float32, device=rows_TH.device)
    if rows_TH.is_cuda:  # sorts, and adds up without atomics
        sums.index_put_((index_T,), rows_TH.float(), accumulate=True)
    else:
        sums.index_add_(0, index_T, rows_TH.float())
    return sums.to(rows_TH.dtype)


def _call(
    launch: Any, tables: list[Tensor], indices: list[Tensor], *, epsilon: float, dropout: Dropout | None
) -> Tensor:
    word = tables[0]
    if word.dim() != 2:
        raise ValueError(f"{NAME}: word_VH has shape {tuple(word.shape)}, expected [vocabulary, hidden]")
    hidden, tokens = word.shape[1], indices[0].numel()
    check_shapes(
        NAME,
        word.dtype,
        position_PH=(tables[1], (tables[1].shape[0], hidden)),
        segment_GH=(tables[2], (tables[2].shape[0], hidden)),
        weight_H=(tables[3], (hidden,)),
        shift_H=(tables[4], (hidden,)),
    )
    names = ("ids_T", "positions_T", "segments_T")
    check_indices(NAME, **{name: (index, tokens) for name, index in zip(names, indices, strict=True)})
    check_dropout(NAME, dropout, tokens)
    return _EmbeddingLayerNorm.apply(launch, epsilon, dropout, *(x.contiguous() for x in tables + indices))


def embedding_layer_norm_triton(
    word_VH: Tensor,
    position_PH: Tensor,
    segment_GH: Tensor,
    weight_H: Tensor,
    shift_H: Tensor,
    ids_T: Tensor,
    positions_T: Tensor,
    segments_T: Tensor,
    *,
    epsilon: float,
    dropout: Dropout | None,
) -> Tensor:
    """The reference's values from Triton. ValueError on shapes or dtypes that do not go together; Unsupported for rows
    too long for a block."""
    tables, indices = [word_VH, position_PH, segment_GH, weight_H, shift_H], [ids_T, positions_T, segments_T]
    return _call(_Triton, tables, indices, epsilon=epsilon, dropout=dropout)


def embedding_layer_norm_native(
    word_VH: Tensor,
    position_PH: Tensor,
    segment_GH: Tensor,
    weight_H: Tensor,
    shift_H: Tensor,
    ids_T: Tensor,
    positions_T: Tensor,
    segments_T: Tensor,
    *,
    epsilon: float,
    dropout: Dropout | None,
) -> Tensor:
    """The reference's values from C++. ValueError as above; Unsupported in fp16."""
    tables, indices = [word_VH, position_PH, segment_GH, weight_H, shift_H], [ids_T, positions_T, segments_T]
    return _call(_Native, tables, indices, epsilon=epsilon, dropout=dropout)


OPERATIONS = {
    NAME: {
        "reference": embedding_layer_norm_reference,
        "native": embedding_layer_norm_native,
        "triton": embedding_layer_norm_triton,
        "compiled": compiled(embedding_layer_norm_reference),
    }
}


def aot_cases() -> list[AotCase]:
    """Forward and backward of BERT-Large, bf16."""
    block, warps = block_of(1024)
    masks = {"samples": "*i32", "drop_positions": "*i32", "key": "i64", "threshold": "i32", "scale": "fp32"}
    tables = dict.fromkeys(("word", "position", "segment", "weight", "shift", "z", "y"), "*bf16")
    indices = dict.fromkeys(("ids", "positions", "segments"), "*i64")
    statistics = {"mean": "*fp32", "rstd": "*fp32"}
    forward = tables | indices | statistics | masks | {"epsilon": "fp32", "num_columns": "i32"}
    gradients = dict.fromkeys(("z", "weight", "dy", "dz"), "*bf16") | {"partial": "*fp32"}
    backward = gradients | statistics | masks | {"num_rows": "i32", "num_columns": "i32"}
    flags = {"DROPS": True, "BLOCK": block}
    aligned = ("num_columns",)
    return [
        AotCase(f"{NAME} forward", _forward_kernel, forward, flags, warps, divisible_by_16=aligned),
        AotCase(f"{NAME} backward", _backward_kernel, backward, flags, warps, divisible_by_16=aligned),
    ]
