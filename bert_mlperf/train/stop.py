"""SIGINT, SIGTERM and SIGHUP as an exception, so that a run that is stopped still closes its log."""

import ctypes
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LAUNCHER = "BERT_MLPERF_LAUNCHER"  # variable in which the launcher tells its ranks its process id
PR_SET_PDEATHSIG = 1  # <sys/prctl.h>


class Stopped(BaseException):
    """The process was told to stop; `signum` says how. No Exception: nobody but the entry point catches it."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signum).name}")
        self.signum = signum

    @property
    def exit_code(self) -> int:
        return 128 + self.signum


def raise_when_stopped() -> None:
    """From now on the first of STOP_SIGNALS raises `Stopped` in the main thread; later ones are ignored, so that the
    log is closed in peace. A SIGHUP that is ignored (by nohup) stays ignored."""

    def handler(signum: int, frame: FrameType | None) -> None:
        for name in STOP_SIGNALS:
            signal.signal(name, signal.SIG_IGN)
        raise Stopped(signum)

    for name in STOP_SIGNALS:
        if name != signal.SIGHUP or signal.getsignal(name) != signal.SIG_IGN:
            signal.signal(name, handler)


@contextmanager
def raising_when_stopped() -> Iterator[None]:
    """`raise_when_stopped` inside a `with`; the handlers that were there before are put back."""
    before = {name: signal.getsignal(name) for name in STOP_SIGNALS}
    raise_when_stopped()
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


def stop_with_launcher() -> None:
    """From now on the end of the process that started this one, whatever its cause, is a SIGTERM here (Linux): no rank
    outlives its launcher. Raises `Stopped` if the launcher is gone already."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.environ.get(LAUNCHER, str(os.getppid())) != str(os.getppid()):
        raise Stopped(signal.SIGTERM)
