"""A score in words: the runs one by one, what counts, what it is worth, and how much of it is luck."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from bert_mlperf.report import statistics
from bert_mlperf.report.logs import printable
from bert_mlperf.report.runs import Run
from bert_mlperf.report.score import Score, chance_of_winning, interval_of_rule


def runs_table(score: Score) -> Table:
    """One row per run of the window."""
    title = printable(f"{score.system.submitter}: {score.system.name}")
    table = Table(box=None, pad_edge=False, title=Text(title), title_justify="left")
    for name in ("run", "seconds", "counts", "samples", "evaluations", "accuracy", "steady samples/s", "init s"):
        table.add_column(name, justify="left" if name in ("run", "counts") else "right")
    for index, run in enumerate(score.runs):
        table.add_row(*_row(score, index, run))
    return table


def _row(score: Score, index: int, run: Run) -> tuple[str, ...]:
    times = score.times_s
    counts = "yes"
    if index not in score.counted:
        counts = "fastest" if times[index] == min(times) else "slowest"
    if math.isinf(times[index]):
        counts += ", did not converge" if run.seconds is not None else ", no time"
    samples = "-" if run.train_samples is None else f"{run.train_samples:,}"
    accuracy = f"{run.evaluations[-1].accuracy:.5f}" if run.evaluations else "-"
    steady = "-" if run.steady is None else f"{run.steady[0] / run.steady[1]:,.0f}"
    init = "-" if run.init_seconds is None else f"{run.init_seconds:,.1f}"
    seconds = "-" if run.seconds is None else f"{run.seconds:,.3f}"
    return printable(run.name), seconds, counts, samples, str(len(run.evaluations)), accuracy, steady, init


def summary(score: Score) -> list[str]:
    """What the runs come to, line by line."""
    if len(score.runs) < 3:
        return [f"no score: {len(score.runs)} run(s), an olympic mean takes three and a result ten"]
    lines = [_window(score)] if len(score.system.runs) > statistics.RUNS else []
    if score.failed > 1:
        return [*lines, f"no score: {score.failed} of {len(score.runs)} runs did not converge, at most one may"]
    kind = "score" if score.complete else f"of {len(score.runs)} runs, which is no MLPerf result (ten are)"
    lines.append(f"olympic mean   {score.olympic_s:,.3f} s = {score.olympic_s / 60:,.3f} min ({kind})")
    if score.factor != 1:
        lines.append(
            f"scaled         {score.seconds:,.3f} s = {score.seconds / 60:,.3f} min (x {score.factor:.6f}, RCP check)"
        )
    low, high = score.confidence_s
    top = f"{high:,.1f} s" if math.isfinite(high) else "open (two failed runs in a resample)"
    lines.append(f"95% interval   {low:,.1f} s to {top} (bootstrap of the runs, {statistics.RESAMPLES:,} resamples)")
    lines += [f"{name:14s} {value}" for name, value in _throughputs(score) if value]
    return lines + luck(score)


def _window(score: Score) -> str:
    first, last = score.window
    every = len(score.system.runs)
    which = f"the median of {every - statistics.RUNS + 1} windows of ten"
    return f"window         runs {first + 1} to {last} of {every} in the order of their start: {which}"


def _throughputs(score: Score) -> list[tuple[str, str]]:
    def speed(value: float | None) -> str:
        return "" if value is None else f"{value:,.0f} samples/s"

    target = score.samples_to_target
    return [
        ("to target", "" if target is None else f"{target:,.0f} samples (mean of the runs that count)"),
        ("steady", speed(score.steady) and f"{speed(score.steady)} (first to last evaluation, mean of the runs)"),
        ("total", speed(score.total) and f"{speed(score.total)} (run_start to run_stop, all runs)"),
    ]


def luck(score: Score) -> list[str]:
    """What the distance of the evaluations and the spread of the runs make of the score."""
    lines = []
    spread = float(np.std(score.resampled[np.isfinite(score.resampled)])) * score.factor
    lines.append(
        f"luck           the same system, run again, scores within +-{spread:,.1f} s ({spread / score.seconds:.1%}) "
        "two times out of three"
    )
    if score.interval_s is not None and score.interval_samples is not None:
        share = score.interval_s / (len(score.counted) * score.olympic_s)
        lines.append(
            f"one interval   {score.interval_samples:,.0f} samples, {score.interval_s:,.1f} s: a near miss of the "
            f"target costs a run {score.interval_s / score.olympic_s:.1%} of its time, and the score {share:.2%}"
        )
    rule = interval_of_rule(score.system)
    if score.system.division == "closed" and rule and score.interval_samples:
        if abs(score.interval_samples - rule) > (score.system.global_batch_size or 0):
            lines.append(f"               the rules evaluate every {rule:,} samples at this batch")
    return lines


def ranking(scores: Sequence[Score]) -> list[str]:
    """Neighbours among systems with equally many accelerators, fastest first, with the chance that the order holds."""
    ranked = sorted(
        (s for s in scores if math.isfinite(s.seconds) and len(s.runs) > 2),
        key=lambda s: (s.system.accelerators or 0, s.seconds),
    )
    return [
        printable(
            f"{ahead.system.submitter} {ahead.system.name} is {behind.seconds / ahead.seconds - 1:.2%} faster than "
            f"{behind.system.submitter} {behind.system.name}; run again, it would be ahead "
            f"{chance_of_winning(ahead, behind):.0%} of the time"
        )
        for ahead, behind in itertools.pairwise(ranked)
        if ahead.system.accelerators == behind.system.accelerators
    ]


def to_json(score: Score) -> dict[str, Any]:
    """The score for machines; infinite and missing values are null, as is an olympic mean of fewer than three runs."""
    scored = len(score.runs) > 2
    low, high = score.confidence_s if scored else (math.nan, math.nan)
    numbers = {
        "olympic_s": score.olympic_s if scored else math.nan,
        "rcp_factor": score.factor,
        "seconds": score.seconds if scored else math.nan,
        "confidence_low_s": low,
        "confidence_high_s": high,
        "samples_to_target": score.samples_to_target,
        "steady_samples_per_s": score.steady,
        "total_samples_per_s": score.total,
        "interval_samples": score.interval_samples,
        "interval_s": score.interval_s,
    }
    return {
        "submitter": score.system.submitter,
        "system": score.system.name,
        "folder": str(score.system.place.folder),
        "complete": score.complete,
        "did_not_converge": score.failed,
        **{name: finite(value) for name, value in numbers.items()},
        "runs": [
            {
                "path": str(run.path),
                "seconds": finite(run.seconds),
                "converged": run.converged,
                "counts": index in score.counted,
                "samples": run.train_samples,
                "run_start_line": run.line("run_start"),
                "run_stop_line": run.line("run_stop"),
            }
            for index, run in enumerate(score.runs)
        ],
    }


def finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
