import logging
import os
import signal
from pathlib import Path

import pytest
from mlperf_logging.compliance_checker import mlp_compliance

from bert_mlperf.mlperf import official
from bert_mlperf.report.logs import read_log
from tests.mlperf import logs


def texts(path: Path, round_name: str = "5.0.0", severity: str = "error") -> list[str]:
    """What the official compliance checker says of a log."""
    found = official.compliance(read_log(path), round_name)
    assert all(f.source == "official" and f.path == path for f in found)
    return [f.what for f in found if f.severity == severity]


def changed(path: Path, old: str, new: str) -> Path:
    """A copy of a log with a text replaced."""
    text = path.read_text()
    assert old in text
    copy = path.with_name("changed.txt")
    copy.write_text(text.replace(old, new))
    return copy


def line_number(path: Path, key: str) -> int:
    """Number of the first line with a key."""
    return 1 + next(number for number, line in enumerate(path.read_text().splitlines()) if f'"key": "{key}"' in line)


def lines_of(path: Path, key: str) -> list[str]:
    return [line for line in path.read_text().splitlines() if f'"key": "{key}"' in line]


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    return logs.write_run(tmp_path, division="closed")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "0.7205",
            "0.7199",
            "eval_accuracy: expected at least one value >= 0.72 and < 1.0, found at most 0.7199 (line ",
        ),
        ("0.7205", "1.0", "eval_accuracy: expected at least one value >= 0.72 and < 1.0, found at most 1.0"),
        ("0.7205", '"0.7205"', "expected a number, found '0.7205'"),
        ("0.7205", "null", "expected a number, found None"),
        ('"closed"', '"Closed"', "): expected one of closed, open, found 'Closed'"),
        ('"value": "bert"', '"value": "BERT"', "): expected one of retinanet"),
        (
            '"gradient_accumulation_steps", "value": 2',
            '"gradient_accumulation_steps", "value": 0',
            "a value above 0, found 0",
        ),
        ('"train_samples", "value": 3000', '"train_samples", "value": ""', "a value that is not empty, found ''"),
        (
            '"status": "success", ',
            "",
            "): expected metadata status, found metadata {'epoch_num': 3000",
        ),
        ('"epoch_count": 1', '"epoch_count": 0', "): expected metadata epoch_count > 0"),
        ('"key": "seed", "value": 11', '"key": "seed"', "seed: the field value is missing"),
        ('"key": "seed", "value": 11,', '"key": "seed", "value": 11', "not valid JSON after :::MLLOG"),
        (":::MLLOG {", ":::MLLOG [{", "not valid JSON after :::MLLOG"),
    ],
)
def test_complaints_say_key_expected_and_found(closed: Path, old: str, new: str, expected: str) -> None:
    errors = texts(changed(closed, old, new))
    assert any(expected in error for error in errors), errors
    assert not any("\n" in error or "v['" in error for error in errors)


def test_order_and_time_of_the_start(closed: Path) -> None:
    text = closed.read_text()
    start, stop, run = (lines_of(closed, key)[0] + "\n" for key in ("init_start", "init_stop", "run_start"))
    swapped = closed.with_name("swapped.txt")
    swapped.write_text(text.replace(stop, "").replace(run, run + stop))
    errors = texts(swapped)
    first = line_number(swapped, "run_start")
    assert f"run_start (line {first}): expected to stand after init_stop, found it in another order" in errors
    assert f"init_stop (line {first + 1}): expected to stand before run_start, found it in another order" in errors
    time_ms = start.split('"time_ms": ')[1].split(",")[0]
    for minutes, name, ok in ((31, "5.0.0", False), (29, "5.0.0", True), (21, "0.7.0", False)):
        late = changed(closed, start, start.replace(time_ms, str(int(time_ms) - 60_000 * minutes)))
        errors = texts(late, name)
        assert (not errors) is ok
        limit = 20 if name == "0.7.0" else 30
        words = f"expected less than {limit} minutes after the first init_start, found {minutes}.0"
        place = f"init_stop (line {line_number(late, 'init_stop')})"
        assert ok or errors[0].startswith(f"{place}: {words}")


def test_a_doubled_key_is_a_warning_or_an_error(closed: Path) -> None:
    line, number = lines_of(closed, "global_batch_size")[0] + "\n", line_number(closed, "global_batch_size")
    same = changed(closed, line, line + line)
    assert texts(same) == []
    assert texts(same, severity="warning") == [
        "global_batch_size: expected exactly one line, found 2 with the same value (lines 10, 11)",
    ]
    assert texts(changed(closed, line, line + line.replace("16", "32"))) == [
        "global_batch_size: expected exactly one line, found 2 with different values 16, 32 "
        f"(lines {number}, {number + 1})",
    ]


def test_missing_doubled_and_foreign_variables_are_counted(closed: Path) -> None:
    pooler = next(line for line in lines_of(closed, "weights_initialization") if "bert/pooler/dense/kernel" in line)
    for new, words in (
        ("", "1 missing (first: bert/pooler/dense/kernel)"),
        (pooler + "\n" + pooler, "1 more than once (first: bert/pooler/dense/kernel)"),
        (
            pooler.replace("pooler", "puller"),
            "1 missing (first: bert/pooler/dense/kernel); 1 not part of BERT-Large (first: bert/puller/dense/kernel)",
        ),
    ):
        path = changed(closed, pooler, new)
        expected = f"weights_initialization: expected each of 398 variables once, found {words}"
        assert texts(path, "2.1.0") == [expected]
        assert texts(path, "3.0.0") == []


def test_a_crash_of_the_checker_does_not_poison_the_next_log(closed: Path) -> None:
    assert texts(changed(closed, '"closed"', '"Closed"'))
    assert texts(closed) == []


def test_the_shape_of_a_crash_is_told(closed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr(mlp_compliance, "main", crash)
    assert texts(closed) == [
        "the official checker stopped here (RuntimeError: boom); what it did not reach is not checked"
    ]


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_stop_is_no_finding(closed: Path, monkeypatch: pytest.MonkeyPatch, stop: signal.Signals) -> None:
    """The checker's bare `except` takes KeyboardInterrupt for a fault of the log, and goes on."""

    class Told(BaseException):
        pass

    def handler(signum: int, frame: object) -> None:
        raise Told(signum)

    def deaf(*_: object) -> None:
        try:
            os.kill(os.getpid(), stop)
        except:  # noqa: E722
            pass

    monkeypatch.setattr(mlp_compliance, "main", deaf)
    before = signal.signal(stop, handler)
    try:
        with pytest.raises(Told, match=str(int(stop))):
            texts(closed)
        assert signal.getsignal(stop) is handler
    finally:
        signal.signal(stop, before)


def test_a_prefix_is_fine_and_line_numbers_are_those_of_the_file(closed: Path) -> None:
    text = "some other output\n\n" + closed.read_text().replace(":::MLLOG", "0: [rank0] :::MLLOG").replace(
        "0.7205", "0.71"
    )
    path = closed.with_name("prefixed.txt")
    path.write_text(text)
    (error,) = texts(path)
    line = int(error.split("line ")[1].rstrip(")"))
    assert '"eval_accuracy", "value": 0.71' in text.splitlines()[line - 1]


def test_root_logger_is_left_alone(closed: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = (list(logging.root.handlers), logging.root.manager.disable)
    assert texts(logs.without(closed, "seed", "run_stop"))
    assert (list(logging.root.handlers), logging.root.manager.disable) == before
    assert caplog.records == []
