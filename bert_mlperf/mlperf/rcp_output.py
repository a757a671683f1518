"""`bert-mlperf rcp`: convergence of results beside the reference points, as a table and as a picture."""

import math
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from rich.console import Console
from rich.table import Table

from bert_mlperf.config import rules
from bert_mlperf.config.doctor import PIPE_WIDTH
from bert_mlperf.errors import UserError
from bert_mlperf.mlperf import rcp
from bert_mlperf.mlperf.rcp import Convergence, Reference
from bert_mlperf.report.charts import BLUE, GRAY, GREEN, ORANGE
from bert_mlperf.report.logs import printable
from bert_mlperf.report.systems import SystemRuns, find_systems

MARKERS = "osD^vP*X<>"
MAX_BATCH = 10_000_000  # far above what any system trains with
BESIDE = 1.04  # ratio of two places on the axis for results with the same batch
SIZE_INCHES, DOTS_PER_INCH = (9.0, 6.6), 120
KINDS = {"point": "reference point", "interpolated": "interpolated", "smallest": "the smallest point"}


def main_rcp(
    paths: Sequence[Path], *, round_name: str | None = None, batches: Sequence[int] = (), picture: Path | None = None
) -> int:
    """Print the table; the exit code: 0 if every result passes, else 1. UserError on bad input."""
    if not paths and not batches:
        raise UserError("Give folders of runs, or --batch with a global batch size, or both.")
    given = None if round_name is None else rules.parse_round(round_name)
    for batch in batches:
        if not 1 <= batch <= MAX_BATCH:
            raise UserError(f"--batch is {batch}, expected samples of a step, from 1 to {MAX_BATCH:,}.")
    if picture is not None:
        _check_picture(picture)
    found = [(system, *_converged(system, given)) for system in (find_systems(paths) if paths else [])]
    console = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False, markup=False, emoji=False)
    if found:
        console.print(results_table(found))
        for system, _, result in found:
            for line in remarks(system, result):
                console.print(line, soft_wrap=True)
    if batches:
        console.print(batches_table(batches, given or rules.DEFAULT_ROUND))
    if picture is not None:
        draw(found, given or (found[0][1] if found else rules.DEFAULT_ROUND), picture)
        console.print(f"picture {picture}", soft_wrap=True)
    return 0 if all(result.passed for _, _, result in found) else 1


def _check_picture(path: Path) -> None:
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise UserError(f"--picture {path}: expected a name that ends in .png, .svg or .pdf.")
    if not path.parent.is_dir():
        raise UserError(f"--picture {path}: the folder {path.parent} does not exist; make it first.")


def _converged(system: SystemRuns, given: str | None) -> tuple[str, Convergence]:
    name = rules.parse_round(given or system.round_name or rules.DEFAULT_ROUND)
    return name, rcp.convergence(system.runs, name)


def results_table(found: Sequence[tuple[SystemRuns, str, Convergence]]) -> Table:
    """One row per result. Everything in training samples to the target."""
    table = Table(box=None, pad_edge=False, title="samples to the target", title_justify="left")
    left = ("system", "round", "reference")
    names = (
        "batch",
        "runs",
        "least",
        "mean",
        "spread",
        "reference mean",
        "spread ",
        "least accepted",
        "margin",
        "factor",
    )
    for name in (*left[:2], *names[:5], left[2], *names[5:], "verdict"):
        table.add_column(name, justify="left" if name in (*left, "verdict") else "right", overflow="fold")
    for system, round_name, result in found:
        ref = result.reference
        table.add_row(
            printable(system.name),
            round_name,
            f"{result.global_batch_size:,}",
            str(len(result.samples)),
            _count(result.least),
            _count(result.mean),
            _count(result.spread),
            "none"
            if ref is None
            else KINDS[ref.kind] + (f" ({ref.global_batch_size:,})" if ref.kind == "smallest" else ""),
            *(
                ("-",) * 4
                if ref is None
                else (_count(ref.mean), _count(ref.spread), _count(ref.minimum), _share(result))
            ),
            f"{result.factor:.6f}",
            "passes" if result.passed else "FAILS",
        )
    return table


def remarks(system: SystemRuns, result: Convergence) -> list[str]:
    """What the row of a result does not say."""
    lines = []
    if result.complaint:
        lines.append(f"{system.name}: fails: {result.complaint}")
    if result.factor > 1:
        lines.append(
            f"{system.name}: faster than the reference, within chance: its time is multiplied by {result.factor!r}"
        )
    if result.failed:
        lines.append(f"{system.name}: {result.failed} run(s) did not converge and count as the slowest")
    if result.from_train_samples:
        lines.append(f"{system.name}: samples are those of train_samples, because epoch_num is a placeholder")
    return lines


