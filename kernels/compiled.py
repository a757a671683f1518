"""torch.compile of a reference, made when it is first called."""

from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import torch

from bert_mlperf.kernels.unsupported import Unsupported


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` compiled for any shape: tokens differ from step to step. The call raises Unsupported where
    torch.compile cannot (inductor of torch 2.13 has no shifts of integers on CPUs with AVX-512, so no dropout)."""

    @cache
    def made() -> Callable[..., Any]:
        return torch.compile(function, dynamic=True)

    @wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        from torch._dynamo.exc import TorchDynamoException
        from torch._inductor.exc import InductorError

        try:
            return made()(*arguments, **options)
        except (TorchDynamoException, InductorError) as error:
            raise Unsupported(f"torch.compile cannot compile {function.__name__} ({type(error).__name__})") from error

    return call
