"""The timeline of a step as Chrome trace and as a picture."""

import json
from pathlib import Path

import matplotlib.image

from bert_mlperf.report.timeline import Span, draw_timeline, write_trace

SPANS = [
    Span(1, "compute", "forward", 100.010, 100.030),
    Span(0, "compute", "forward", 100.000, 100.020),
    Span(0, "compute", "backward", 100.020, 100.060),
    Span(0, "reduce", "reduce 0", 100.040, 100.050),
    Span(1, "gather", "gather 1", 100.070, 100.080),
    Span(1, "compute", "update", 100.060, 100.070),
]


def test_chrome_trace(tmp_path: Path) -> None:
    events = json.loads(write_trace(tmp_path, SPANS).read_text())["traceEvents"]
    names = [event["args"]["name"] for event in events if event["ph"] == "M"]
    assert names == ["rank 0", "rank 1"]
    spans = [event for event in events if event["ph"] == "X"]
    assert len(spans) == len(SPANS) and min(event["ts"] for event in spans) == 0
    (backward,) = [event for event in spans if event["name"] == "backward"]
    assert (backward["pid"], backward["tid"]) == (0, "compute")
    assert abs(backward["ts"] - 20_000) < 1 and abs(backward["dur"] - 40_000) < 1  # microseconds


def test_picture_shows_every_kind_of_work(tmp_path: Path) -> None:
    picture = matplotlib.image.imread(draw_timeline(tmp_path, SPANS, title="step 3"))
    colours = {tuple((255 * pixel[:3]).round().astype(int)) for row in picture[:, ::2] for pixel in row}
    wanted = {(0, 114, 178), (0, 158, 115), (89, 89, 89), (213, 94, 0), (204, 121, 167)}
    assert wanted <= colours
