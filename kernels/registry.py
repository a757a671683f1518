"""Which implementation of each operation runs: by device, or as `run.kernels` says.

    reference   plain torch, readable, fp32 inside; everywhere
    native      C++, built at first use (kernels/native.py); CPU
    triton      Triton; CUDA, or the CPU in Triton's interpreter
    compiled    torch.compile of the reference
    library     what torch or flash-attn bring (attention only)

An implementation that cannot do what it is asked raises `Unsupported` before it has written anything: the reference
does it instead, and one line on stderr names both, once.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import wraps
from typing import Any

import torch

from bert_mlperf.kernels import (
    attention,
    bias_gelu,
    dropout_add_layer_norm,
    embedding_layer_norm,
    grad_norm_cast,
    lamb,
    linear_cross_entropy,
    native,
)
from bert_mlperf.kernels.jit import HAS_TRITON, is_interpreted
from bert_mlperf.kernels.unsupported import Unsupported

Operation = Callable[..., Any]

KERNELS = {
    module.__name__.rsplit(".", 1)[1]: module
    for module in (
        embedding_layer_norm,
        dropout_add_layer_norm,
        bias_gelu,
        attention,
        linear_cross_entropy,
        lamb,
        grad_norm_cast,
    )
}
"""Every kernel's file; its OPERATIONS maps the name of an operation to its implementations by name."""

IMPLEMENTATIONS = ("reference", "native", "triton", "compiled", "library")
_PREFERRED = {"cuda": ("triton", "reference"), "cpu": ("native", "reference")}
_said: set[tuple[str, str, str]] = set()


@dataclass(frozen=True)
class Kernels:
    """The operations that a run calls; what each takes and gives is said in its file."""

    embedding_layer_norm: Operation
    dropout_add_layer_norm: Operation
    bias_gelu: Operation
    attention: Operation
    linear_cross_entropy: Operation
    count_correct: Operation
    lamb_directions: Operation
    lamb_apply: Operation
    grad_norm_cast: Operation
    names: Mapping[str, str]  # kernel -> implementation


def select(device: torch.device, choice: str | Mapping[str, str] = "auto") -> Kernels:
    """The operations for a device. `choice` is "auto", the name of an implementation (kernels that have none of that
    name are chosen automatically) or a mapping from kernels to implementations (others automatic).

    ValueError, one sentence, if there is no such kernel or implementation or it cannot run here.
    """
    names = {kernel: _choose(kernel, device.type, wanted) for kernel, wanted in _wanted(choice).items()}
    operations = {
        operation: _with_reference(operation, names[kernel], implementations)
        for kernel, module in KERNELS.items()
        for operation, implementations in module.OPERATIONS.items()
    }
    assert set(operations) == {f.name for f in fields(Kernels)} - {"names"}
    return Kernels(**operations, names=names)


def _wanted(choice: str | Mapping[str, str]) -> dict[str, str]:
    """What is asked of every kernel: one of its implementations or "auto"."""
    asked = dict.fromkeys(KERNELS, choice) if isinstance(choice, str) else dict(choice)
    for kernel, name in asked.items():
        if kernel not in KERNELS:
            raise ValueError(f"run.kernels names {kernel}, expected one of {', '.join(KERNELS)}")
        if name not in ("auto", *IMPLEMENTATIONS):
            raise ValueError(f"run.kernels is {name!r}, expected auto or one of {', '.join(IMPLEMENTATIONS)}")
        implementations = _implementations(kernel)
        if name != "auto" and name not in implementations:
            if not isinstance(choice, str):
                raise ValueError(f"run.kernels: {kernel} has no {name!r}, expected one of {', '.join(implementations)}")
            asked[kernel] = "auto"
    return {kernel: asked.get(kernel, "auto") for kernel in KERNELS}


def _implementations(kernel: str) -> Mapping[str, Operation]:
    """Of any of its operations: all have the same."""
    return next(iter(KERNELS[kernel].OPERATIONS.values()))


def _choose(kernel: str, device: str, wanted: str) -> str:
    if wanted != "auto":
        reason = unavailable(wanted, device)
        if reason is not None:
            raise ValueError(f"run.kernels is {wanted!r} for {kernel}, but {reason}; choose another or auto")
        return wanted
    for name in _PREFERRED[device]:
        if name in _implementations(kernel):
            reason = unavailable(name, device)
            if reason is None:
                return name
            say_once(kernel, name, reason)
    raise AssertionError("the reference runs everywhere")


def unavailable(implementation: str, device: str) -> str | None:
    """Why no kernel of this name can run here, or None."""
    if implementation == "native":
        return "it is for the CPU" if device != "cpu" else native.unavailable()
    if implementation == "triton":
        if not HAS_TRITON:
            return "Triton is not installed (pip install triton)"
        if device == "cpu" and not is_interpreted():
            return "on the CPU it runs in the interpreter only (TRITON_INTERPRET=1)"
    if implementation == "library" and device != "cuda":
        return "it is for CUDA"
    return None


def _with_reference(operation: str, name: str, implementations: Mapping[str, Operation]) -> Operation:
    """The implementation, backed by the reference."""
    function, reference = implementations[name], implementations["reference"]

    @wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except Unsupported as reason:
            say_once(operation, name, str(reason))
            return reference(*arguments, **options)

    return function if name == "reference" else call


def say_once(what: str, name: str, reason: str) -> None:
    """One line on stderr, the first time in this process."""
    if (what, name, reason) not in _said:
        _said.add((what, name, reason))
        print(f"kernels  {what}: reference instead of {name}: {reason}", file=sys.stderr, flush=True)
