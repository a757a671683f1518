"""What the two LayerNorm kernels share: the arithmetic of a row in Triton, and how many rows a program of backward
takes.

    y = weight xhat + shift,  xhat = (z - mean) rstd,  rstd = 1 / sqrt(variance + epsilon)
    dz = rstd (g - mean(g) - xhat mean(g xhat)),  g = weight dy;   dweight = sum of dy xhat,  dshift = sum of dy over
    the rows

Statistics are fp32, the variance is that of the deviations from the mean.

Legend: R rows, H hidden.
"""

import torch
from torch import Tensor

from bert_mlperf.kernels.dropout import Dropout, keep_tile
from bert_mlperf.kernels.jit import jit, next_power_of_2, tl
from bert_mlperf.kernels.unsupported import Unsupported

MOST_HIDDEN = 8192  # of one block
ROW_PROGRAMS = 512  # at most, of backward: each has a row of partial sums
BLOCK_ROWS = 64  # of the C++ backward


def block_of(hidden: int) -> tuple[int, int]:
    """Columns of a block that holds a row, and warps. Unsupported above MOST_HIDDEN."""
    if hidden > MOST_HIDDEN:
        raise Unsupported(f"hidden size {hidden:,} is above {MOST_HIDDEN:,}")
    block = max(128, next_power_of_2(hidden))
    return block, min(8, max(1, block // 256))


def row_programs(rows: int) -> int:
    """Programs of backward; each takes every so-manieth row."""
    return min(rows, ROW_PROGRAMS)


def masks_of(dropout: Dropout | None, anything: Tensor) -> tuple[int, int, float, Tensor, Tensor]:
    """key, threshold, scale, samples and positions for a kernel; without dropout pointers that it does not read."""
    if dropout is None:
        return 2**62, 0, 1.0, anything, anything
    return dropout.key, dropout.threshold, dropout.scale, dropout.samples_R, dropout.positions_R


def check_dropout(kernel: str, dropout: Dropout | None, rows: int) -> None:
    """ValueError unless there is a sample and a position, int32, for each row."""
    if dropout is None:
        return
    for name, tensor in (("samples_R", dropout.samples_R), ("positions_R", dropout.positions_R)):
        if tuple(tensor.shape) != (rows,) or tensor.dtype != torch.int32:
            raise ValueError(
                f"{kernel}: dropout.{name} is {tensor.dtype} {tuple(tensor.shape)}, expected torch.int32 {(rows,)}"
            )


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
