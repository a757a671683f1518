"""The score of one system: its ten runs as MLPerf counts them, and how far they can be trusted.

`factor` is what the RCP check says that times are to be multiplied by (mlperf/rcp.py), 1 where it says nothing.
"""

import itertools
import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bert_mlperf.config import rules
from bert_mlperf.report import statistics
from bert_mlperf.report.runs import Run
from bert_mlperf.report.systems import SystemRuns


@dataclass(frozen=True)
class Score:
    """The runs of one system and what follows from them. Times in seconds, throughputs in samples per second."""

    system: SystemRuns
    factor: float  # by which the RCP check scales the time, at least 1
    window: tuple[int, int]  # first and last + 1 of the runs that count, where there are more than ten

    @property
    def runs(self) -> tuple[Run, ...]:
        """The runs of the window, in the order in which they were made."""
        return in_order(self.system)[slice(*self.window)]

    @cached_property
    def times_s(self) -> list[float]:
        """From run_start to run_stop; infinite for a run that did not converge or has no time."""
        return [time_of(run) for run in self.runs]

    @cached_property
    def counted(self) -> list[int]:
        """Indices of the runs that the olympic mean counts; all of them with fewer than three."""
        return statistics.counted(self.times_s) if len(self.times_s) > 2 else list(range(len(self.times_s)))

    @property
    def failed(self) -> int:
        """Runs that did not converge."""
        return sum(math.isinf(seconds) for seconds in self.times_s)

    @property
    def complete(self) -> bool:
        """True for ten runs of which at most one did not converge: a result in the sense of MLPerf."""
        return len(self.runs) == statistics.RUNS and self.failed <= 1

    @cached_property
    def olympic_s(self) -> float:
        """Mean time without the fastest and the slowest run, not scaled. With fewer than three runs their mean."""
        times = self.times_s
        return statistics.olympic_mean(times) if len(times) > 2 else sum(times) / len(times)

    @property
    def seconds(self) -> float:
        """The score: the olympic mean, scaled."""
        return self.olympic_s * self.factor

    @cached_property
    def samples_to_target(self) -> float | None:
        """Mean training samples of the counted runs."""
        return _mean([self.runs[index].train_samples for index in self.counted])

    @cached_property
    def train_samples(self) -> float | None:
        """Mean training samples of all runs, also of one that did not converge."""
        return _mean([run.train_samples for run in self.runs])

    @cached_property
    def total(self) -> float | None:
        """Training samples of all runs over their time from run_start to run_stop."""
        pairs = [(run.train_samples, run.seconds) for run in self.runs]
        return _ratio([(n, s) for n, s in pairs if n is not None and s is not None], len(pairs))

    @cached_property
    def counted_total(self) -> float | None:
        """`total` of the counted runs: samples_to_target / counted_total is olympic_s."""
        pairs = [(self.runs[index].train_samples, self.runs[index].seconds) for index in self.counted]
        return _ratio([(n, s) for n, s in pairs if n is not None and s is not None], len(pairs))

    @cached_property
    def steady(self) -> float | None:
        """Mean over the runs of samples over seconds from the first to the last evaluation, evaluations included."""
        return _mean([None if run.steady is None else run.steady[0] / run.steady[1] for run in self.runs])

    @cached_property
    def evenly_steady(self) -> float | None:
        """`steady` if evaluations stood at equal distances in samples, as who reads no sample counts has to take it:
        train_samples * (n - 1) / n for n evaluations."""
        return _mean([_evenly(run) for run in self.runs])

    @cached_property
    def interval_samples(self) -> float | None:
        """Median training samples between two evaluations."""
        gaps = [gap for run in self.runs for gap in _gaps(run)]
        return float(np.median(gaps)) if gaps else None

    @cached_property
    def interval_s(self) -> float | None:
        """What one more interval between evaluations costs a run."""
        return None if not self.interval_samples or not self.steady else self.interval_samples / self.steady

    @cached_property
    def confidence_s(self) -> tuple[float, float]:
        """95% interval of the score: olympic means of bootstrapped runs, scaled."""
        low, high = statistics.interval(self.resampled)
        return low * self.factor, high * self.factor

    @cached_property
    def resampled(self) -> "np.ndarray":
        """Bootstrapped olympic means [resamples], not scaled."""
        return statistics.bootstrap(self.times_s)


def score(system: SystemRuns, factor: float = 1.0) -> Score:
    """The score of the runs of a system; of more than ten those of the median window. Fewer give a score that is no
    result (`complete` says so)."""
    times = [time_of(run) for run in in_order(system)]
    many = len(times) > statistics.RUNS
    return Score(system, factor, statistics.median_window(times) if many else (0, len(times)))


def in_order(system: SystemRuns) -> tuple[Run, ...]:
    """The runs as they were made where there are more than ten, for then it matters; else as they are numbered."""
    if len(system.runs) <= statistics.RUNS:
        return system.runs
    return tuple(sorted(system.runs, key=lambda run: run.time_ms("run_start") or 0.0))


def time_of(run: Run) -> float:
    return run.seconds if run.converged and run.seconds is not None else math.inf


def chance_of_winning(ours: Score, theirs: Score) -> float:
    """Share of bootstrapped pairs in which the first is faster: how much of a ranking is more than luck."""
    faster = np.searchsorted(np.sort(theirs.resampled * theirs.factor), ours.resampled * ours.factor, side="right")
    return float(1 - faster.mean() / len(theirs.resampled))


def interval_of_rule(system: SystemRuns) -> int | None:
    """Training samples between evaluations as the rules have it for the batch."""
    batch = system.global_batch_size
    return None if batch is None else rules.eval_interval_samples(batch)


def _evenly(run: Run) -> float | None:
    if run.steady is None or run.train_samples is None:
        return None
    number = len(run.evaluations)
    return run.train_samples * (number - 1) / number / run.steady[1]


def _gaps(run: Run) -> list[int]:
    samples = [item.samples for item in run.evaluations if item.samples is not None]
    return [later - earlier for earlier, later in itertools.pairwise(samples) if later > earlier]


def _mean(values: list[float | None] | list[int | None]) -> float | None:
    """The mean; None if one is missing."""
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known and len(known) == len(values) else None


def _ratio(pairs: list[tuple[int, float]], expected: int) -> float | None:
    if not pairs or len(pairs) != expected:
        return None
    seconds = math.fsum(pair[1] for pair in pairs)
    return sum(pair[0] for pair in pairs) / seconds if seconds > 0 else None
