"""The timeline of a step: compute, reduction and gather lanes of every rank, as Chrome trace and as a picture."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure

from bert_mlperf.report.charts import BLUE, DOTS_PER_INCH, GRAY, GREEN, ORANGE

TRACE_FILE, TIMELINE_FILE = "trace.json", "timeline.png"
LANES = ("compute", "reduce", "gather")
_COLOURS = {"forward": BLUE, "backward": GREEN, "update": GRAY, "reduce": ORANGE, "gather": "#CC79A7"}


class Span(NamedTuple):
    """A stretch of work; seconds on a clock that all ranks share."""

    rank: int
    lane: str
    name: str
    start: float
    end: float


def write_trace(folder: Path, spans: Sequence[Span]) -> Path:
    """Writes trace.json for chrome://tracing or Perfetto: a process a rank, a thread a lane, times in microseconds."""
    begin = min(span.start for span in spans)
    events: list[dict[str, object]] = [
        {"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank}"}}
        for rank in sorted({span.rank for span in spans})
    ]
    for span in spans:
        start, duration = 1e6 * (span.start - begin), 1e6 * (span.end - span.start)
        events.append({"ph": "X", "name": span.name, "pid": span.rank, "tid": span.lane, "ts": start, "dur": duration})
    path = folder / TRACE_FILE
    path.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}) + "\n", encoding="ascii")
    return path


def draw_timeline(folder: Path, spans: Sequence[Span], *, title: str) -> Path:
    """Draws timeline.png: a row a lane of each rank, milliseconds to the right."""
    ranks = sorted({span.rank for span in spans})
    begin = min(span.start for span in spans)
    figure = Figure(figsize=(10.0, 1.2 + 0.9 * len(ranks)), dpi=DOTS_PER_INCH, layout="constrained")
    axes = figure.subplots()
    rows = [(rank, lane) for rank in ranks for lane in LANES]
    for span in spans:
        kind = span.name.split()[0]
        left, width = 1e3 * (span.start - begin), 1e3 * (span.end - span.start)
        axes.barh(rows.index((span.rank, span.lane)), width, left=left, height=0.8, color=_COLOURS[kind], linewidth=0)
    for kind, colour in _COLOURS.items():
        axes.barh(0, 0, color=colour, label=kind)
    for place in range(len(LANES), len(rows), len(LANES)):
        axes.axhline(place - 0.5, color=GRAY, linewidth=0.5)
    axes.set_yticks(range(len(rows)), [f"rank {rank} {lane}" for rank, lane in rows], fontsize=8)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel("milliseconds")
    axes.set_title(title, fontsize=11)
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    figure.legend(loc="outside lower center", ncols=len(_COLOURS), fontsize=8, frameon=False)
    path = folder / TIMELINE_FILE
    figure.savefig(path)
    return path
