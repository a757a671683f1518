"""SIGINT and SIGTERM as an exception, so that a run that is stopped still closes its log."""

import signal
from types import FrameType


class Stopped(BaseException):
    """The process was told to stop; `signum` says how. No Exception: nobody but the entry point catches it."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signum).name}")
        self.signum = signum

    @property
    def exit_code(self) -> int:
        return 128 + self.signum


def raise_when_stopped() -> None:
    """From now on the first SIGINT or SIGTERM raises `Stopped` in the main thread; later ones are ignored, so that the
    log is closed in peace."""

    def handler(signum: int, frame: FrameType | None) -> None:
        for name in (signal.SIGINT, signal.SIGTERM):
            signal.signal(name, signal.SIG_IGN)
        raise Stopped(signum)

    signal.signal(signal.SIGINT, handler)
    signal.signal(signal.SIGTERM, handler)
