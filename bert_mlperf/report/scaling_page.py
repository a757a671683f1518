"""The scaling report as one HTML page: no network, light and dark, every number with its file and line."""

import base64
import math
import os
from collections.abc import Sequence
from html import escape
from pathlib import Path

from bert_mlperf.report.logs import printable
from bert_mlperf.report.runs import Run
from bert_mlperf.report.scaling import Point, Series
from bert_mlperf.report.scaling_pictures import Charts
from bert_mlperf.report.scaling_rows import COLUMNS, cell, footnotes, headline, lines, put, replacing, row

STYLE = Path(__file__).with_name("scaling_page.css")
CAPTIONS = {
    "efficiency": "Throughput per accelerator against the baseline's: steady (first to last evaluation) and total.",
    "split": "Speed-up over the baseline: ideal, of throughput, and of the time to train, which convergence changes.",
    "throughput": "Steady throughput over accelerators; dashed: every accelerator as fast as in the baseline.",
    "time": "Time to train over accelerators, with the 95% interval of its runs; dashed: ideal.",
    "samples": "Training samples to the target over the global batch.",
    "runs": "Every run against the olympic mean of its system: distances come in steps of an evaluation interval.",
}
RUN_COLUMNS = (
    "seconds", "converged", "samples", "evaluations", "accuracy at the end", "steady samples/s", "seed", "global batch"
)  # fmt: skip


def write_page(series: Sequence[Series], path: Path, *, title: str) -> Path:
    """Writes the page, whole or not at all."""
    replacing(path).write_text(page(series, title=title), encoding="utf-8", errors="backslashreplace")
    return put(path)


def page(series: Sequence[Series], *, title: str) -> str:
    """The page as text. Whatever comes from a log or a description is escaped."""
    top = _common([point for item in series for point in item.points])
    logs = sum(len(point.score.runs) for item in series for point in item.points)
    systems = sum(len(item.points) for item in series)
    body = [
        f"<h1>{_text(title)}</h1>",
        f'<p class="soft">MLPerf Training BERT: {systems} system(s), {logs} runs.</p>',
        *(f'<p class="headline">{_text(headline(item))}</p>' for item in series),
        "<h2>Systems</h2>",
        _summary(series),
        _notes(series),
        "<h2>Charts</h2>",
        *_figures(series),
        "<h2>Runs</h2>",
        "<p>Each number of the table above comes from the runs of its system; a place is file:line of the log.</p>",
        *(_details(item, point, top) for item in series for point in item.points),
        _definitions(),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_text(title)}</title>\n<style>\n{STYLE.read_text(encoding='ascii')}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


def _summary(series: Sequence[Series]) -> str:
    head = "".join(
        f'<th scope="col">{_text(heading)}{f"<br><span class=soft>{_text(unit)}</span>" if unit else ""}</th>'
        for heading, unit, _, _ in COLUMNS
    )
    parts = ['<div class="scroll" tabindex="0"><table><thead><tr><th scope="col" class="name">system</th>']
    parts.append(f"{head}</tr></thead><tbody>")
    for item in series:
        parts.append(
            f'<tr class="group"><th scope="colgroup" colspan="{len(COLUMNS) + 1}">{_text(item.name)}</th></tr>'
        )
        for point in item.points:
            values = row(item, point)
            anchor = anchor_of(point)
            cells = "".join(f'<td><a href="#{anchor}">{_text(cell(values, k, f))}</a></td>' for _, _, k, f in COLUMNS)
            mark = " (baseline)" if point.score is point.baseline else ""
            name = _text(values["system"]) + mark
            parts.append(f'<tr><th scope="row">{name}</th>{cells}</tr>')
    return "".join([*parts, "</tbody></table></div>"])


def _notes(series: Sequence[Series]) -> str:
    notes = footnotes(series)
    return "<ul>" + "".join(f"<li>{_text(note)}</li>" for note in notes) + "</ul>" if notes else ""


def _figures(series: Sequence[Series]) -> list[str]:
    """Each chart in light and dark; the browser takes the one that fits."""
    light, dark = Charts(series, dark=False).draw(), Charts(series, dark=True).draw()
    figures = []
    for name, content in light.items():
        caption = _text(CAPTIONS[name])
        figures.append(
            '<figure><div class="scroll" tabindex="0"><picture>'
            f'<source media="(prefers-color-scheme: dark)" srcset="{_data(dark[name])}">'
            f'<img src="{_data(content)}" alt="{caption} The numbers are in the table above."></picture></div>'
            f"<figcaption>{caption}</figcaption></figure>"
        )
    return figures


