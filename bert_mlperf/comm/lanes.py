"""Work that goes on beside the computation, in the order in which it was handed in.

On the CPU a lane is a thread (gloo and tensor operations release the interpreter), on CUDA a stream. Without overlap a
lane does the work at once. What is handed in must use communicators that no other lane uses at the same time.
"""

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue

import torch

from bert_mlperf.comm.recorder import Recorder


class Lane:
    """One lane, which the timeline calls `name`."""

    def __init__(self, name: str, device: torch.device, *, overlap: bool, recorder: Recorder) -> None:
        self.name, self.overlaps = name, overlap
        self._device = device
        self._recorder = recorder
        self._thread = _Thread(name) if overlap and device.type == "cpu" else None
        self._stream = torch.cuda.Stream(device) if overlap and device.type == "cuda" else None

    def submit(self, work: Callable[[], None], *, name: str) -> "Pending":
        """Does `work` behind all that was handed in before; it sees what was computed before this call."""
        if self._thread is not None:
            return Pending(future=self._thread.submit(lambda: self._do(work, name)))
        if self._stream is None:
            self._do(work, name)
            return Pending()
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            self._do(work, name)
            return Pending(event=self._stream.record_event())

    def _do(self, work: Callable[[], None], name: str) -> None:
        with torch.no_grad(), self._recorder.span(self.name, name):
            work()


_Work = tuple[Future[None], Callable[[], None]]
_PATIENCE_S = 0.5


class _Thread:
    """Does what is handed in, one after the other. It ends when nobody holds it any more, at the latest with the
    process, and never keeps that from ending: a collective whose other ranks are gone would hold it until the
    timeout."""

    def __init__(self, name: str) -> None:
        self._work: SimpleQueue[_Work | None] = SimpleQueue()
        thread = threading.Thread(target=_serve, args=(self._work,), name=name, daemon=True)
        thread.start()
        weakref.finalize(self, _end, thread, self._work)

    def submit(self, work: Callable[[], None]) -> Future[None]:
        future: Future[None] = Future()
        self._work.put((future, work))
        return future


def _serve(queue: "SimpleQueue[_Work | None]") -> None:
    while (item := queue.get()) is not None:
        future, work = item
        try:
            work()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(None)
        del item, future, work  # what was handed in holds the lane, and with it this thread


def _end(thread: threading.Thread, queue: "SimpleQueue[_Work | None]") -> None:
    queue.put(None)
    if thread is not threading.current_thread():
        thread.join(_PATIENCE_S)


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
