"""Bias, dropout, residual and LayerNorm, all but the product behind a linear layer.

    z = residual + drop(x + bias);   y = LayerNorm(z) weight + shift          (kernels/layer_norm.py)
    dresidual = dz;   dx = drop(dz);   dbias = sum of dx over the rows

Backward goes over the rows once for all five gradients. z is kept in the dtype of x, the statistics in fp32, masks not
at all. Without bias and residual it is a plain LayerNorm.

Legend: R rows, H hidden, P row programs.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from bert_mlperf.kernels import native
from bert_mlperf.kernels.aot import AotCase
from bert_mlperf.kernels.checks import check_shapes, native_suffix
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

NAME = "dropout_add_layer_norm"


def dropout_add_layer_norm_reference(
    x_RH: Tensor,
    bias_H: Tensor | None,
    residual_RH: Tensor | None,
    weight_H: Tensor,
    shift_H: Tensor,
    *,
    epsilon: float,
    dropout: Dropout | None,
) -> Tensor:
    """The equation above, [R, H] in the dtype of `x_RH`."""
    dtype = torch.promote_types(x_RH.dtype, torch.float32)
    z_RH = x_RH.to(dtype)
    if bias_H is not None:
        z_RH = z_RH + bias_H.to(dtype)
    if dropout is not None:
        z_RH = z_RH * (keep_hidden(dropout, z_RH.shape[1]) * dropout.scale).to(dtype)
    if residual_RH is not None:
        z_RH = z_RH + residual_RH.to(dtype)
    return F.layer_norm(z_RH, z_RH.shape[1:], weight_H.to(dtype), shift_H.to(dtype), epsilon).to(x_RH.dtype)


@jit(do_not_specialize=["key", "threshold"])
def _forward_kernel(
    x,  # [R, H]
    bias,  # [H]
    residual,  # [R, H]
    weight,  # [H]
    shift,  # [H]
    z,  # [R, H]
    y,  # [R, H]
    mean,  # fp32 [R]
    rstd,  # fp32 [R]
    samples,  # int32 [R]
    positions,  # int32 [R]
    key,
    threshold,
    scale,
    epsilon,
    num_columns,
    HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    DROPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < num_columns
    value = load_row(x, row, columns, num_columns)
    if HAS_BIAS:
        value += load_row(bias, 0, columns, num_columns)
    if DROPS:
        value *= keep_scale(row, samples, positions, key, threshold, scale, BLOCK)
    if HAS_RESIDUAL:
        value += load_row(residual, row, columns, num_columns)
    xhat, row_mean, row_rstd = normalise(value, columns, num_columns, epsilon)
    out = xhat * load_row(weight, 0, columns, num_columns) + load_row(shift, 0, columns, num_columns)
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
    dx,  # [R, H]
    dresidual,  # [R, H]
    partial,  # fp32 [3, P, H]: of bias, weight and shift
    samples,  # int32 [R]
    positions,  # int32 [R]
    key,
    threshold,
    scale,
    num_rows,
    num_columns,
    HAS_RESIDUAL: tl.constexpr,
    DROPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    program, programs = tl.program_id(0).to(tl.int64), tl.num_programs(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < num_columns
    weights = load_row(weight, 0, columns, num_columns)
    of_bias = tl.zeros([BLOCK], dtype=tl.float32)
    of_weight = tl.zeros([BLOCK], dtype=tl.float32)
    of_shift = tl.zeros([BLOCK], dtype=tl.float32)
    for row in range(program, num_rows, programs):
        upstream = load_row(dy, row, columns, num_columns)
        row_rstd = tl.load(rstd + row)
        xhat = tl.where(inside, (load_row(z, row, columns, num_columns) - tl.load(mean + row)) * row_rstd, 0.0)
        gradient = gradient_of_row(xhat, upstream, weights, row_rstd, num_columns)
        of_weight += upstream * xhat
        of_shift += upstream
        if HAS_RESIDUAL:
            tl.store(dresidual + row * num_columns + columns, gradient.to(dresidual.dtype.element_ty), mask=inside)
        if DROPS:
            gradient *= keep_scale(row, samples, positions, key, threshold, scale, BLOCK)
        of_bias += gradient
        tl.store(dx + row * num_columns + columns, gradient.to(dx.dtype.element_ty), mask=inside)
    at = partial + program * num_columns + columns
    tl.store(at, of_bias, mask=inside)
    tl.store(at + programs * num_columns, of_weight, mask=inside)
    tl.store(at + 2 * programs * num_columns, of_shift, mask=inside)


class _Triton:
    @staticmethod
    def forward(
        x: Tensor,
        bias: Tensor | None,
        residual: Tensor | None,
        weight: Tensor,
        shift: Tensor,
        epsilon: float,
        dropout: Dropout | None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """y, z, mean and rstd."""
        (rows, hidden), (y, z) = x.shape, (torch.empty_like(x), torch.empty_like(x))
        mean, rstd = torch.empty(2, rows, dtype=torch.float32, device=x.device)
        block, warps = block_of(hidden)
        if rows > 0:
            key, threshold, scale, samples, positions = masks_of(dropout, mean)
            _forward_kernel[(rows,)](
                *(x, x if bias is None else bias, x if residual is None else residual, weight, shift, z, y, mean, rstd),
                *(samples, positions, key, threshold, scale, epsilon, hidden),
                HAS_BIAS=bias is not None,
                HAS_RESIDUAL=residual is not None,
                DROPS=dropout is not None,
                BLOCK=block,
                num_warps=warps,
            )
        return y, z, mean, rstd

    @staticmethod
    def backward(
        z: Tensor,
        weight: Tensor,
        mean: Tensor,
        rstd: Tensor,
        dy: Tensor,
        dropout: Dropout | None,
        has_residual: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """dx, dresidual (undefined without residual) and the gradients of bias, weight and shift, fp32 [3, H]."""
        (rows, hidden), dx = z.shape, torch.empty_like(z)
        dresidual = torch.empty_like(z) if has_residual else dx
        block, warps = block_of(hidden)
        partial = torch.empty(3, row_programs(rows), hidden, dtype=torch.float32, device=z.device)
        if rows > 0:
            key, threshold, scale, samples, positions = masks_of(dropout, mean)
            _backward_kernel[(row_programs(rows),)](
                *(z, weight, mean, rstd, dy, dx, dresidual, partial, samples, positions, key, threshold, scale),
                *(rows, hidden),
                HAS_RESIDUAL=has_residual,
                DROPS=dropout is not None,
                BLOCK=block,
                num_warps=warps,
            )
        return dx, dresidual, partial.sum(1)


class _Native:
    @staticmethod
    def forward(
        x: Tensor,
        bias: Tensor | None,
        residual: Tensor | None,
        weight: Tensor,
        shift: Tensor,
        epsilon: float,
        dropout: Dropout | None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """y, z, mean and rstd."""
        suffix, (y, z) = native_suffix(x.dtype), (torch.empty_like(x), torch.empty_like(x))
        mean, rstd = torch.empty(2, x.shape[0])
        native.call(
            f"dropout_add_layer_norm_forward_{suffix}",
            *(x, bias, residual, weight, shift, z, y, mean, rstd, *x.shape, epsilon),
            *native.masks(dropout),
        )
        return y, z, mean, rstd

    @staticmethod
    def backward(
        z: Tensor,
        weight: Tensor,
        mean: Tensor,
        rstd: Tensor,
        dy: Tensor,
        dropout: Dropout | None,
        has_residual: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """dx, dresidual (undefined without residual) and the gradients of bias, weight and shift, fp32 [3, H]."""
        (rows, hidden), dx = z.shape, torch.empty_like(z)
        dresidual = torch.empty_like(z) if has_residual else None
        partial = torch.empty(divide_up(rows, BLOCK_ROWS), 3, hidden)
        native.call(
            f"dropout_add_layer_norm_backward_{native_suffix(z.dtype)}",
            *(z, weight, mean, rstd, dy, dx, dresidual, partial, rows, hidden, BLOCK_ROWS),
            *native.masks(dropout),
        )
        return dx, dx if dresidual is None else dresidual, partial.sum(0)


class _DropoutAddLayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        bias: Tensor | None,
        residual: Tensor | None,
        weight: Tensor,
        shift: Tensor,
        epsilon: float,
        dropout: Dropout | None,
        launch: Any,
    ) -> Tensor:
        y, z, mean, rstd = launch.forward(x, bias, residual, weight, shift, epsilon, dropout)
        ctx.save_for_backward(z, weight, mean, rstd)
        ctx.dropout, ctx.launch, ctx.has_bias, ctx.has_residual = (
            dropout,
            launch,
            bias is not None,
            residual is not None,
        )
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        dx, dresidual, sums_3H = ctx.launch.backward(*ctx.saved_tensors, dy.contiguous(), ctx.dropout, ctx.has_residual)
        dbias, dweight, dshift = sums_3H.to(dy.dtype)
        return (
            dx,
            dbias if ctx.has_bias else None,
            dresidual if ctx.has_residual else None,
            *(dweight, dshift, None, None, None),
        )


def _call(
    launch: Any,
    x_RH: Tensor,
    bias_H: Tensor | None,
    residual_RH: Tensor | None,
    weight_H: Tensor,
    shift_H: Tensor,
    epsilon: float,
    dropout: Dropout | None,
) -> Tensor:
    if x_RH.dim() != 2:
        raise ValueError(f"{NAME}: x_RH has shape {tuple(x_RH.shape)}, expected [rows, hidden]")
    rows, hidden = x_RH.shape
    check_shapes(
        NAME,
        x_RH.dtype,
        bias_H=(bias_H, (hidden,)),
        residual_RH=(residual_RH, (rows, hidden)),
        weight_H=(weight_H, (hidden,)),
        shift_H=(shift_H, (hidden,)),
    )
    check_dropout(NAME, dropout, rows)
    tensors = [x if x is None else x.contiguous() for x in (x_RH, bias_H, residual_RH, weight_H, shift_H)]
    return _DropoutAddLayerNorm.apply(*tensors, epsilon, dropout, launch)


def dropout_add_layer_norm_triton(
    x_RH: Tensor,
    bias_H: Tensor | None,
    residual_RH: Tensor | None,
    weight_H: Tensor,
    shift_H: Tensor,
    *,
    epsilon: float,
    dropout: Dropout | None,
) -> Tensor:
    """The reference's values from Triton. ValueError on shapes or dtypes that do not go together; Unsupported for rows
    too long for a block."""
    return _call(_Triton, x_RH, bias_H, residual_RH, weight_H, shift_H, epsilon, dropout)


def dropout_add_layer_norm_native(
    x_RH: Tensor,
    bias_H: Tensor | None,
    residual_RH: Tensor | None,
    weight_H: Tensor,
    shift_H: Tensor,
    *,
    epsilon: float,
    dropout: Dropout | None,
) -> Tensor:
    """The reference's values from C++. ValueError as above; Unsupported in fp16."""
    return _call(_Native, x_RH, bias_H, residual_RH, weight_H, shift_H, epsilon, dropout)


