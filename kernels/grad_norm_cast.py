"""Gradients added up, rounded to the dtype in which they go on, and their squared norm, in one pass over memory.

    out = parts[0] + parts[1] + ...      in fp32, in this order
    |out|^2                              of what `out` holds, rounding included; float64

One part that is `out` itself stays as it is: only the norm is taken. Squares are added up in float64, per block and
then over the blocks, in one order. Nothing here has a gradient, and there is no "compiled": what is added up differs in
number and size from call to call.

Legend: N elements, B blocks.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from bert_mlperf.kernels import native
from bert_mlperf.kernels.aot import AotCase
from bert_mlperf.kernels.checks import FLOATS, native_suffix
from bert_mlperf.kernels.jit import divide_up, jit, tl

BLOCK = 4096
NUM_WARPS = 8


def reference(parts: Sequence[Tensor], out: Tensor) -> Tensor:
    """`out` [N] (fp32, bf16 or fp16) becomes the sum of the `parts` [N], one or more, all of one of these dtypes. Its
    squared norm, 0-dimensional float64. ValueError if a dtype or a size is wrong."""
    _check(parts, out)
    if not _is_same(parts, out):
        total = parts[0]
        if len(parts) > 1:
            is_free = out.dtype == torch.float32 and all(part.data_ptr() != out.data_ptr() for part in parts[2:])
            total = out if is_free else torch.empty_like(out, dtype=torch.float32)
            torch.add(parts[0].float(), parts[1], out=total)
        for part in parts[2:]:
            total.add_(part)
        if total is not out:
            out.copy_(total)
    return torch.linalg.vector_norm(out, dtype=torch.float64).square()


@jit
def _block(first, others, out, at, inside, other):
    """The squared norm of a block, `inside` a mask or None, `other` 0 or None."""
    total = tl.load(first + at, mask=inside, other=other).to(tl.float32)
    for i in tl.static_range(len(others)):
        total += tl.load(others[i] + at, mask=inside, other=other).to(tl.float32)
    if out is not None:
        rounded = total.to(out.dtype.element_ty)
        tl.store(out + at, rounded, mask=inside)
        total = rounded.to(tl.float32)
    exact = total.to(tl.float64)
    return tl.sum(exact * exact)


@jit(do_not_specialize=["N"])
def _kernel(
    first,  # fp32, bf16 or fp16 [N]
    others,  # a tuple of as many further parts as there are
    out,  # fp32, bf16 or fp16 [N]; None: only the norm is taken
    squares,  # fp64 [B]
    N,
    BLOCK: tl.constexpr,
):
    block = tl.program_id(0).to(tl.int64)
    at = block * BLOCK + tl.arange(0, BLOCK)
    if (block + 1) * BLOCK <= N:  # all but the last: without a mask 16 bytes are loaded at a time
        square = _block(first, others, out, at, None, None)
    else:
        square = _block(first, others, out, at, at < N, 0.0)
    tl.store(squares + block, square)


def launch_triton(parts: Sequence[Tensor], out: Tensor) -> Tensor:
    _check(parts, out)
    blocks = divide_up(out.numel(), BLOCK)
    squares = torch.empty(blocks, dtype=torch.float64, device=out.device)
    if blocks > 0:
        target = None if _is_same(parts, out) else out
        others = tuple(parts[1:])
        _kernel[(blocks,)](parts[0], others, target, squares, out.numel(), BLOCK=BLOCK, num_warps=NUM_WARPS)
    return squares.sum()


def launch_native(parts: Sequence[Tensor], out: Tensor) -> Tensor:
    _check(parts, out)
    name = f"grad_norm_cast_{native_suffix(parts[0].dtype)}_{native_suffix(out.dtype)}"
    addresses = torch.tensor([part.data_ptr() for part in parts])
    room = torch.empty(divide_up(out.numel(), BLOCK), dtype=torch.float64)
    squared = torch.empty((), dtype=torch.float64)
    target = None if _is_same(parts, out) else out
    native.call(name, addresses, len(parts), target, out.numel(), room, squared)
    return squared


def _is_same(parts: Sequence[Tensor], out: Tensor) -> bool:
    return len(parts) == 1 and parts[0].data_ptr() == out.data_ptr() and parts[0].dtype == out.dtype


def _check(parts: Sequence[Tensor], out: Tensor) -> None:
    if not parts:
        raise ValueError("parts is empty, expected at least one tensor")
    for name, x in (("out", out), *((f"parts[{i}]", part) for i, part in enumerate(parts))):
        if x.dim() != 1 or not x.is_contiguous() or x.numel() != out.numel():
            raise ValueError(f"{name} has shape {tuple(x.shape)}, expected [{out.numel()}], contiguous")
        if x.dtype not in FLOATS or (name != "out" and x.dtype != parts[0].dtype):
            wanted = FLOATS if name in ("out", "parts[0]") else (parts[0].dtype,)
            raise ValueError(f"{name} has {x.dtype}, expected {' or '.join(map(str, wanted))}")
        if x.device != out.device:
            raise ValueError(f"{name} is on {x.device}, expected {out.device} as out")


OPERATIONS: dict[str, dict[str, Callable]] = {
    "grad_norm_cast": {"reference": reference, "native": launch_native, "triton": launch_triton}
}


def aot_cases() -> list[AotCase]:
    """One part, as NCCL gives: from the wire in bf16, and the norm alone."""
    types = {"first": "*bf16", "out": "*fp32", "squares": "*fp64", "N": "i64"}
    norm = {"first": "*fp32", "squares": "*fp64", "N": "i64"}
    constants = {"others": (), "BLOCK": BLOCK}
    return [
        AotCase("grad_norm_cast from bf16", _kernel, types, constants, NUM_WARPS),
        AotCase("grad_norm_cast norm only", _kernel, norm, constants | {"out": None}, NUM_WARPS),
    ]
