"""torch.compile of a reference, made when it is first called."""

from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import torch


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` compiled for any shape: tokens differ from step to step."""

    @cache
    def made() -> Callable[..., Any]:
        return torch.compile(function, dynamic=True)

    @wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        return made()(*arguments, **options)

    return call
