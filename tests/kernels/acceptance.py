"""What a kernel must give: at most twice the error of torch in the same dtype, and one unit in the last place."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Function = Callable[..., Tensor]


def outputs_and_gradients(function: Function, inputs: Sequence[Tensor], upstream: Tensor) -> list[Tensor]:
    """[output, gradient of each floating-point input]; `inputs` are not touched."""
    leaves = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in inputs]
    out = function(*leaves)
    wanted = [x for x in leaves if x.requires_grad]
    return [out.detach(), *torch.autograd.grad(out, wanted, upstream.to(out.dtype))]


def check_kernel(kernel: Function, torch_version: Function, inputs: Sequence[Tensor], upstream: Tensor) -> None:
    """max|k - r| <= 2 max|t - r| + 1 ulp max|r| for output and all gradients.

    r is `torch_version` in float64 from the same rounded inputs, t the same in the dtype of the inputs. `upstream` (the
    gradient of the output) is rounded to their dtype, so that all three get the same.
    """
    dtype = next(x.dtype for x in inputs if x.is_floating_point())
    upstream = upstream.to(dtype)
    exact = [x.double() if x.is_floating_point() else x for x in inputs]
    wanted = outputs_and_gradients(torch_version, exact, upstream)
    usual = outputs_and_gradients(torch_version, inputs, upstream)
    got = outputs_and_gradients(kernel, inputs, upstream)
    for index, (k, t, r) in enumerate(zip(got, usual, wanted, strict=True)):
        assert k.shape == r.shape, (index, k.shape, r.shape)
        assert_within(
            k, t, r, dtype=dtype, what=f"output {index} (0: forward, then gradients in the order of the inputs)"
        )


def assert_within(k: Tensor, t: Tensor, r: Tensor, *, dtype: torch.dtype, what: str) -> None:
    """The rule for one tensor; dense or sparse. An empty tensor is right."""
    k, t, r = (x.to_dense().double() if x.is_sparse else x.double() for x in (k, t, r))
    if r.numel() == 0:
        return
    assert k.isfinite().all(), f"{what}: not finite"
    error, usual, ulp = (k - r).abs().max(), (t - r).abs().max(), torch.finfo(dtype).eps * r.abs().max()
    assert error <= 2 * usual + ulp, f"{what}: error {error:.3g}, torch's own {usual:.3g}, ulp {ulp:.3g}"
