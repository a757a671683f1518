import io
import math

import pytest

from bert_mlperf.report.progress import Progress, time_left
from tests.report.runs import INTERVAL


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def show(stream: io.StringIO, *, target: float | None = 0.72, active: bool = True) -> None:
    with Progress(total_samples=2560, target=target, active=active, stream=stream) as progress:
        progress.interval(**INTERVAL)
        progress.evaluation(samples=640, accuracy=0.58349)
        progress.interval(**INTERVAL | {"samples": 1280, "samples_per_s": 3.14159})
        progress.note("a line")


def test_a_pipe_gets_one_line_per_call() -> None:
    stream = io.StringIO()
    show(stream)
    text = stream.getvalue()
    assert "\r" not in text and "\x1b" not in text
    assert text.splitlines() == [
        " 25%  640 / 2,560 samples | loss 7.500 | lr 1.00e-03 | grad 1.25 | 1,140 samples/s | 50,000 tokens/s | "
        "wait 0.2% | 0:02 left at most",
        "eval     0.5835 (target 0.720) at 640 samples",
        " 50%  1,280 / 2,560 samples | loss 7.500 | lr 1.00e-03 | grad 1.25 | acc 0.583 @ 640 (target 0.720) | "
        "3.14 samples/s | 50,000 tokens/s | wait 0.2% | 6:48 left at most",
        "a line",
    ]


def test_without_a_target_none_is_named() -> None:
    stream = io.StringIO()
    show(stream, target=None)
    assert "target" not in stream.getvalue()
    assert "acc 0.583 @ 640 |" in stream.getvalue()


def test_a_terminal_gets_a_bar_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    stream = Terminal()
    show(stream)
    text = stream.getvalue()
    assert "50%  1,280 / 2,560 samples" in text
    assert "left" in text  # wrapped, not cut
    assert "eval     0.5835 (target 0.720) at 640 samples\n" in text
    assert text.endswith("\x1b[2K")  # the bar is erased


def test_other_ranks_write_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream in (io.StringIO(), Terminal()):
        show(stream, active=False)
        assert stream.getvalue() == ""


def test_progress_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    Progress(total_samples=1, target=None).note("hello")
    assert capsys.readouterr() == ("", "hello\n")


@pytest.mark.parametrize(
    ("samples", "rate", "text"),
    [(0, 5.0, "0:00"), (61, 1.0, "1:01"), (3661, 1.0, "1:01:01"), (1, 3.0, "0:01"), (-5, 1.0, "0:00"), (5, 0.0, "?")],
)
def test_time_left(samples: int, rate: float, text: str) -> None:
    assert time_left(samples, rate) == text
    assert time_left(samples, math.nan) == "?"
