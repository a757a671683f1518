"""What the two LayerNorm kernels share: the arithmetic of a row, and backward.

    y = weight xhat + shift,  xhat = (z - mean) rstd,  rstd = 1 / sqrt(variance + epsilon)
    dz = rstd (g - mean(g) - xhat mean(g xhat)),  g = weight dy
    dweight = sum of dy xhat over the rows,  dshift = sum of dy

Statistics are fp32, the variance is that of the deviations from the mean.

Dropout acts in front of the LayerNorm, on what joins the residual, or behind it, on y. Backward goes over the rows
once and gives dx, in front of the dropout, with its sum over the rows, and dz for the residual.

Legend: R rows, H hidden, P row programs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bert_mlperf.kernels import native
from bert_mlperf.kernels.aot import AotCase
from bert_mlperf.kernels.checks import native_suffix
from bert_mlperf.kernels.dropout import Dropout, keep_tile, triton_masks
from bert_mlperf.kernels.jit import divide_up, jit, next_power_of_2, tl
from bert_mlperf.kernels.unsupported import Unsupported

MOST_HIDDEN = 8192  # of one block
ROW_PROGRAMS = 512  # at most, of backward: each has a row of partial sums
BLOCK_ROWS = 64  # of the C++ backward


@dataclass(frozen=True)
class Path:
    """One implementation of a LayerNorm kernel."""

    forward: Callable[..., None]
    backward: Callable[..., tuple[Tensor, Tensor | None, Tensor]]


@dataclass(frozen=True)
class Normalised:
    """What forward fills: z and y in the dtype of the inputs [R, H], mean and rstd in fp32 [R]."""

    z: Tensor
    y: Tensor
    mean: Tensor
    rstd: Tensor

    @classmethod
    def like(cls, table: Tensor, rows: int) -> "Normalised":
        z, y = (table.new_empty(rows, table.shape[1]) for _ in range(2))
        mean, rstd = torch.empty(2, rows, dtype=torch.float32, device=table.device)
        return cls(z, y, mean, rstd)

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.z, self.y, self.mean, self.rstd


def block_of(hidden: int) -> dict[str, int]:
    """Columns of a block that holds a row, and warps. Unsupported above MOST_HIDDEN."""
    if hidden > MOST_HIDDEN:
        raise Unsupported(f"hidden size {hidden:,} is above {MOST_HIDDEN:,}")
    block = max(128, next_power_of_2(hidden))
    return {"BLOCK": block, "num_warps": min(8, max(1, block // 256))}


@jit
def load_row(pointer, row, columns, num_columns):
    """Row `row` of a matrix in fp32, 0 beyond its columns."""
    return tl.load(pointer + row * num_columns + columns, mask=columns < num_columns, other=0).to(tl.float32)


@jit
def keep_scale(row, samples, positions, key, threshold, scale, BLOCK: tl.constexpr):
    """0 or `scale` for each column of a row."""
    zero = tl.zeros([1, 1], dtype=tl.int32)
    groups = tl.arange(0, BLOCK // 8)[None, :]
    keep = keep_tile(key, groups, zero + tl.load(positions + row), zero + tl.load(samples + row), 0, threshold)
    return tl.where(tl.reshape(keep, [BLOCK]), scale, 0.0)


@jit
def normalise(z, columns, num_columns, epsilon):
    """xhat, mean and rstd of a row."""
    mean = tl.sum(z, axis=0) / num_columns
    deviation = tl.where(columns < num_columns, z - mean, 0.0)
    rstd = 1.0 / tl.sqrt(tl.sum(deviation * deviation, axis=0) / num_columns + epsilon)
    return deviation * rstd, mean, rstd


@jit
def gradient_of_row(xhat, dy, weight, rstd, num_columns):
    """dz; dy and weight are 0 beyond the columns."""
    g = dy * weight
    return rstd * (g - tl.sum(g, axis=0) / num_columns - xhat * (tl.sum(g * xhat, axis=0) / num_columns))


@jit
def store_row(value, out, row_mean, row_rstd, row, columns, num_columns, z, y, mean, rstd):
    """What forward keeps of a row, and its output."""
    inside = columns < num_columns
    tl.store(z + row * num_columns + columns, value.to(z.dtype.element_ty), mask=inside)
    tl.store(y + row * num_columns + columns, out.to(y.dtype.element_ty), mask=inside)
    tl.store(mean + row, row_mean)
    tl.store(rstd + row, row_rstd)


@jit(do_not_specialize=["key", "threshold"])
def _backward_kernel(
    z,  # [R, H]
    weight,  # [H]
    mean,  # fp32 [R]
    rstd,  # fp32 [R]
    dy,  # [R, H]
    dx,  # [R, H]: in front of the dropout; behind it, where that acts on y
    dresidual,  # [R, H], or None
    partial,  # fp32 [3, P, H]: sums of dx, and of the gradients of weight and shift
    samples,  # int32 [R], None without dropout
    positions,  # int32 [R], None without dropout
    key,
    threshold,
    scale,
    num_rows,
    num_columns,
    DROPS_OUTPUT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    program, programs = tl.program_id(0).to(tl.int64), tl.num_programs(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < num_columns
    weights = load_row(weight, 0, columns, num_columns)
    of_dx = tl.zeros([BLOCK], dtype=tl.float32)
    of_weight = tl.zeros([BLOCK], dtype=tl.float32)
    of_shift = tl.zeros([BLOCK], dtype=tl.float32)
    for row in range(program, num_rows, programs):
        upstream = load_row(dy, row, columns, num_columns)
        if samples is not None:
            factors = keep_scale(row, samples, positions, key, threshold, scale, BLOCK)
            if DROPS_OUTPUT:
                upstream *= factors
        row_rstd = tl.load(rstd + row)
        xhat = tl.where(inside, (load_row(z, row, columns, num_columns) - tl.load(mean + row)) * row_rstd, 0.0)
        gradient = gradient_of_row(xhat, upstream, weights, row_rstd, num_columns)
        of_weight += upstream * xhat
        of_shift += upstream
        if dresidual is not None:
            tl.store(dresidual + row * num_columns + columns, gradient.to(dresidual.dtype.element_ty), mask=inside)
        if samples is not None:
            if not DROPS_OUTPUT:
                gradient *= factors
        of_dx += gradient
        tl.store(dx + row * num_columns + columns, gradient.to(dx.dtype.element_ty), mask=inside)
    at = partial + program * num_columns + columns
    tl.store(at, of_dx, mask=inside)
    tl.store(at + programs * num_columns, of_weight, mask=inside)
    tl.store(at + 2 * programs * num_columns, of_shift, mask=inside)


def backward_triton(
    z: Tensor,
    weight: Tensor,
    mean: Tensor,
    rstd: Tensor,
    dy: Tensor,
    dropout: Dropout | None,
    *,
    has_residual: bool,
    drops_output: bool,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """dx and dresidual (None without residual) [R, H], and the sums over the rows of dx and of the gradients of weight
    and shift, fp32 [3, H]."""
    (rows, hidden), dx = z.shape, torch.empty_like(z)
    dresidual = torch.empty_like(z) if has_residual else None
    programs = min(rows, ROW_PROGRAMS)  # each takes every so-manieth row
    partial = torch.empty(3, programs, hidden, dtype=torch.float32, device=z.device)
    if rows > 0:
        _backward_kernel[(programs,)](
            *(z, weight, mean, rstd, dy, dx, dresidual, partial, *triton_masks(dropout), rows, hidden),
            DROPS_OUTPUT=drops_output,
            **block_of(hidden),
        )
    return dx, dresidual, partial.sum(1)


def backward_native(
    z: Tensor,
    weight: Tensor,
    mean: Tensor,
    rstd: Tensor,
    dy: Tensor,
    dropout: Dropout | None,
    *,
    has_residual: bool,
    drops_output: bool,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """The same from C++."""
    (rows, hidden), dx = z.shape, torch.empty_like(z)
    dresidual = torch.empty_like(z) if has_residual else None
    partial = torch.empty(divide_up(rows, BLOCK_ROWS), 3, hidden, dtype=torch.float32)
    native.call(
        f"layer_norm_backward_{native_suffix(z.dtype)}",
        *(z, weight, mean, rstd, dy, dx, dresidual, partial, rows, hidden, BLOCK_ROWS, drops_output),
        *native.masks(dropout),
    )
    return dx, dresidual, partial.sum(0)


MASKS = {"samples": "*i32", "positions": "*i32", "key": "i64", "threshold": "i32", "scale": "fp32"}  # of AotCase


def aot_case(name: str, function: Any, tensors: tuple[str, ...], others: dict[str, str], **constants: Any) -> AotCase:
    """A kernel for rows of BERT-Large in bf16 with dropout."""
    statistics = {"mean": "*fp32", "rstd": "*fp32", "num_columns": "i32"}
    block = block_of(1024)
    return AotCase(
        name,
        function,
        dict.fromkeys(tensors, "*bf16") | statistics | MASKS | others,
        {"BLOCK": block["BLOCK"]} | constants,
        block["num_warps"],
        divisible_by_16=("num_columns",),
    )


def aot_case_of_backward(kernel: str, *, has_residual: bool, drops_output: bool) -> AotCase:
    """Backward as `kernel` calls it."""
    tensors = ("z", "weight", "dy", "dx", *(["dresidual"] if has_residual else []))
    others = {"partial": "*fp32", "num_rows": "i32"}
    constants = {"DROPS_OUTPUT": drops_output} | ({} if has_residual else {"dresidual": None})
    return aot_case(f"{kernel} backward", _backward_kernel, tensors, others, **constants)
