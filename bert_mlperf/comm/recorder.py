"""What the lanes of a rank do, and when: the raw material of the step timeline."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

COMPUTE, REDUCE, GATHER = "compute", "reduce", "gather"


@dataclass(frozen=True)
class Span:
    """A stretch of work of one lane of one rank; seconds since 1970, or since the recording began on CUDA."""

    lane: str
    name: str
    start: float
    end: float


class Recorder:
    """Notes spans while it is on; costs next to nothing while it is off. On CUDA the device's own clock is read."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._is_on = False
        self._marks: list[tuple[str, str, float | torch.cuda.Event, float | torch.cuda.Event]] = []
        self._offset = time.time() - time.perf_counter()

    def start(self) -> None:
        self._marks, self._is_on = [], True
        self._begin = self._now()

    @contextmanager
    def span(self, lane: str, name: str) -> Iterator[None]:
        """Notes how long the block takes."""
        if not self._is_on:
            yield
            return
        start = self._now()
        yield
        self._marks.append((lane, name, start, self._now()))

    def stop(self) -> list[Span]:
        """The spans since `start`."""
        self._is_on = False
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return [Span(lane, name, self._seconds(start), self._seconds(end)) for lane, name, start, end in self._marks]

    def _now(self) -> "float | torch.cuda.Event":
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _seconds(self, moment: "float | torch.cuda.Event") -> float:
        if isinstance(moment, float):
            return moment + self._offset
        return self._begin.elapsed_time(moment) / 1000  # type: ignore[union-attr]
