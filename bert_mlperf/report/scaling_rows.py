"""The scaling report in numbers and words: one row per system, for the terminal, as CSV and as JSON."""

import csv
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from bert_mlperf.report import statistics
from bert_mlperf.report.logs import printable
from bert_mlperf.report.runs import Run
from bert_mlperf.report.scaling import TOKENS_PER_SAMPLE, Point, Series

CSV_FILE, JSON_FILE = "scaling.csv", "scaling.json"
NOTABLE = 0.002  # difference of two efficiencies that a footnote tells
COLUMNS = (  # of the terminal and of the page: heading, unit, key of a row, format
    ("nodes", "", "nodes", "{:,}"),
    ("accelerators", "", "accelerators", "{:,}"),
    ("global batch", "samples", "global_batch", "{:,}"),
    ("efficiency, steady", "%", "steady_efficiency", "{:.1%}"),
    ("efficiency, total", "%", "total_efficiency", "{:.1%}"),
    ("time to train", "s", "score_s", "{:,.1f}"),
    ("speed-up", "times", "time_speedup", "{:.2f}"),
    ("of ideal", "times", "ideal", "{:g}"),
    ("from speed", "times", "speed_part", "{:.2f}"),
    ("from convergence", "times", "convergence_part", "{:.3f}"),
    ("samples to target", "", "samples_to_target", "{:,.0f}"),
    ("steady", "samples/s", "steady", "{:,.0f}"),
    ("total", "samples/s", "total", "{:,.0f}"),
    ("steady, each", "samples/s", "steady_per_accelerator", "{:,.1f}"),
    ("MFU", "%", "mfu", "{:.1%}"),
    ("95% interval", "s", "interval", "{}"),
)


def rows(series: Sequence[Series]) -> list[dict[str, Any]]:
    """One dictionary per system; a number that is missing or infinite is None."""
    return [row(item, point) for item in series for point in item.points]


def row(series: Series, point: Point) -> dict[str, Any]:
    """The numbers of one system. Times in seconds, throughputs in samples per second, efficiencies as shares."""
    score, system = point.score, point.score.system
    low, high = score.confidence_s if len(score.runs) > 2 else (math.inf, math.inf)
    values = {
        "submitter": printable(series.submitter),
        "accelerator": printable(series.accelerator),
        "system": printable(system.name),
        "baseline": printable(point.baseline.system.name),
        "round": system.round_name,
        "nodes": system.nodes,
        "accelerators": system.accelerators,
        "global_batch": system.global_batch_size,
        "runs": len(score.runs),
        "did_not_converge": score.failed,
        "olympic_s": score.olympic_s,
        "rcp_factor": score.factor,
        "score_s": score.seconds,
        "interval_low_s": low,
        "interval_high_s": high,
        "steady": score.steady,
        "total": score.total,
        "steady_per_accelerator": point.steady_per_device,
        "steady_efficiency": point.steady_efficiency,
        "steady_efficiency_evenly": point.evenly_steady_efficiency,
        "total_efficiency": point.total_efficiency,
        "ideal": point.ideal,
        "time_speedup": point.time_speedup,
        "speed_part": point.speed_part,
        "convergence_part": point.convergence_part,
        "samples_to_target": score.samples_to_target,
        "mfu": point.mfu,
        "folder": str(system.place.folder),
    }
    return {key: None if isinstance(v, float) and not math.isfinite(v) else v for key, v in values.items()}


def cell(values: dict[str, Any], key: str, form: str) -> str:
    """One number of a row as text, '-' where there is none."""
    if key == "interval":
        return interval(values)
    value = values[key]
    return "-" if value is None else form.format(value)


def interval(values: dict[str, Any]) -> str:
    """The 95% interval of a row; open where resamples hold two failed runs."""
    low, high = values["interval_low_s"], values["interval_high_s"]
    if low is None:
        return "-"
    return f"{low:,.1f} to {'open' if high is None else f'{high:,.1f}'}"


def table(series: Series) -> Table:
    """One row per number, one column per system: so it fits a terminal."""
    lines = Table(box=None, pad_edge=False, title=Text(f"\n{printable(series.name)}"), title_justify="left")
    lines.add_column("")
    found = [row(series, point) for point in series.points]
    for values in found:
        lines.add_column(Text(values["system"]), justify="right", overflow="fold")
    for heading, unit, key, form in COLUMNS:
        label = f"{heading} ({unit})" if unit else heading
        lines.add_row(label, *(cell(values, key, form) for values in found))
    return lines


def headline(series: Series) -> str:
    """What the largest system of a series comes to, in a sentence."""
    point = series.points[-1]
    system, name = point.score.system, printable(series.name)
    if point.score is point.baseline:
        speed = _or_dash(point.score.steady, "{:,.0f}")
        return f"{name}: one system of {system.accelerators:,} accelerators, {speed} samples/s; scaling takes a second."
    steady = _or_dash(point.steady_efficiency, "{:.1%}")
    before, after = point.baseline.system, system
    kept = f"{name}: {steady} of the throughput per accelerator of {before.accelerators:,} is kept at "
    kept += f"{after.accelerators:,}; "
    if point.time_speedup is None:
        return kept + "one of the two has no time to train."
    return (
        f"{kept}the time to train falls {point.time_speedup:.2f} times instead of "
        f"{_or_dash(point.ideal, '{:g}')}: {_or_dash(point.speed_part, '{:.2f}')} from speed x "
        f"{_or_dash(point.convergence_part, '{:.3f}')} from convergence (global batch "
        f"{_or_dash(before.global_batch_size, '{:,}')} to {_or_dash(after.global_batch_size, '{:,}')})."
    )


