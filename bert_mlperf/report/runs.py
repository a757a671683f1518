"""What happened in a run, out of its log: times, evaluations, samples. Every fact knows its line.

Logs of all submitters are read: `epoch_num` may be the training samples (as the RCP checker wants) or a placeholder
that is the same everywhere; then the samples follow from the global batch and the rule of the evaluation points.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from bert_mlperf.config import rules
from bert_mlperf.report.logs import Log, Record, read_log


@dataclass(frozen=True)
class Evaluation:
    """One accuracy of a log."""

    samples: int | None  # training samples so far; None if neither logged nor to be inferred
    accuracy: float  # masked-LM accuracy, a share; NaN where the log has no number
    time_ms: float  # Unix time
    line: int


@dataclass(frozen=True)
class Run:
    """One log as a run. None is what it does not say, or does not say as a number."""

    log: Log

    @property
    def path(self) -> Path:
        return self.log.path

    @property
    def name(self) -> str:
        return self.path.stem

    def number(self, key: str) -> float | None:
        """The first value of a key, if that is a finite number."""
        record = self.log.first(key)
        return None if record is None else finite(record.value)

    def text(self, key: str) -> str:
        """The first value of a key as text, "" if the log has none."""
        record = self.log.first(key)
        return "" if record is None or record.value is None else str(record.value)

    def line(self, key: str) -> int:
        """Line of the first record of a key, 0 if there is none."""
        record = self.log.first(key)
        return 0 if record is None else record.line

    def time_ms(self, key: str) -> float | None:
        record = self.log.first(key)
        return None if record is None or not math.isfinite(record.time_ms) else record.time_ms

    @cached_property
    def global_batch_size(self) -> int | None:
        """Samples of a step, over all ranks."""
        record = self.log.first("global_batch_size")
        return (count(record.value) or None) if record is not None else None

    @cached_property
    def status(self) -> str:
        """What run_stop says: success, aborted, anything else, or "" without one."""
        record = self.log.first("run_stop")
        status = None if record is None else record.metadata.get("status")
        return "" if status is None else str(status)

    @property
    def converged(self) -> bool:
        """True if the run says that it reached the target; whether it did is for the lint to say."""
        return self.status == "success"

    @cached_property
    def seconds(self) -> float | None:
        """From run_start to run_stop; None if one of them is missing or the clock went backwards."""
        start, stop = self.time_ms("run_start"), self.time_ms("run_stop")
        return None if start is None or stop is None or stop <= start else (stop - start) / 1e3

    @cached_property
    def init_seconds(self) -> float | None:
        """From the first init_start to init_stop."""
        starts, stop = [r.time_ms for r in self.log.all("init_start")], self.time_ms("init_stop")
        return None if not starts or stop is None else (stop - min(starts)) / 1e3

    @cached_property
    def samples_are_inferred(self) -> bool:
        """True where epoch_num is a placeholder: missing, or the same or no more than a batch at every evaluation."""
        records = self.log.all("eval_accuracy")
        logged = [logged_samples(record) for record in records]
        if not records or any(value is None for value in logged):
            return bool(records)
        known = [value for value in logged if value is not None]
        batch = self.global_batch_size or 1
        return max(known) < batch or (len(known) > 1 and len(set(known)) == 1)

    @cached_property
    def evaluations(self) -> tuple[Evaluation, ...]:
        records = self.log.all("eval_accuracy")
        samples: list[int | None] = [logged_samples(record) for record in records]
        if self.samples_are_inferred:
            samples = self._inferred(len(records))
        return tuple(
            Evaluation(sample, _accuracy(record), record.time_ms, record.line)
            for sample, record in zip(samples, records, strict=True)
        )

    def _inferred(self, number: int) -> list[int | None]:
        """k * interval of the rule, rounded up to a batch."""
        batch = self.global_batch_size
        if batch is None:
            return [None] * number
        interval = rules.eval_interval_samples(batch)
        return [rules.round_up_to_batch(k * interval, batch) for k in range(1, number + 1)]

    @cached_property
    def train_samples(self) -> int | None:
        """Training samples of the whole run: what train_samples says, else those of the last evaluation."""
        record = self.log.first("train_samples")
        said = None if record is None else count(record.value)
        return self.samples_at_end if said is None else said

    @property
    def samples_at_end(self) -> int | None:
        """Training samples at the last evaluation, which is where a successful run reaches the target."""
        return self.evaluations[-1].samples if self.evaluations else None

    @cached_property
    def steady(self) -> tuple[int, float] | None:
        """Training samples and seconds from the first to the last evaluation; None with fewer than two."""
        first, last = (self.evaluations[0], self.evaluations[-1]) if self.evaluations else (None, None)
        if first is None or last is None or first.samples is None or last.samples is None:
            return None
        samples, seconds = last.samples - first.samples, (last.time_ms - first.time_ms) / 1e3
        return (samples, seconds) if samples > 0 and seconds > 0 else None


def read_run(path: Path) -> Run:
    """UserError as `read_log`."""
    return Run(read_log(path))


def logged_samples(record: Record) -> int | None:
    """Training samples of an evaluation as the log states them: epoch_num, samples_count only where that is missing."""
    key = "epoch_num" if "epoch_num" in record.metadata else "samples_count"
    return count(record.metadata.get(key))


def count(value: Any) -> int | None:
    """A number of samples: a JSON number from 0 to 2^53, without its fraction."""
    number = finite(value)
    return int(number) if number is not None and 0 <= number < 2**53 else None


def finite(value: Any) -> float | None:
    """A JSON number as a float; None for anything else, true and NaN too."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _accuracy(record: Record) -> float:
    value = finite(record.value)
    return math.nan if value is None else value