def _data(content: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(content).decode("ascii")


def _details(series: Series, point: Point, top: Path) -> str:
    score = point.score
    head = "".join(f'<th scope="col">{name}</th>' for name in RUN_COLUMNS)
    body = "".join(_run_row(point, index, run, top) for index, run in enumerate(score.runs))
    folder = _text(_place(score.system.place.folder, top))
    kind = f"{score.system.round_name or 'round unknown'}, {score.system.division or 'division unknown'}"
    return (
        f"<details><summary>{_text(series.submitter)}: {_text(score.system.name)}</summary>"
        f'<p id="{anchor_of(point)}">{folder}, {_text(kind)}. '
        f"Olympic mean {_seconds(score.olympic_s)}, RCP factor {score.factor:.6f}.</p>"
        f'<div class="scroll" tabindex="0"><table><thead><tr><th scope="col" class="name">run</th>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div></details>"
    )


def _run_row(point: Point, index: int, run: Run, top: Path) -> str:
    at = lines(run)
    counts = "" if index in point.score.counted else " (not counted)"
    last = run.evaluations[-1] if run.evaluations else None
    steady = None if run.steady is None else run.steady[0] / run.steady[1]
    cells = (
        (_seconds(run.seconds) + counts, at["run_start_line"], at["run_stop_line"]),
        ("yes" if run.converged else f"no: {run.status or 'not stopped'}", at["run_stop_line"]),
        ("-" if run.train_samples is None else f"{run.train_samples:,}", at["train_samples_line"]),
        (str(len(run.evaluations)), at["first_evaluation_line"], at["last_evaluation_line"]),
        ("-" if last is None or math.isnan(last.accuracy) else f"{last.accuracy:.5f}", at["last_evaluation_line"]),
        ("-" if steady is None else f"{steady:,.0f}", at["first_evaluation_line"], at["last_evaluation_line"]),
        (run.text("seed")[:24] or "-", at["seed_line"]),
        ("-" if run.global_batch_size is None else f"{run.global_batch_size:,}", run.line("global_batch_size")),
    )
    place = _text(_place(run.path, top))
    text = "".join(f"<td>{_text(value)}{_at(places)}</td>" for value, *places in cells)
    return f'<tr><th scope="row" title="{place}">{_text(run.path.name)}</th>{text}</tr>'


def _at(places: Sequence[int]) -> str:
    known = [str(place) for place in places if place]
    return f' <span class="soft">:{_text(", :".join(dict.fromkeys(known)))}</span>' if known else ""


def _definitions() -> str:
    terms = (
        ("steady", "training samples over seconds from the first to the last evaluation; mean of the runs"),
        ("total", "training samples over seconds from run_start to run_stop, all runs together"),
        ("efficiency", "throughput over the baseline's, divided by accelerators over the baseline's"),
        ("time to train", "mean of the runs without the fastest and the slowest, multiplied by the RCP factor"),
        ("speed-up", "the baseline's time over the system's, not scaled: from speed x from convergence"),
        ("95% interval", "of the score, from resampling the runs; open where resamples hold two failed runs"),
    )
    return "<h2>Words</h2><ul>" + "".join(f"<li><b>{_text(a)}</b>: {_text(b)}.</li>" for a, b in terms) + "</ul>"


def anchor_of(point: Point) -> str:
    """A name for the details of a system that is its own on the page."""
    return "s" + base64.b32encode(os.fsencode(point.score.system.place.folder)).decode("ascii").rstrip("=").lower()


def _common(points: Sequence[Point]) -> Path:
    """The folder above everything, from which places are told."""
    return Path(os.path.commonpath([point.score.system.place.folder.parent for point in points]))


def _place(path: Path, top: Path) -> str:
    return str(path.relative_to(top)) if path.is_relative_to(top) else path.name


def _text(value: str) -> str:
    """Text of a log or a description, as text of a page."""
    return escape(printable(value))


def _seconds(value: float | None) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value:,.3f} s"
