"""SIGTERM and SIGHUP as Ctrl-C: a step that is told to stop says what is left and ends its workers."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class Terminated(KeyboardInterrupt):
    """The process was told to end by the signal `signum`."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signum).name}")
        self.signum = signum


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """Inside the `with` the first SIGTERM or SIGHUP raises Terminated in the main thread, which must be this one. A
    SIGHUP that is ignored (by nohup) stays ignored."""
    before = {name: signal.getsignal(name) for name in _SIGNALS}
    heeded = [name for name in _SIGNALS if before[name] != signal.SIG_IGN]

    def terminate(signum: int, frame: FrameType | None) -> None:
        for name in heeded:
            signal.signal(name, signal.SIG_IGN)
        raise Terminated(signum)

    for name in heeded:
        signal.signal(name, terminate)
    try:
        yield
    finally:
        for name in heeded:
            signal.signal(name, before[name])
