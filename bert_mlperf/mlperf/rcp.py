"""Convergence against the reference convergence points (RCPs), as the official check has it.

Samples to the target may not be fewer than chance allows beside the reference's runs with the same global batch.
Between two reference points mean and spread are interpolated; points that converge slower than their neighbours
suggest are pruned. A result that is faster than the reference's mean, within what is allowed, has its time scaled by
mean of the reference / mean of the result. The arithmetic is that of mlperf-logging's RCP_Checker.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Literal

import numpy as np
from mlperf_logging.rcp_checker.rcp_checker import RCP_Checker

from bert_mlperf.config import rules
from bert_mlperf.errors import UserError
from bert_mlperf.report.runs import Run

Table = Literal["pruned_rcps", "full_rcps"]
NOT_CONVERGED = 1e9  # samples that the official tool writes for a run without success


@dataclass(frozen=True)
class Reference:
    """The reference at one global batch. Everything in training samples."""

    global_batch_size: int
    mean: float  # olympic, of the reference's runs
    spread: float  # standard deviation of all of them
    minimum: float  # least mean of ten runs that is accepted
    speedup: float  # mean / minimum, as the official tool has it
    kind: Literal["point", "interpolated", "smallest"]  # smallest: the batch is below all points


@dataclass(frozen=True)
class Convergence:
    """The runs of one result beside the reference."""

    samples: tuple[float, ...]  # to the target, of each run; infinite without success
    global_batch_size: int
    reference: Reference | None  # None: the batch is above all points
    from_train_samples: bool  # because epoch_num is a placeholder

    @property
    def failed(self) -> int:
        return sum(math.isinf(value) for value in self.samples)

    @cached_property
    def mean(self) -> float:
        """Olympic mean; infinite if two or more runs did not converge."""
        finite = sorted(min(value, NOT_CONVERGED) for value in self.samples)[1:-1]
        return float(np.mean(finite)) if self.failed <= 1 and finite else math.inf

    @property
    def spread(self) -> float:
        """Standard deviation of the runs that converged."""
        return float(np.std([value for value in self.samples if math.isfinite(value)] or [math.nan]))

    @property
    def least(self) -> float:
        return min(self.samples)

    @property
    def passed(self) -> bool:
        """True if the official check passes."""
        return not self.complaint

    @property
    def factor(self) -> float:
        """By which the time is scaled; 1 where the check does not pass."""
        if self.reference is None or not self.passed:
            return 1.0
        return float(max(1.0, self.reference.mean / self.mean))

    @property
    def margin(self) -> float | None:
        """How far the mean is above the least accepted one, as a share of that."""
        return None if self.reference is None else self.mean / self.reference.minimum - 1

    @property
    def complaint(self) -> str:
        """Why the check fails, "" if it passes."""
        if self.failed > 1:
            return f"{self.failed} of {len(self.samples)} runs did not converge, at most one may"
        if len(self.samples) < 3:
            return f"{len(self.samples)} runs, an olympic mean takes three or more"
        if self.reference is None:
            return (
                f"no reference point has a global batch of {self.global_batch_size:,} or more; one has to be submitted"
            )
        if self.mean < self.reference.mean / self.reference.speedup:
            return (
                f"mean of {self.mean:,.0f} samples to the target, expected at least {self.reference.minimum:,.0f}: "
                "it converges faster than chance allows"
            )
        return ""


@cache
def official_checker(round_name: str) -> Any:
    """mlperf-logging's checker with the points of a round. UserError if the round has none."""
    name = rules.parse_round(round_name)
    if not rules.ROUND_TABLE[name].rcp:
        raise UserError(f"Round {name} has no reference convergence points: they began with 1.0.0.")
    return RCP_Checker("training", rules.ROUND_TABLE[name].ruleset, rules.BENCHMARK, False)


def points(round_name: str, table: Table = "pruned_rcps") -> list[Reference]:
    """The reference points of a round, ascending in the batch; those that are pruned away only in full_rcps."""
    records = official_checker(round_name)._get_rcp_data(table).values()
    return [_reference(record, "point") for record in sorted(records, key=lambda record: record["BS"])]


def reference(round_name: str, global_batch_size: int, table: Table = "pruned_rcps") -> Reference | None:
    """The reference at any global batch: a point, interpolated, the smallest point below all, None above all."""
    checker = official_checker(round_name)
    if (record := checker._find_rcp(global_batch_size, table)) is not None:
        return _reference(record, "point")
    below = checker._find_top_min_rcp(global_batch_size, table)
    above = checker._find_bottom_max_rcp(global_batch_size, table)
    if above is None:
        return None
    if below is None:
        return _reference(above, "smallest")
    return _reference(checker._create_interp_rcp(global_batch_size, below, above)[1], "interpolated")


def _reference(record: dict[str, Any], kind: Literal["point", "interpolated", "smallest"]) -> Reference:
    mean, spread, least, speedup = (float(record[k]) for k in ("RCP Mean", "RCP Stdev", "Min Epochs", "Max Speedup"))
    return Reference(int(record["BS"]), mean, spread, least, speedup, kind)


def convergence(runs: Sequence[Run], round_name: str) -> Convergence:
    """The runs of one result beside the reference of a round. UserError if they do not name one global batch."""
    sizes = sorted({run.global_batch_size or 0 for run in runs})
    if len(sizes) != 1 or sizes == [0]:
        named = ", ".join(f"{size:,}" if size else "none" for size in sizes) or "none"
        raise UserError(
            f"{runs[0].path.parent}: the runs of a result have one global batch, found {named}; compare runs of one."
            if runs
            else "No run is given; a result has ten."
        )
    inferred = any(run.samples_are_inferred for run in runs)
    samples = []
    for run in runs:
        value = run.train_samples if inferred else run.samples_at_end
        samples.append(float(value) if run.converged and value is not None else math.inf)
    return Convergence(tuple(samples), sizes[0], reference(round_name, sizes[0]), inferred)


def scaling_factor(runs: Sequence[Run], round_name: str | None, division: str) -> float:
    """The factor of a score: 1 in the open division and where the check cannot be made."""
    if division != "closed" or round_name not in rules.ROUND_TABLE or not rules.ROUND_TABLE[round_name].rcp:
        return 1.0
    try:
        return convergence(runs, round_name).factor
    except UserError:
        return 1.0