def footnotes(series: Sequence[Series]) -> list[str]:
    """What has to be known beside the numbers."""
    notes = []
    for item in series:
        rounds = sorted({str(point.score.system.round_name) for point in item.points})
        if len(rounds) > 1:
            notes.append(
                f"{printable(item.submitter)}: systems of different rounds are compared ({', '.join(rounds)})."
            )
        for point in item.points:
            name = printable(f"{point.score.system.submitter} {point.score.system.name}")
            notes += [f"{name}: {note}" for note in _of_point(point)]
    if any(point.mfu is not None for item in series for point in item.points):
        notes.append(
            f"MFU: model FLOPs of {TOKENS_PER_SAMPLE} tokens a sample (half of the 512 are padding, arXiv 2107.02027), "
            "nothing recomputed, over the accelerator's dense 16-bit peak."
        )
    return notes


def _of_point(point: Point) -> list[str]:
    score, notes = point.score, []
    steady, evenly = point.steady_efficiency, point.evenly_steady_efficiency
    if steady is not None and evenly is not None and abs(steady - evenly) > NOTABLE:
        first = next(run.evaluations[0] for run in score.runs if run.evaluations)
        notes.append(
            f"evaluations are not equally far apart in the logs (the first one stands at {first.samples:,} samples); "
            f"steady efficiency is {steady:.1%} by the logged samples, and {evenly:.1%} if they are taken as equally "
            "far apart."
        )
    if any(run.samples_are_inferred for run in score.runs):
        notes.append("epoch_num is a placeholder; samples of evaluations follow from the batch and the rule.")
    if score.failed:
        outcome = "one is dropped as the slowest" if score.failed == 1 else "one would be dropped as the slowest"
        outcome += "." if score.failed == 1 else ", more are no MLPerf result, and there is no time to train."
        notes.append(f"{score.failed} run(s) did not converge and count as infinite; {outcome}")
    batches = sorted({run.global_batch_size for run in score.runs if run.global_batch_size is not None})
    if len(batches) > 1:
        sizes = ", ".join(f"{batch:,}" for batch in batches)
        notes.append(f"its runs have different global batches ({sizes}); they are no result of one system.")
    if len(score.runs) != statistics.RUNS:
        mean = "; the time of fewer than three is their plain mean" if len(score.runs) < 3 else ""
        notes.append(f"{len(score.runs)} run(s) are no MLPerf result, which has {statistics.RUNS}{mean}.")
    if score.factor != 1:
        notes.append(
            f"the time to train is scaled by {score.factor:.6f}, because it converges faster than the reference; "
            "speed-ups compare times as they were."
        )
    return notes


def to_json(series: Sequence[Series]) -> dict[str, Any]:
    """Everything, with the file and line that each number of a run comes from."""
    return {
        "series": [
            {
                "submitter": item.submitter,
                "accelerator": item.accelerator,
                "headline": headline(item),
                "systems": [row(item, point) | {"sources": _sources(point)} for point in item.points],
            }
            for item in series
        ],
        "notes": footnotes(series),
    }


def _sources(point: Point) -> list[dict[str, Any]]:
    return [_source(run) | lines(run) for run in point.score.runs]


def _source(run: Run) -> dict[str, Any]:
    return {"path": str(run.path), "seconds": run.seconds, "converged": run.converged, "samples": run.train_samples}


def lines(run: Run) -> dict[str, int]:
    """The lines of a log that its numbers come from; 0 where there is none."""
    first, last = (run.evaluations[0].line, run.evaluations[-1].line) if run.evaluations else (0, 0)
    named = {f"{key}_line": run.line(key) for key in ("run_start", "run_stop", "train_samples", "seed")}
    return named | {"first_evaluation_line": first, "last_evaluation_line": last}


def write_files(series: Sequence[Series], folder: Path) -> list[Path]:
    """scaling.csv and scaling.json in a folder, each whole or not at all."""
    found = rows(series)
    table_file, json_file = folder / CSV_FILE, folder / JSON_FILE
    with replacing(table_file).open("w", newline="", encoding="utf-8", errors="backslashreplace") as file:
        writer = csv.DictWriter(file, fieldnames=list(found[0]))
        writer.writeheader()
        writer.writerows(found)
    put(table_file)
    replacing(json_file).write_text(json.dumps(to_json(series), indent=1) + "\n", encoding="utf-8")
    put(json_file)
    return [table_file, json_file]


def replacing(path: Path) -> Path:
    """Where to write what is to replace a file."""
    return path.with_name(f".{path.name}.unfinished")


def put(path: Path) -> Path:
    """Moves what was written into its place."""
    os.replace(replacing(path), path)
    return path


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None or not math.isfinite(value) else form.format(value)