def batches_table(batches: Sequence[int], round_name: str) -> Table:
    """The reference at any global batch."""
    table = Table(box=None, pad_edge=False, title=f"reference of round {round_name}", title_justify="left")
    for name in ("batch", "mean samples", "spread", "least accepted", "largest factor", "evaluate every", "from"):
        table.add_column(name, justify="left" if name == "from" else "right")
    for batch in batches:
        ref = rcp.reference(round_name, batch)
        interval = f"{rules.eval_interval_samples(batch):,}"
        if ref is None:
            table.add_row(f"{batch:,}", "-", "-", "-", "-", interval, "none: above all points, one has to be submitted")
        else:
            values = (_count(ref.mean), _count(ref.spread), _count(ref.minimum), f"{ref.speedup:.6f}")
            table.add_row(f"{batch:,}", *values, interval, KINDS[ref.kind])
    return table


def draw(found: Sequence[tuple[SystemRuns, str, Convergence]], round_name: str, path: Path) -> None:
    """The runs of each result over its global batch, on the band from the least accepted mean to the reference's."""
    figure = Figure(figsize=SIZE_INCHES, dpi=DOTS_PER_INCH, layout="constrained")
    axes = figure.subplots()
    points = rcp.points(round_name)
    _draw_band(axes, points, round_name, least=min((result.global_batch_size for _, _, result in found), default=10**9))
    beside: Counter[int] = Counter()  # systems at a batch, drawn one beside the other
    for index, (system, _, result) in enumerate(found):
        batch = result.global_batch_size
        _draw_runs(axes, system, result, index, x=batch * BESIDE ** beside[batch])
        beside[batch] += 1
    sizes = sorted({p.global_batch_size for p in points} | {result.global_batch_size for _, _, result in found})
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(_apart(sizes)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / 1e6:.1f}"))
    axes.set_xlabel("global batch (samples)")
    axes.set_ylabel("samples to the target (millions)")
    axes.set_title(f"Convergence beside the reference of round {round_name}", fontsize=12)
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", fontsize=8, ncols=1 if len(found) > 1 else 2)
    try:
        figure.savefig(path)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}; choose another place.") from None


def _draw_band(axes: Axes, points: Sequence[Reference], round_name: str, *, least: int) -> None:
    """`least`: the smallest batch that is drawn; below all points the smallest one holds."""
    low, high = min(least, points[0].global_batch_size), points[-1].global_batch_size
    sizes = sorted({round(low * (high / low) ** (k / 60)) for k in range(61)} | {p.global_batch_size for p in points})
    band = [ref for size in sizes if (ref := rcp.reference(round_name, size)) is not None]
    x = [size for size in sizes if low <= size <= high]
    axes.fill_between(
        x,
        [r.minimum for r in band],
        [r.mean for r in band],
        color=GREEN,
        alpha=0.25,
        lw=0,
        label="accepted, time is scaled",
    )
    axes.plot(x, [r.mean for r in band], color=GREEN, lw=1.2, label="mean of the reference")
    axes.plot(x, [r.minimum for r in band], color=GREEN, lw=1.2, ls="--", label="least accepted mean")
    axes.plot([p.global_batch_size for p in points], [p.mean for p in points], "|", color=GREEN, ms=12, mew=2)


def _draw_runs(axes: Axes, system: SystemRuns, result: Convergence, index: int, *, x: float) -> None:
    """Open dots for the runs, one that did not converge left out; a full mark for their olympic mean."""
    color, marker = (BLUE, ORANGE, GRAY)[index % 3], MARKERS[index % len(MARKERS)]
    finite = [value for value in result.samples if math.isfinite(value)]
    axes.plot([x] * len(finite), finite, marker, mfc="none", mec=color, ms=5, alpha=0.7, ls="none")
    if math.isfinite(result.mean):
        label = f"{system.submitter} {system.name}"
        label = label if len(label) <= 60 else f"{label[:57]}..."
        axes.plot([x], [result.mean], marker, color=color, ms=9, ls="none", label=f"{label}: runs and mean")


def _apart(sizes: Sequence[int], ratio: float = 1.3) -> list[int]:
    """Those of ascending sizes that are far enough apart to be written beside one another."""
    kept: list[int] = []
    for size in sizes:
        if not kept or size >= kept[-1] * ratio:
            kept.append(size)
    return kept


def _count(value: float) -> str:
    return f"{value:,.0f}" if math.isfinite(value) else "-"


def _share(result: Convergence) -> str:
    return "-" if result.margin is None or not math.isfinite(result.margin) else f"{result.margin:+.1%}"
