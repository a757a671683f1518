"""SIGINT, SIGTERM and SIGHUP as an exception, so that a run that is stopped still closes its log."""

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LAUNCHER = "BERT_MLPERF_LAUNCHER"  # variable in which the launcher tells its ranks its process id
STUCK_S = 3.0  # for a main thread to heed a signal
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
    for name in STOP_SIGNALS:
        if name != signal.SIGHUP or signal.getsignal(name) != signal.SIG_IGN:
            signal.signal(name, _raise_stopped)


def ignore_stop_signals() -> None:
    """From now on STOP_SIGNALS do nothing: this process is ending already."""
    for name in STOP_SIGNALS:
        signal.signal(name, signal.SIG_IGN)


def _raise_stopped(signum: int, frame: FrameType | None) -> None:
    ignore_stop_signals()
    raise Stopped(signum)


@contextmanager
def raising_when_stopped() -> Iterator[None]:
    """`raise_when_stopped` inside a `with`; the handlers that were there before are put back.

    A main thread that waits in native code (for the other nodes, say) cannot run a handler: when STUCK_S have passed
    since the signal, a second thread ends the process. Ranks end with it (`stop_with_launcher`)."""
    before = {name: signal.getsignal(name) for name in STOP_SIGNALS}
    raise_when_stopped()
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    wakeup_before = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    threading.Thread(target=_exit_when_stuck, args=(read_end,), name="stop", daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(wakeup_before)
        os.close(write_end)  # ends the thread
        for name, handler in before.items():
            signal.signal(name, handler)


def _exit_when_stuck(read_end: int) -> None:
    """Reads the number of each signal that arrives, until the other end is closed."""
    while number := os.read(read_end, 1):
        if number[0] in STOP_SIGNALS and signal.getsignal(number[0]) is _raise_stopped:
            time.sleep(STUCK_S)
            if signal.getsignal(number[0]) is _raise_stopped:  # it has not run
                print(f"stopped by {signal.Signals(number[0]).name}", file=sys.stderr, flush=True)
                os._exit(128 + number[0])
    os.close(read_end)


def stop_with_launcher() -> None:
    """From now on the end of the process that started this one, whatever its cause, is a SIGTERM here (Linux): no rank
    outlives its launcher. Raises `Stopped` if the launcher is gone already."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.environ.get(LAUNCHER, str(os.getppid())) != str(os.getppid()):
        raise Stopped(signal.SIGTERM)
