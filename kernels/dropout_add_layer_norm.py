"""Bias, dropout, residual and LayerNorm, all but the product behind a linear layer.

    z = residual + drop(x + bias);   y = LayerNorm(z) weight + shift          (kernels/layer_norm.py)
    dresidual = dz;   dx = drop(dz);   dbias = sum of dx over the rows

Backward goes over the rows once for all five gradients. z is kept in the dtype of x, the statistics in fp32, masks not
at all. Without bias and residual it is a plain LayerNorm.

Legend: R rows, H hidden.
"""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from bert_mlperf.kernels import native
from bert_mlperf.kernels.aot import AotCase
from bert_mlperf.kernels.checks import check_dropout, check_shapes, native_suffix
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
    bias,  # [H], or None
    residual,  # [R, H], or None
    weight,  # [H]
    shift,  # [H]
    z,  # [R, H]
    y,  # [R, H]
    mean,  # fp32 [R]
    rstd,  # fp32 [R]
    samples,  # int32 [R], None without dropout
    positions,  # int32 [R], None without dropout
    key,
    threshold,
    scale,
    epsilon,
    num_columns,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    value = load_row(x, row, columns, num_columns)
    if bias is not None:
        value += load_row(bias, 0, columns, num_columns)
    if samples is not None:
        value *= keep_scale(row, samples, positions, key, threshold, scale, BLOCK)
    if residual is not None:
        value += load_row(residual, row, columns, num_columns)
    xhat, row_mean, row_rstd = normalise(value, columns, num_columns, epsilon)
    out = xhat * load_row(weight, 0, columns, num_columns) + load_row(shift, 0, columns, num_columns)
    store_row(value, out, row_mean, row_rstd, row, columns, num_columns, z, y, mean, rstd)


def _forward_triton(
    inputs: tuple[Tensor | None, ...], found: Normalised, epsilon: float, dropout: Dropout | None
) -> None:
    rows, hidden = found.z.shape
    block = block_of(hidden)
    if rows > 0:
        _forward_kernel[(rows,)](*inputs, *found.tensors(), *triton_masks(dropout), epsilon, hidden, **block)


def _forward_native(
    inputs: tuple[Tensor | None, ...], found: Normalised, epsilon: float, dropout: Dropout | None
) -> None:
    name = f"dropout_add_layer_norm_forward_{native_suffix(found.z.dtype)}"
    native.call(name, *inputs, *found.tensors(), *found.z.shape, epsilon, *native.masks(dropout))


class _DropoutAddLayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, path: Path, epsilon: float, dropout: Dropout | None, *inputs: Tensor | None) -> Tensor:
        x, bias, residual, weight, _ = inputs
        assert x is not None
        found = Normalised.like(x, x.shape[0])
        path.forward(inputs, found, epsilon, dropout)
        ctx.save_for_backward(found.z, weight, found.mean, found.rstd)
        ctx.path, ctx.dropout, ctx.has_bias, ctx.has_residual = path, dropout, bias is not None, residual is not None
        return found.y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        dx, dresidual, sums_3H = ctx.path.backward(
            *ctx.saved_tensors, dy.contiguous(), ctx.dropout, has_residual=ctx.has_residual, drops_output=False
        )
        dbias, dweight, dshift = sums_3H.to(dy.dtype)
        return (None, None, None, dx, dbias if ctx.has_bias else None, dresidual, dweight, dshift)


def _call(
    path: Path,
    x_RH: Tensor,
    bias_H: Tensor | None,
    residual_RH: Tensor | None,
    weight_H: Tensor,
    shift_H: Tensor,
    *,
    epsilon: float,
    dropout: Dropout | None,
) -> Tensor:
    """The reference's values. ValueError on shapes or dtypes that do not go together; Unsupported in fp16 from C++ and
    for rows too long for a block from Triton."""
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
    return _DropoutAddLayerNorm.apply(path, epsilon, dropout, *tensors)


OPERATIONS = {
    NAME: {
        "reference": dropout_add_layer_norm_reference,
        "native": partial(_call, Path(_forward_native, backward_native)),
        "triton": partial(_call, Path(_forward_triton, backward_triton)),
        "compiled": compiled(dropout_add_layer_norm_reference),
    }
}


def aot_cases() -> list[AotCase]:
    """Forward and backward of an encoder layer of BERT-Large, bf16."""
    tensors = ("x", "bias", "residual", "weight", "shift", "z", "y")
    return [
        aot_case(f"{NAME} forward", _forward_kernel, tensors, {"epsilon": "fp32"}),
        aot_case_of_backward(NAME, has_residual=True, drops_output=False),
    ]