OPERATIONS = {
    NAME: {
        "reference": dropout_add_layer_norm_reference,
        "native": dropout_add_layer_norm_native,
        "triton": dropout_add_layer_norm_triton,
        "compiled": compiled(dropout_add_layer_norm_reference),
    }
}


def aot_cases() -> list[AotCase]:
    """Forward and backward of an encoder layer of BERT-Large, bf16."""
    block, warps = block_of(1024)
    masks = {"samples": "*i32", "positions": "*i32", "key": "i64", "threshold": "i32", "scale": "fp32"}
    values = dict.fromkeys(("x", "bias", "residual", "weight", "shift", "z", "y"), "*bf16")
    statistics = {"mean": "*fp32", "rstd": "*fp32"}
    forward = values | statistics | masks | {"epsilon": "fp32", "num_columns": "i32"}
    gradients = dict.fromkeys(("z", "weight", "dy", "dx", "dresidual"), "*bf16") | {"partial": "*fp32"}
    backward = gradients | statistics | masks | {"num_rows": "i32", "num_columns": "i32"}
    flags = {"HAS_RESIDUAL": True, "DROPS": True, "BLOCK": block}
    aligned = ("num_columns",)
    return [
        AotCase(
            f"{NAME} forward", _forward_kernel, forward, {"HAS_BIAS": True} | flags, warps, divisible_by_16=aligned
        ),
        AotCase(f"{NAME} backward", _backward_kernel, backward, flags, warps, divisible_by_16=aligned),
    ]
