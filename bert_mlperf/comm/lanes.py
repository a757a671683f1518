"""Work that goes on beside the computation, in the order in which it was handed in.

On the CPU a lane is a thread (gloo and tensor operations release the interpreter), on CUDA a stream. Without overlap a
lane does the work at once. What is handed in must use communicators that no other lane uses at the same time.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import SimpleQueue

import torch


@dataclass(frozen=True)
class Span:
    """A stretch of work of one lane, for the step timeline; seconds of time.perf_counter."""

    lane: str
    name: str
    start: float
    end: float


@dataclass
class Lane:
    """One lane. `spans` collects what it did while `is_recorded`."""

    name: str
    device: torch.device
    overlap: bool
    is_recorded: bool = False
    spans: list[Span] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._thread = _Thread(self.name) if self.overlap and self.device.type == "cpu" else None
        self._stream = torch.cuda.Stream(self.device) if self.overlap and self.device.type == "cuda" else None

    def submit(self, work: Callable[[], None], *, name: str) -> "Pending":
        """Does `work` behind all that was handed in before; it sees what was computed before this call."""
        if self._thread is not None:
            return Pending(future=self._thread.submit(lambda: self._timed(work, name)))
        if self._stream is None:
            self._timed(work, name)
            return Pending()
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._stream):
            work()
            return Pending(event=self._stream.record_event())

    def _timed(self, work: Callable[[], None], name: str) -> None:
        start = time.perf_counter()
        with torch.no_grad():
            work()
        if self.is_recorded:
            self.spans.append(Span(self.name, name, start, time.perf_counter()))


class _Thread:
    """Does what is handed in, one after the other. It never keeps the process from ending: a collective whose other
    ranks are gone would hold it until the timeout."""

    def __init__(self, name: str) -> None:
        self._work: SimpleQueue[tuple[Future[None], Callable[[], None]]] = SimpleQueue()
        threading.Thread(target=self._serve, name=name, daemon=True).start()

    def submit(self, work: Callable[[], None]) -> Future[None]:
        future: Future[None] = Future()
        self._work.put((future, work))
        return future

    def _serve(self) -> None:
        while True:
            future, work = self._work.get()
            try:
                work()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(None)


@dataclass
class Pending:
    """Work of a lane that may not be done yet."""

    future: Future[None] | None = None
    event: torch.cuda.Event | None = None

    def wait(self) -> None:
        """Lets what follows see the result; raises what the work raised. On CUDA only the device waits."""
        if self.future is not None:
            self.future.result()
            self.future = None
        if self.event is not None:
            torch.cuda.current_stream().wait_event(self.event)
            self.event = None
