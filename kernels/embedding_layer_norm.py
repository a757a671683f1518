"""Word, position and segment embeddings, their LayerNorm and dropout.

    z = word[ids] + position[positions] + segment[segments];   y = drop(LayerNorm(z) weight + shift)
    (kernels/layer_norm.py)

The gradient of the word embeddings is sparse, a row for each token: the decoder's dense one, tied to it, is added
elsewhere. Those of positions and segments are added up over the tokens in fp32, in one order.

Legend: T tokens, H hidden, V vocabulary, P positions, G segments.
"""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from bert_mlperf.kernels import native
from bert_mlperf.kernels.aot import AotCase
from bert_mlperf.kernels.checks import check_dropout, check_indices, check_shapes, native_suffix
from bert_mlperf.kernels.compiled import compiled
from bert_mlperf.kernels.dropout import Dropout, keep_hidden, triton_masks
from bert_mlperf.kernels.jit import jit, tl
from bert_mlperf.kernels.layer_norm import (
    Normalised,
    Path,
    aot_case,
    aot_case_of_backward,
    backward_native,
    backward_triton,
    block_of,
    keep_scale,
    load_row,
    normalise,
    store_row,
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
    places,  # int64 [T]: the positions
    segments,  # int64 [T]
    z,  # [T, H]
    y,  # [T, H]
    mean,  # fp32 [T]
    rstd,  # fp32 [T]
    samples,  # int32 [T], None without dropout
    positions,  # int32 [T], None without dropout
    key,
    threshold,
    scale,
    epsilon,
    num_columns,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    value = load_row(word, tl.load(ids + row), columns, num_columns)
    value += load_row(position, tl.load(places + row), columns, num_columns)
    value += load_row(segment, tl.load(segments + row), columns, num_columns)
    xhat, row_mean, row_rstd = normalise(value, columns, num_columns, epsilon)
    out = xhat * load_row(weight, 0, columns, num_columns) + load_row(shift, 0, columns, num_columns)
    if samples is not None:
        out *= keep_scale(row, samples, positions, key, threshold, scale, BLOCK)
    store_row(value, out, row_mean, row_rstd, row, columns, num_columns, z, y, mean, rstd)


def _forward_triton(inputs: tuple[Tensor, ...], found: Normalised, epsilon: float, dropout: Dropout | None) -> None:
    rows, hidden = found.z.shape
    block = block_of(hidden)
    if rows > 0:
        _forward_kernel[(rows,)](*inputs, *found.tensors(), *triton_masks(dropout), epsilon, hidden, **block)


def _forward_native(inputs: tuple[Tensor, ...], found: Normalised, epsilon: float, dropout: Dropout | None) -> None:
    name = f"embedding_layer_norm_forward_{native_suffix(found.z.dtype)}"
    native.call(name, *inputs, *found.tensors(), *found.z.shape, epsilon, *native.masks(dropout))


class _EmbeddingLayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, path: Path, epsilon: float, dropout: Dropout | None, *inputs: Tensor) -> Tensor:
        tables, indices = inputs[:5], inputs[5:]
        found = Normalised.like(tables[0], indices[0].numel())
        path.forward(inputs, found, epsilon, dropout)
        ctx.save_for_backward(found.z, tables[3], found.mean, found.rstd, *indices)
        ctx.path, ctx.dropout, ctx.rows = path, dropout, [table.shape[0] for table in tables[:3]]
        return found.y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        *saved, ids, positions, segments = ctx.saved_tensors
        dz, _, sums_3H = ctx.path.backward(*saved, dy.contiguous(), ctx.dropout, has_residual=False, drops_output=True)
        words, num_positions, num_segments = ctx.rows
        dword = torch.sparse_coo_tensor(ids[None], dz, (words, dz.shape[1]), check_invariants=False)
        dposition = summed_by(positions, dz, num_positions)
        dsegment = summed_by(segments, dz, num_segments)
        return (None, None, None, dword, dposition, dsegment, *sums_3H[1:].to(dy.dtype), None, None, None)


def summed_by(index_T: Tensor, rows_TH: Tensor, count: int) -> Tensor:
    """[count, H]: the sum of the rows with each index, added up in fp32 and in one order."""
    sums = torch.zeros(count, rows_TH.shape[1], dtype=torch.float32, device=rows_TH.device)
    return add_rows(sums, index_T, rows_TH.float()).to(rows_TH.dtype)


def add_rows(table_VH: Tensor, index_T: Tensor, rows_TH: Tensor) -> Tensor:
    """Adds each row to the row of the table that its index names, in place and in one order; the table."""
    if table_VH.is_cuda:  # sorts, and adds up without atomics
        return table_VH.index_put_((index_T,), rows_TH, accumulate=True)
    return table_VH.index_add_(0, index_T, rows_TH)


def _call(
    path: Path,
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
    """The reference's values. ValueError on shapes or dtypes that do not go together; Unsupported in fp16 from C++ and
    for rows too long for a block from Triton."""
    if word_VH.dim() != 2:
        raise ValueError(f"{NAME}: word_VH has shape {tuple(word_VH.shape)}, expected [vocabulary, hidden]")
    hidden, tokens = word_VH.shape[1], ids_T.numel()
    check_shapes(
        NAME,
        word_VH.dtype,
        position_PH=(position_PH, (position_PH.shape[0], hidden)),
        segment_GH=(segment_GH, (segment_GH.shape[0], hidden)),
        weight_H=(weight_H, (hidden,)),
        shift_H=(shift_H, (hidden,)),
    )
    check_indices(
        NAME,
        ids_T=(ids_T, tokens, word_VH.shape[0]),
        positions_T=(positions_T, tokens, position_PH.shape[0]),
        segments_T=(segments_T, tokens, segment_GH.shape[0]),
    )
    check_dropout(NAME, dropout, tokens)
    inputs = (word_VH, position_PH, segment_GH, weight_H, shift_H, ids_T, positions_T, segments_T)
    return _EmbeddingLayerNorm.apply(path, epsilon, dropout, *(x.contiguous() for x in inputs))


OPERATIONS = {
    NAME: {
        "reference": embedding_layer_norm_reference,
        "native": partial(_call, Path(_forward_native, backward_native)),
        "triton": partial(_call, Path(_forward_triton, backward_triton)),
        "compiled": compiled(embedding_layer_norm_reference),
    }
}


def aot_cases() -> list[AotCase]:
    """Forward and backward of BERT-Large, bf16."""
    tensors = ("word", "position", "segment", "weight", "shift", "z", "y")
    others = dict.fromkeys(("ids", "places", "segments"), "*i64") | {"epsilon": "fp32"}
    return [
        aot_case(f"{NAME} forward", _forward_kernel, tensors, others),
        aot_case_of_backward(NAME, has_residual=False, drops_output=True),
    ]
