import io

import pytest

from bert_mlperf.report import work_progress
from bert_mlperf.report.work_progress import WorkProgress


def test_line_counts_the_rate_of_this_run_only() -> None:
    progress = WorkProgress(
        "examples", total_bytes=40_000_000, total_files=4, done_bytes=10_000_000, done_files=1, stream=io.StringIO()
    )
    progress.file_done()
    progress.bytes_done(20_000_000)
    line = progress.line(progress._start + 5)
    assert line == "examples  75%  2 / 4 files | 30.0 / 40.0 MB | 4.00 MB/s | 0:03 left"


def test_one_line_an_interval_on_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    now = [100.0]
    monkeypatch.setattr(work_progress.time, "monotonic", lambda: now[0])
    with WorkProgress("clean", total_bytes=1000, total_files=1, stream=stream) as progress:
        for second in range(25):
            now[0] = 100.0 + second
            progress.bytes_done(10 * second)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2 and lines[0].startswith("clean     10%  0 / 1 files") and "\r" not in stream.getvalue()


def test_no_time_left_before_the_first_byte() -> None:
    progress = WorkProgress("clean", total_bytes=10, total_files=1, stream=io.StringIO())
    assert "0.00 MB/s | ? left" in progress.line(progress._start + 1)
