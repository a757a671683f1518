"""Triton where it is installed: `jit` and `tl` for the kernel files, which are read and imported without it too.

PyPI's CPU build of torch brings no Triton (`pip install bert-mlperf[triton]` does). Without it `jit` leaves a function
as it is; it is never called then, because the registry knows `HAS_TRITON`.
"""

import os
from types import SimpleNamespace
from typing import Any

try:
    import triton
    import triton.language as tl

    HAS_TRITON = True
    jit: Any = triton.jit
except ImportError:
    HAS_TRITON = False
    triton = None
    tl = SimpleNamespace(constexpr=int)

    def jit(function: Any = None, **_: Any) -> Any:
        return function if function is not None else jit


def is_interpreted() -> bool:
    """Whether Triton kernels run on the CPU, in the interpreter (TRITON_INTERPRET=1 when this was imported)."""
    return HAS_TRITON and os.environ.get("TRITON_INTERPRET") == "1"


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is at least `n` (1 for n < 1)."""
    return 1 << max(0, n - 1).bit_length()


def divide_up(n: int, size: int) -> int:
    """How many blocks of `size` hold `n`."""
    return -(-n // size)
