"""Bias and GELU in its tanh form.

    u = x + bias;    y = u/2 (1 + tanh(c (u + a u^3))) = u s,    s = sigmoid(2 c (u + a u^3))
    c = sqrt(2 / pi),  a = 0.044715
    dx = dy (s + u s (1 - s) 2 c (1 + 3 a u^2));    dbias = sum of dx over the rows

cublasLt can add the bias and apply GELU behind the product that makes x, and undo both in front of the product of
backward; torch offers the first (torch.ops.aten._addmm_activation, without keeping x) and not the second, so the pass
over memory that it would save in forward is spent here.

Legend: R rows, F feed-forward.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from bert_mlperf.kernels import native
from bert_mlperf.kernels.aot import AotCase
from bert_mlperf.kernels.checks import check_shapes, native_suffix
from bert_mlperf.kernels.compiled import compiled
from bert_mlperf.kernels.jit import divide_up, jit, tl

COLUMNS, ROWS = 256, 8  # of a tile
ROW_PROGRAMS = 64  # at most, of backward: each has a row of partial sums
BLOCK_ROWS = 64  # of the C++ backward


def bias_gelu_reference(x_RF: Tensor, bias_F: Tensor) -> Tensor:
    """The equation above, [R, F] in the dtype of `x_RF`."""
    dtype = torch.promote_types(x_RF.dtype, torch.float32)
    return F.gelu(x_RF.to(dtype) + bias_F.to(dtype), approximate="tanh").to(x_RF.dtype)


@jit
def _exponential(u):
    """e with s = 1 / (1 + e) and, without a difference of nearly equal numbers, 1 - s = e s."""
    return tl.exp(tl.minimum(-1.5957691216057308 * (u + 0.044715 * u * u * u), 80.0))


@jit
def _forward_kernel(
    x,  # [R, F]
    bias,  # [F]
    y,  # [R, F]
    num_rows,
    num_columns,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    rows = tl.program_id(1).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = (rows < num_rows)[:, None] & (columns < num_columns)[None, :]
    at = rows[:, None] * num_columns + columns[None, :]
    of_columns = tl.load(bias + columns, mask=columns < num_columns, other=0).to(tl.float32)
    u = tl.load(x + at, mask=inside, other=0).to(tl.float32) + of_columns[None, :]
    tl.store(y + at, (u / (1.0 + _exponential(u))).to(y.dtype.element_ty), mask=inside)


@jit
def _backward_kernel(
    x,  # [R, F]
    bias,  # [F]
    dy,  # [R, F]
    dx,  # [R, F]
    partial,  # fp32 [row programs, F]
    num_rows,
    num_columns,
    rows_each,  # rows of a row program, a multiple of ROWS
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    program = tl.program_id(1).to(tl.int64)
    of_columns = tl.load(bias + columns, mask=columns < num_columns, other=0).to(tl.float32)
    sums = tl.zeros([COLUMNS], dtype=tl.float32)
    for first in range(0, rows_each, ROWS):
        rows = program * rows_each + first + tl.arange(0, ROWS)
        inside = (rows < num_rows)[:, None] & (columns < num_columns)[None, :]
        at = rows[:, None] * num_columns + columns[None, :]
        u = tl.load(x + at, mask=inside, other=0).to(tl.float32) + of_columns[None, :]
        e = _exponential(u)
        s = 1.0 / (1.0 + e)
        slope = s + u * (e * s * s) * 1.5957691216057308 * (1.0 + 0.134145 * u * u)
        gradient = tl.load(dy + at, mask=inside, other=0).to(tl.float32) * slope
        tl.store(dx + at, gradient.to(dx.dtype.element_ty), mask=inside)
        sums += tl.sum(gradient, axis=0)
    tl.store(partial + program * num_columns + columns, sums, mask=columns < num_columns)


def _forward_triton(x_RF: Tensor, bias_F: Tensor) -> Tensor:
    y_RF, (rows, columns) = torch.empty_like(x_RF), x_RF.shape
    if y_RF.numel() > 0:
        grid = (divide_up(columns, COLUMNS), divide_up(rows, ROWS))
        _forward_kernel[grid](x_RF, bias_F, y_RF, rows, columns, ROWS=ROWS, COLUMNS=COLUMNS, num_warps=4)
    return y_RF


def _backward_triton(x_RF: Tensor, bias_F: Tensor, dy_RF: Tensor) -> tuple[Tensor, Tensor]:
    dx_RF, (rows, columns) = torch.empty_like(x_RF), x_RF.shape
    rows_each = divide_up(max(1, divide_up(rows, ROW_PROGRAMS)), ROWS) * ROWS
    programs = divide_up(rows, rows_each)
    partial = torch.empty(programs, columns, dtype=torch.float32, device=x_RF.device)
    if dx_RF.numel() > 0:
        _backward_kernel[(divide_up(columns, COLUMNS), programs)](
            x_RF, bias_F, dy_RF, dx_RF, partial, rows, columns, rows_each, ROWS=ROWS, COLUMNS=COLUMNS, num_warps=4
        )
    return dx_RF, partial.sum(0).to(bias_F.dtype)


def _forward_native(x_RF: Tensor, bias_F: Tensor) -> Tensor:
    y_RF, suffix = torch.empty_like(x_RF), native_suffix(x_RF.dtype)
    native.call(f"bias_gelu_forward_{suffix}", x_RF, bias_F, y_RF, *x_RF.shape)
    return y_RF


def _backward_native(x_RF: Tensor, bias_F: Tensor, dy_RF: Tensor) -> tuple[Tensor, Tensor]:
    dx_RF, suffix, (rows, columns) = torch.empty_like(x_RF), native_suffix(x_RF.dtype), x_RF.shape
    partial = torch.empty(divide_up(rows, BLOCK_ROWS), columns, dtype=torch.float32)
    native.call(f"bias_gelu_backward_{suffix}", x_RF, bias_F, dy_RF, dx_RF, partial, rows, columns, BLOCK_ROWS)
    return dx_RF, partial.sum(0).to(bias_F.dtype)


Forward = Callable[[Tensor, Tensor], Tensor]
Backward = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


class _BiasGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_RF: Tensor, bias_F: Tensor, forward: Forward, backward: Backward) -> Tensor:
        y_RF = forward(x_RF, bias_F)
        ctx.save_for_backward(x_RF, bias_F)
        ctx.launch = backward
        return y_RF

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_RF: Tensor) -> tuple[Tensor | None, ...]:
        dx_RF, dbias_F = ctx.launch(*ctx.saved_tensors, dy_RF.contiguous())
        return dx_RF, dbias_F, None, None


def _call(forward: Forward, backward: Backward, x_RF: Tensor, bias_F: Tensor) -> Tensor:
    """The reference's values. ValueError on shapes or dtypes that do not go together; Unsupported in fp16 from C++."""
    if x_RF.dim() != 2:
        raise ValueError(f"bias_gelu: x_RF has shape {tuple(x_RF.shape)}, expected [rows, columns]")
    check_shapes("bias_gelu", x_RF.dtype, bias_F=(bias_F, (x_RF.shape[1],)))
    return _BiasGelu.apply(x_RF.contiguous(), bias_F.contiguous(), forward, backward)


OPERATIONS = {
    "bias_gelu": {
        "reference": bias_gelu_reference,
        "native": partial(_call, _forward_native, _backward_native),
        "triton": partial(_call, _forward_triton, _backward_triton),
        "compiled": compiled(bias_gelu_reference),
    }
}


def aot_cases() -> list[AotCase]:
    """Forward and backward of any width, bf16."""
    tiles = {"ROWS": ROWS, "COLUMNS": COLUMNS}
    counts = {"num_rows": "i32", "num_columns": "i32"}
    forward = {"x": "*bf16", "bias": "*bf16", "y": "*bf16"} | counts
    backward = {"x": "*bf16", "bias": "*bf16", "dy": "*bf16", "dx": "*bf16", "partial": "*fp32"} | counts
    return [
        AotCase("bias_gelu forward", _forward_kernel, forward, tiles, divisible_by_16=("num_columns",)),
        AotCase(
            "bias_gelu backward",
            _backward_kernel,
            backward | {"rows_each": "i32"},
            tiles,
            divisible_by_16=("num_columns",),
        ),
    ]
