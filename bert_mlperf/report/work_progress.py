"""Progress of work over many files: a live bar on a terminal, one line per interval on a pipe."""

import sys
import time
from typing import Self, TextIO

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from bert_mlperf.report.progress import BAR_WIDTH, time_left

INTERVAL_S = 10.0  # between two lines on a pipe


class WorkProgress:
    """Progress of one step on stderr, in bytes of its input. Nothing is written between two calls.

    `done_bytes`, `done_files`: what an earlier run has left finished; it does not count for the rate.
    """

    def __init__(
        self,
        name: str,
        *,
        total_bytes: int,
        total_files: int,
        done_bytes: int = 0,
        done_files: int = 0,
        stream: TextIO | None = None,
    ) -> None:
        self._name = name
        self._total_bytes, self._total_files = total_bytes, total_files
        self._before = done_bytes
        self._done_bytes, self._done_files = done_bytes, done_files
        self._start = self._last_line = time.monotonic()
        self._console = Console(file=stream or sys.stderr, highlight=False, markup=False)
        self._live: Live | None = None
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()

    def file_done(self) -> None:
        self._done_files += 1

    def bytes_done(self, amount: int) -> None:
        """`amount`: bytes of this run so far."""
        self._done_bytes = min(self._before + amount, self._total_bytes)
        now = time.monotonic()
        if self._live is not None:
            rows = Table.grid()
            rows.add_row(ProgressBar(total=max(self._total_bytes, 1), completed=self._done_bytes, width=BAR_WIDTH))
            rows.add_row(Text(self.line(now)))
            self._live.update(rows, refresh=True)
        elif now - self._last_line >= INTERVAL_S:
            self._last_line = now
            self._console.print(self.line(now), soft_wrap=True)

    def line(self, now: float) -> str:
        """Where the work is at `now` (seconds of time.monotonic)."""
        seconds = max(now - self._start, 1e-9)
        rate = (self._done_bytes - self._before) / seconds
        return (
            f"{self._name:8s} {100 * self._done_bytes / max(self._total_bytes, 1):3.0f}%  {self._done_files:,} / "
            f"{self._total_files:,} files | {self._done_bytes / 1e6:,.1f} / {self._total_bytes / 1e6:,.1f} MB | "
            f"{rate / 1e6:.2f} MB/s | {time_left(self._total_bytes - self._done_bytes, rate)} left"
        )

    def close(self) -> None:
        """Take the bar away and say what was done."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def summary(self) -> str:
        """One line on this run: bytes, seconds, rate."""
        seconds = max(time.monotonic() - self._start, 1e-9)
        done = self._done_bytes - self._before
        return f"{done / 1e6:,.1f} MB in {seconds:.1f} s ({done / 1e6 / seconds:.2f} MB/s)"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
