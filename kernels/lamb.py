"""LAMB on a shard in two passes over its memory: between them the norms of tensors are summed over all shards.

directions (in place; c, a, b, e, d of `numbers`):

    g = c g           m = m + a (g - m)       v = v + b (g^2 - v)
    z = m / (sqrt(v) + e)                     and + d w in adapted tensors; z is written over g
    |w|^2, |z|^2      of what the shard holds of each adapted tensor, 0 for the others

apply: w = w + f z with one factor f a tensor; then w in the model's dtype.

The table (lamb_table.py) says where the tensors lie; what is in none of them (padding) is neither read nor written. A
Triton program, or a turn of an OpenMP loop, does one of its blocks; squares are added up per block and then per tensor,
in one order, the latter in float64. Nothing waits for the device. There is no "compiled": torch.compile would unroll
the reference over hundreds of tensors.

Legend: S elements of the shard, W of the weights (the shard's or the whole buffer's), P of the whole buffer, T tensors,
B blocks, F fields of a block.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from bert_mlperf.kernels import native
from bert_mlperf.kernels.aot import AotCase
from bert_mlperf.kernels.checks import native_suffix
from bert_mlperf.kernels.jit import jit, tl
from bert_mlperf.kernels.lamb_table import ALIGNED, BLOCK, LambTable, check_numbers, check_shard, check_weights

NUM_WARPS = 8
CHUNK = 1024  # blocks whose sums one program adds up at a time
NUMBERS = 5  # c, a, b, e, d


def reference_directions(
    table: LambTable,
    gradient: Tensor,
    weights: Tensor,
    first_moment: Tensor,
    second_moment: Tensor,
    numbers: Tensor,
    *,
    zero_not_finite: bool,
) -> Tensor:
    """Advances the moments [S] and writes the directions over the gradient [S], all fp32. The squares of each tensor,
    float64 [2, T]: |w|^2, of the weights fp32 [W], and |z|^2. `numbers` (float64 [5]) are c, a, b, e, d. With
    `zero_not_finite` what is not finite in c g counts as 0. ValueError if a dtype or a size is wrong."""
    check_numbers(table, NUMBERS, numbers=numbers)
    clip, weight_1, weight_2, epsilon, decay = numbers.to(gradient.dtype).unbind()
    squares = torch.zeros(2, len(table.adapted), dtype=torch.float64, device=gradient.device)
    for piece in table.pieces:
        here = slice(piece.shard_start, piece.shard_start + piece.length)
        g, m, v = gradient[here], first_moment[here], second_moment[here]
        w = weights[piece.weight_start : piece.weight_start + piece.length]
        g.mul_(clip)
        if zero_not_finite:
            g.nan_to_num_(0.0, 0.0, 0.0)
        m.lerp_(g, weight_1)
        v.lerp_(g.square(), weight_2)
        torch.div(m, v.sqrt().add_(epsilon), out=g)
        if table.adapted[piece.tensor]:
            g.addcmul_(w, decay)
            for total, x in zip(squares, (w, g), strict=True):
                total[piece.tensor] += torch.linalg.vector_norm(x, dtype=torch.float64).square()
    return squares


def reference_apply(
    table: LambTable, directions: Tensor, weights: Tensor, factors: Tensor, rounded: Tensor | None = None
) -> None:
    """Adds the directions fp32 [S] times the factors float64 [T] to the weights fp32 [W], and writes these into
    `rounded` (bf16 or fp16 [P]) too, if it is given. ValueError if a dtype or a size is wrong."""
    check_numbers(table, len(table.adapted), factors=factors)
    factors = factors.to(weights.dtype)
    for piece in table.pieces:
        w = weights[piece.weight_start : piece.weight_start + piece.length]
        w.addcmul_(directions[piece.shard_start : piece.shard_start + piece.length], factors[piece.tensor])
        if rounded is not None:
            rounded[piece.buffer_start : piece.buffer_start + piece.length].copy_(w)


def check_directions(
    table: LambTable, gradient: Tensor, weights: Tensor, first_moment: Tensor, second_moment: Tensor, numbers: Tensor
) -> None:
    """ValueError if a dtype or a size is wrong."""
    check_shard(table, gradient=gradient, first_moment=first_moment, second_moment=second_moment)
    check_weights(table, weights)
    check_numbers(table, NUMBERS, numbers=numbers)


def check_apply(table: LambTable, directions: Tensor, weights: Tensor, factors: Tensor, rounded: Tensor | None) -> None:
    """ValueError if a dtype or a size is wrong."""
    check_shard(table, directions=directions)
    check_weights(table, weights, rounded)
    check_numbers(table, len(table.adapted), factors=factors)


# ---- Triton


@jit
def _directions_of_block(
    g, m, v, w, clip, weight_1, weight_2, epsilon, decay, inside, other, ZERO_NOT_FINITE: tl.constexpr
):
    """|w|^2 and |z|^2 of a block; g, m, v, w point to fp32 [BLOCK], `inside` is a mask or None, `other` 0 or None."""
    gradient = tl.load(g, mask=inside, other=other) * clip
    if ZERO_NOT_FINITE:
        gradient = tl.where(tl.abs(gradient) < float("inf"), gradient, 0.0)
    moment = tl.load(m, mask=inside, other=other)
    moment += weight_1 * (gradient - moment)
    square = tl.load(v, mask=inside, other=other)
    square += weight_2 * (gradient * gradient - square)
    weight = tl.load(w, mask=inside, other=other)
    direction = tl.div_rn(moment, tl.sqrt_rn(square) + epsilon) + decay * weight
    tl.store(m, moment, mask=inside)
    tl.store(v, square, mask=inside)
    tl.store(g, direction, mask=inside)
    return tl.sum(weight * weight), tl.sum(direction * direction)


@jit
def _directions_kernel(
    blocks,  # int64 [B, F]
    gradient,  # fp32 [S], becomes the directions
    first_moment,  # fp32 [S]
    second_moment,  # fp32 [S]
    weights,  # fp32 [W]
    numbers,  # fp64 [5]
    sums,  # fp32 [2, B]: squares of each block, 0 where it is not adapted
    num_blocks,
    ZERO_NOT_FINITE: tl.constexpr,
    ALIGN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    block = tl.program_id(0).to(tl.int64)
    row = blocks + 6 * block
    offsets = tl.arange(0, BLOCK)
    at = tl.multiple_of(tl.load(row), ALIGN) + offsets
    w = weights + tl.multiple_of(tl.load(row + 1), ALIGN) + offsets
    length, is_adapted = tl.load(row + 3), tl.load(row + 5) != 0
    clip, weight_1 = tl.load(numbers).to(tl.float32), tl.load(numbers + 1).to(tl.float32)
    weight_2, epsilon = tl.load(numbers + 2).to(tl.float32), tl.load(numbers + 3).to(tl.float32)
    decay = tl.where(is_adapted, tl.load(numbers + 4).to(tl.float32), 0.0)
    g, m, v = gradient + at, first_moment + at, second_moment + at
    if length == BLOCK:  # nearly all: without a mask 16 bytes are loaded at a time
        of_w, of_z = _directions_of_block(
            g, m, v, w, clip, weight_1, weight_2, epsilon, decay, None, None, ZERO_NOT_FINITE
        )
    else:
        of_w, of_z = _directions_of_block(
            g, m, v, w, clip, weight_1, weight_2, epsilon, decay, offsets < length, 0.0, ZERO_NOT_FINITE
        )
    tl.store(sums + block, tl.where(is_adapted, of_w, 0.0))
    tl.store(sums + num_blocks + block, tl.where(is_adapted, of_z, 0.0))


@jit
def _squares_kernel(
    sums,  # fp32 [2, B]
    bounds,  # int64 [T + 1]
    squares,  # fp64 [2, T]
    num_blocks,
    num_tensors,
    CHUNK: tl.constexpr,
):
    """Program (t, i) adds up sum i of the blocks of tensor t."""
    tensor, which = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    at, end = tl.load(bounds + tensor), tl.load(bounds + tensor + 1)
    offsets = tl.arange(0, CHUNK)
    total = tl.zeros([CHUNK], dtype=tl.float64)
    while at < end:
        of_blocks = tl.load(sums + which * num_blocks + at + offsets, mask=at + offsets < end, other=0.0)
        total += of_blocks.to(tl.float64)
        at += CHUNK
    tl.store(squares + which * num_tensors + tensor, tl.sum(total))


@jit
def _apply_to_block(z, w, rounded, factor, inside):
    """z, w and rounded (or None) point to [BLOCK], `inside` is a mask or None."""
    weight = tl.load(w, mask=inside) + factor * tl.load(z, mask=inside)
    tl.store(w, weight, mask=inside)
    if rounded is not None:
        tl.store(rounded, weight.to(rounded.dtype.element_ty), mask=inside)


@jit
def _apply_kernel(
    blocks,  # int64 [B, F]
    directions,  # fp32 [S]
    weights,  # fp32 [W]
    factors,  # fp64 [T]
    rounded,  # fp16 or bf16 [P], or None
    ALIGN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = blocks + 6 * tl.program_id(0).to(tl.int64)
    offsets = tl.arange(0, BLOCK)
    z = directions + tl.multiple_of(tl.load(row), ALIGN) + offsets
    w = weights + tl.multiple_of(tl.load(row + 1), ALIGN) + offsets
    length = tl.load(row + 3)
    factor = tl.load(factors + tl.load(row + 4)).to(tl.float32)
    if rounded is not None:
        rounded += tl.multiple_of(tl.load(row + 2), ALIGN) + offsets
    if length == BLOCK:
        _apply_to_block(z, w, rounded, factor, None)
    else:
        _apply_to_block(z, w, rounded, factor, offsets < length)


def triton_directions(
    table: LambTable,
    gradient: Tensor,
    weights: Tensor,
    first_moment: Tensor,
    second_moment: Tensor,
    numbers: Tensor,
    *,
    zero_not_finite: bool,
) -> Tensor:
    check_directions(table, gradient, weights, first_moment, second_moment, numbers)
    blocks, tensors = table.num_blocks, len(table.adapted)
    sums = torch.empty(2, blocks, dtype=torch.float32, device=gradient.device)
    squares = torch.zeros(2, tensors, dtype=torch.float64, device=gradient.device)
    if blocks > 0:  # a small shard may hold nothing
        _directions_kernel[(blocks,)](
            table.blocks_BF, gradient, first_moment, second_moment, weights, numbers, sums, blocks,
            ZERO_NOT_FINITE=zero_not_finite, ALIGN=_alignment(table), BLOCK=BLOCK, num_warps=NUM_WARPS,
        )  # fmt: skip
        _squares_kernel[(tensors, 2)](sums, table.bounds, squares, blocks, tensors, CHUNK=CHUNK)
    return squares


def triton_apply(
    table: LambTable, directions: Tensor, weights: Tensor, factors: Tensor, rounded: Tensor | None = None
) -> None:
    check_apply(table, directions, weights, factors, rounded)
    if table.num_blocks > 0:
        _apply_kernel[(table.num_blocks,)](
            table.blocks_BF, directions, weights, factors, rounded,
            ALIGN=_alignment(table), BLOCK=BLOCK, num_warps=NUM_WARPS,
        )  # fmt: skip


def _alignment(table: LambTable) -> int:
    return ALIGNED if table.is_aligned else 1


# ---- C++


def native_directions(
    table: LambTable,
    gradient: Tensor,
    weights: Tensor,
    first_moment: Tensor,
    second_moment: Tensor,
    numbers: Tensor,
    *,
    zero_not_finite: bool,
) -> Tensor:
    check_directions(table, gradient, weights, first_moment, second_moment, numbers)
    blocks, tensors = table.num_blocks, len(table.adapted)
    sums = torch.empty(2, blocks, dtype=torch.float64)
    squares = torch.empty(2, tensors, dtype=torch.float64)
    native.call(
        "lamb_directions", table.blocks_BF, blocks, table.bounds, tensors,
        gradient, first_moment, second_moment, weights, numbers, zero_not_finite, sums, squares,
    )  # fmt: skip
    return squares


def native_apply(
    table: LambTable, directions: Tensor, weights: Tensor, factors: Tensor, rounded: Tensor | None = None
) -> None:
    check_apply(table, directions, weights, factors, rounded)
    if rounded is not None:
        native_suffix(rounded.dtype)
    native.call("lamb_apply", table.blocks_BF, table.num_blocks, directions, weights, factors, rounded)


OPERATIONS: dict[str, dict[str, Callable]] = {
    "lamb_directions": {
        "reference": reference_directions,
        "native": native_directions,
        "triton": triton_directions,
    },
    "lamb_apply": {"reference": reference_apply, "native": native_apply, "triton": triton_apply},
}


def aot_cases() -> list[AotCase]:
    """Aligned pieces, as those of BERT-Large are."""
    directions = {"blocks": "*i64", "numbers": "*fp64", "sums": "*fp32", "num_blocks": "i32"} | dict.fromkeys(
        ("gradient", "first_moment", "second_moment", "weights"), "*fp32"
    )
    sizes = {"ALIGN": ALIGNED, "BLOCK": BLOCK}
    squares = {"sums": "*fp32", "bounds": "*i64", "squares": "*fp64", "num_blocks": "i32", "num_tensors": "i32"}
    apply = {"blocks": "*i64", "directions": "*fp32", "weights": "*fp32", "factors": "*fp64", "rounded": "*bf16"}
    return [
        AotCase("lamb directions", _directions_kernel, directions, {"ZERO_NOT_FINITE": False} | sizes, NUM_WARPS),
        AotCase("lamb squares", _squares_kernel, squares, {"CHUNK": CHUNK}),
        AotCase("lamb apply", _apply_kernel, apply, sizes, NUM_WARPS),
    ]
