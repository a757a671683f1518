"""What a person sees of a run while it goes on: a live bar on a terminal, one line per interval on a pipe."""

import math
import sys
from typing import Any, Self, TextIO

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from bert_mlperf.report.metrics import Interval

BAR_WIDTH = 60


class Progress:
    """Progress of one run on stderr. Nothing is written between two calls: no thread, no cursor tricks on a pipe.

    `total_samples`: training samples after which the run ends at the latest; the time left counts up to there.
    `active` False (every rank but the first) writes nothing.
    """

    def __init__(
        self, *, total_samples: int, target: float | None, active: bool = True, stream: TextIO | None = None
    ) -> None:
        self._total = total_samples
        self._target = target
        self._active = active
        self._evaluated = ""  # what the last evaluation gave
        self._console = Console(file=stream or sys.stderr, highlight=False, markup=False)
        self._live: Live | None = None
        if active and self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()

    def interval(self, **values: Any) -> None:
        """Show where training is. `values`: the fields of Interval but time_s."""
        interval = Interval(**values)
        line = progress_line(interval, total_samples=self._total, evaluated=self._evaluated)
        if self._live is not None:
            bar = ProgressBar(total=self._total, completed=interval.samples, width=BAR_WIDTH)
            rows = Table.grid()
            rows.add_row(bar)
            rows.add_row(Text(line))
            self._live.update(rows, refresh=True)
        else:
            self.note(line)

    def evaluation(self, *, samples: int, accuracy: float) -> None:
        """Say what an evaluation gave; the intervals that follow repeat it."""
        goal = "" if self._target is None else f" (target {self._target:.3f})"
        self._evaluated = f"acc {accuracy:.3f} @ {samples:,}{goal}"
        self.note(f"eval     {accuracy:.4f}{goal} at {samples:,} samples")

    def note(self, text: str) -> None:
        """Print a line that stays, above the bar."""
        if self._active:
            self._console.print(text, soft_wrap=True)

    def close(self) -> None:
        """Take the bar away."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def progress_line(interval: Interval, *, total_samples: int, evaluated: str) -> str:
    """One line on an interval; `evaluated` says what the last evaluation gave, empty if there was none."""
    parts = [
        f"{100 * interval.samples / total_samples:3.0f}%  {interval.samples:,} / {total_samples:,} samples",
        f"loss {interval.loss:.3f}",
        f"lr {interval.learning_rate:.2e}",
        f"grad {interval.grad_norm:.2f}",
    ]
    parts += [f"skipped {interval.skipped_steps}"] if interval.skipped_steps else []
    parts += [evaluated] if evaluated else []
    parts += [
        f"{_rate(interval.samples_per_s)} samples/s",
        f"{_rate(interval.tokens_per_s)} tokens/s",
        f"wait {interval.wait_percent:.1f}%",
        f"{time_left(total_samples - interval.samples, interval.samples_per_s)} left at most",
    ]
    return " | ".join(parts)


def time_left(samples: int, samples_per_s: float) -> str:
    """Time for some samples at a rate, as [h:]mm:ss; "?" without a rate."""
    if not (math.isfinite(samples_per_s) and samples_per_s > 0):
        return "?"
    seconds = math.ceil(max(0, samples) / samples_per_s)
    minutes, hours = seconds // 60 % 60, seconds // 3600
    return f"{hours}:{minutes:02d}:{seconds % 60:02d}" if hours else f"{minutes}:{seconds % 60:02d}"


def _rate(value: float) -> str:
    return f"{value:,.0f}" if not value < 10 else f"{value:.3g}"
