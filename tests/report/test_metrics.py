import json
import math
from dataclasses import asdict
from pathlib import Path

import pytest

from bert_mlperf.errors import UserError
from bert_mlperf.report.metrics import METRICS_FILE, MetricsWriter, read_metrics
from tests.report import runs


def test_what_is_written_is_read(tmp_path: Path) -> None:
    metrics = read_metrics(runs.write_run(tmp_path) / METRICS_FILE)
    first = asdict(metrics.intervals[0])
    assert first.pop("time_s") >= 0
    assert first == runs.INTERVAL
    assert [(e.samples, e.accuracy, e.correct, e.total) for e in metrics.evaluations] == [
        (640, 0.3, 300, 1000),
        (1280, 0.6, 600, 1000),
        (1920, 0.73, 730, 1000),
    ]
    times = [item.time_s for pair in zip(metrics.intervals, metrics.evaluations, strict=True) for item in pair]
    assert times == sorted(times)


def test_every_line_is_json_and_there_at_once(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path)
    writer.interval(**runs.INTERVAL)
    (line,) = (tmp_path / METRICS_FILE).read_text().splitlines()
    assert json.loads(line)["kind"] == "interval"


def test_a_loss_that_is_not_finite_stays_json_and_comes_back_as_nan(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path) as writer:
        writer.interval(**runs.INTERVAL | {"loss": math.nan, "grad_norm": math.inf})
    text = (tmp_path / METRICS_FILE).read_text()
    assert "NaN" not in text and "Infinity" not in text
    (interval,) = read_metrics(tmp_path / METRICS_FILE).intervals
    assert math.isnan(interval.loss) and math.isnan(interval.grad_norm)
    assert interval.mlm_loss == 6.875


def test_a_wrong_field_is_an_error_also_where_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="los"):
        MetricsWriter(None).interval(**runs.INTERVAL | {"los": 1.0})
    MetricsWriter(None).interval(**runs.INTERVAL)
    assert list(tmp_path.iterdir()) == []


def test_an_unfinished_last_line_is_left_out_and_a_damaged_one_named(tmp_path: Path) -> None:
    path = runs.write_run(tmp_path) / METRICS_FILE
    lines = path.read_text().splitlines(True)
    path.write_text("".join(lines[:2]) + lines[2][:30])
    assert len(read_metrics(path).intervals) == 1
    path.write_text(lines[0] + '{"kind": "interval"}\n' + lines[1])
    with pytest.raises(UserError, match="line 2: no metrics record"):
        read_metrics(path)
    with pytest.raises(UserError, match="cannot be read: No such file"):
        read_metrics(tmp_path / "gone")
    with pytest.raises(UserError, match="cannot be written: No such file"):
        MetricsWriter(tmp_path / "gone")
