"""Our lint of one log: each required line dropped, doubled, moved, retyped, misspelled; values, times and samples."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from bert_mlperf.errors import UserError
from bert_mlperf.mlperf.check import check_log, lint
from bert_mlperf.mlperf.findings import Finding
from bert_mlperf.mlperf.requirements import required_once, required_some
from bert_mlperf.report.runs import read_run
from tests.mlperf import submission

Record = dict[str, Any]
NUMBERS = (
    "global_batch_size gradient_accumulation_steps opt_base_learning_rate opt_lamb_beta_1 opt_lamb_beta_2 "
    "opt_lamb_weight_decay_rate opt_learning_rate_training_steps opt_learning_rate_warmup_steps num_warmup_steps "
    "start_warmup_step opt_lamb_epsilon seed train_samples eval_samples d_batch_size"
).split()


def log_of(folder: Path, change: Callable[[list[Record]], None] = lambda _: None, **options: object) -> Path:
    """A valid closed log whose records were changed."""
    path = submission.write_log(folder / "result_0.txt", seed=7, **options)
    records = [json.loads(line.removeprefix(":::MLLOG ")) for line in path.read_text().splitlines()]
    records = [r for r in records if r["key"] != "weights_initialization"]  # round 5.0 does not ask for them
    change(records)
    path.write_text("".join(f":::MLLOG {json.dumps(record)}\n" for record in records))
    return path


def found(path: Path, severity: str = "error", round_name: str = "5.0.0") -> list[Finding]:
    return [f for f in lint(read_run(path), round_name) if f.severity == severity]


def at(records: list[Record], key: str) -> int:
    return next(index for index, record in enumerate(records) if record["key"] == key)


def test_a_valid_log_has_no_findings(tmp_path: Path) -> None:
    assert lint(read_run(log_of(tmp_path)), "5.0.0") == []


ONCE = required_once("5.0.0", "closed")


@pytest.mark.parametrize("key", (*ONCE, *required_some("closed")))
def test_a_dropped_line_is_named(tmp_path: Path, key: str) -> None:
    path = log_of(tmp_path, lambda records: records.__setitem__(slice(None), [r for r in records if r["key"] != key]))
    errors = found(path)
    assert any(f.rule == key and f"{key}: expected" in f.what and "found none" in f.what for f in errors), errors


@pytest.mark.parametrize("key", ONCE)
def test_a_doubled_line_is_named_with_the_second_place(tmp_path: Path, key: str) -> None:
    lines = []

    def double(records: list[Record]) -> None:
        index = at(records, key)
        records.insert(index + 1, dict(records[index]))
        lines.append(index + 2)

    (error,) = found(log_of(tmp_path, double))
    assert (error.rule, error.line) == (key, lines[0])
    assert f"found 2 with the same value (lines {lines[0] - 1}, {lines[0]})" in error.what


@pytest.mark.parametrize("key", (*ONCE, *required_some("closed")))
def test_a_key_in_another_case_is_named(tmp_path: Path, key: str) -> None:
    lines = []

    def upper(records: list[Record]) -> None:
        lines.extend(1 + i for i, r in enumerate(records) if r["key"] == key)
        for record in records:
            if record["key"] == key:
                record["key"] = key.capitalize()

    errors = found(log_of(tmp_path, upper))
    assert any(f.line == lines[0] and f.what == f"the key {key.capitalize()!r} is not {key!r}" for f in errors)


@pytest.mark.parametrize("key", NUMBERS)
@pytest.mark.parametrize("value", ["12", None, [1], True, -5, float("nan"), float("inf"), 1e300])
def test_a_retyped_number_is_named(tmp_path: Path, key: str, value: object) -> None:
    if (key, value) in (("seed", -5), ("start_warmup_step", -5), ("seed", 1e300)):
        return  # allowed
    lines = []

    def retype(records: list[Record]) -> None:
        lines.append(at(records, key) + 1)
        records[lines[0] - 1]["value"] = value

    errors = found(log_of(tmp_path, retype))
    if value == 1e300 and key in ("global_batch_size", "d_batch_size", "gradient_accumulation_steps", "train_samples"):
        return  # a whole number, if a large one; the batch check sees it beside the system
    if value == 1e300 and key.endswith("steps"):
        return
    assert any(f.line == lines[0] and f.rule == key and key in f.what for f in errors), errors


@pytest.mark.parametrize("pair", [("init_start", "init_stop"), ("init_stop", "run_start"), ("run_start", "run_stop")])
def test_swapped_milestones_are_named(tmp_path: Path, pair: tuple[str, str]) -> None:
    places = []

    def swap(records: list[Record]) -> None:
        first, second = (at(records, key) for key in pair)
        records[first], records[second] = records[second], records[first]
        places.append((first + 1, second + 1))

    errors = found(log_of(tmp_path, swap))
    assert any(f.what.startswith(f"{pair[1]} is ") and f.line == places[0][0] for f in errors), errors


@pytest.mark.parametrize(
    ("key", "shift_ms", "words"),
    [
        ("init_start", 10**9, "init_stop is 999,981.000 s before init_start"),
        ("run_start", 10**9, "eval_accuracy is"),
        ("run_stop", -2_000_000, "run_stop is 1,999.996 s before epoch_stop"),
        ("run_stop", 10**15, "is in the future"),
        ("run_start", -(10**12), "is before 2018"),
    ],
)
def test_times_that_cannot_be(tmp_path: Path, key: str, shift_ms: int, words: str) -> None:
    def shift(records: list[Record]) -> None:
        records[at(records, key)]["time_ms"] += shift_ms

    errors = found(log_of(tmp_path, shift))
    assert any(words in f.what for f in errors), errors


def test_a_clock_in_seconds_is_told(tmp_path: Path) -> None:
    def seconds(records: list[Record]) -> None:
        for record in records:
            record["time_ms"] /= 1000

    assert any("is before 2018" in f.what for f in found(log_of(tmp_path, seconds)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda r: r[at(r, "run_stop")]["metadata"].pop("status"), "expected status success or aborted, found ''"),
        (lambda r: r[at(r, "run_stop")]["metadata"].update(status="done"), "success or aborted, found 'done'"),
        (lambda r: r[at(r, "run_stop")]["metadata"].update(status="aborted"), "run_stop says aborted, and the last"),
        (
            lambda r: r[at(r, "run_stop") - 5].update(value=0.71),
            "success, and the last eval_accuracy is 0.71, below",
        ),
        (lambda r: r[at(r, "eval_accuracy")].update(value=1.0), "expected a number from 0 to below 1, found 1.0"),
        (lambda r: r[at(r, "eval_accuracy")].update(value=-0.1), "expected a number from 0 to below 1, found -0.1"),
        (lambda r: r[at(r, "eval_accuracy")].update(value=None), "expected a number from 0 to below 1, found None"),
        (lambda r: r[at(r, "eval_accuracy")]["metadata"].pop("epoch_num"), "expected metadata epoch_num, found none"),
        (lambda r: r[at(r, "eval_accuracy")]["metadata"].update(epoch_num=9**9), "does not exceed 387,420,489"),
        (lambda r: r[at(r, "eval_accuracy")]["metadata"].update(epoch_num=-3, samples_count=9), "from 0 on, found -3"),
        (
            lambda r: r[at(r, "eval_accuracy")]["metadata"].update(epoch_num="x"),
            "epoch_num as a number from 0 on, found",
        ),
        (
            lambda r: r[at(r, "block_start")]["metadata"].update(first_epoch_num=[1]),
            "first_epoch_num as a number from 0",
        ),
        (
            lambda r: r[at(r, "epoch_stop")]["metadata"].update(epoch_num=float("nan")),
            "metadata holds a number that is",
        ),
        (lambda r: r[at(r, "seed")].update(key=""), "the key is empty"),
        (lambda r: r[at(r, "eval_accuracy")]["metadata"].update(epoch_num=None), "from 0 on, found None"),
        (
            lambda r: r[at(r, "eval_accuracy")].update(metadata=None),
            "eval_accuracy: metadata is null, expected an object",
        ),
        (lambda r: r[at(r, "train_samples")].update(value=5), "train_samples is 5, the last evaluation (line"),
        (lambda r: r[at(r, "submission_division")].update(value="Closed"), "expected closed or open, found 'Closed'"),
        (lambda r: r[at(r, "submission_benchmark")].update(value="gpt3"), "expected bert, found 'gpt3'"),
        (
            lambda r: r[at(r, "max_predictions_per_seq")].update(value=80),
            "_predictions_per_seq: expected 76, found 80",
        ),
        (lambda r: r[at(r, "seed")].update(time_ms="x"), "seed: time_ms is x, expected milliseconds"),
        (lambda r: r[at(r, "seed")].update(time_ms="17e11"), 'time_ms is "17e11", expected a number of milliseconds'),
        (lambda r: r[at(r, "seed")].update(key=5), "the key is 5, expected a string"),
    ],
)
def test_errors_in_words(tmp_path: Path, change: Callable[[list[Record]], object], words: str) -> None:
    errors = found(log_of(tmp_path, lambda records: change(records) and None))
    assert any(words in f.what for f in errors), errors


@pytest.mark.parametrize(
    ("change", "rule", "words"),
    [
        (lambda r: r[at(r, "cache_clear")].update(value=False), "cache_clear", "expected true, found False"),
        (lambda r: r.insert(len(r), r.pop(0)), "cache_clear", "stands behind run_start"),
        (lambda r: r[at(r, "eval_samples")].update(value=10_240), "eval_samples", "expected 10,000, found 10240"),
        (lambda r: r[at(r, "train_samples")].update(value=2_600_000), "train_samples", "is 2,600,000, the last"),
        (lambda r: r.insert(-9, r[at(r, "block_start")]), "block_start", "2 block_start and 1 block_stop"),
        (lambda r: r[at(r, "submission_org")].update(value="ORG_PLACEHOLDER"), "submission_org", "a placeholder"),
        (lambda r: r[at(r, "opt_epsilon")].update(value=1e-5), "opt_lamb_epsilon", "is 1e-06, opt_epsilon is 1e-05"),
        (lambda r: r[at(r, "opt_lamb_beta_1")].update(key="opt_lamb_beta1"), "key-spelling", "like 'opt_lamb_beta_1'"),
        (lambda r: r.insert(30, r[0] | {"key": "tracked_stats", "value": {"x": float("nan")}}), "tracked_stats",
         "is no finite number"),
    ],
)  # fmt: skip
def test_warnings_in_words(tmp_path: Path, change: Callable[[list[Record]], object], rule: str, words: str) -> None:
    warnings = found(log_of(tmp_path, lambda records: change(records) and None), "warning")
    assert any(f.rule == rule and words in f.what for f in warnings), warnings


def test_evaluations_off_the_rule_are_a_warning_with_the_first_place(tmp_path: Path) -> None:
    def later(records: list[Record]) -> None:
        for record in records:
            if record["key"] == "eval_accuracy" and record["metadata"]["epoch_num"] > 1_000_000:
                record["metadata"]["epoch_num"] += 4480
            if record["key"] == "train_samples":
                record["value"] += 4480

    path = log_of(tmp_path, later)
    (warning,) = found(path, "warning")
    line = path.read_text().splitlines()[warning.line - 1]
    assert json.loads(line.removeprefix(":::MLLOG "))["metadata"]["epoch_num"] == 1_050_112 + 4480
    assert "evaluation at 1,054,592 samples, expected at 1,050,112 (10 batches behind it); 11 of 17" in warning.what
    assert found(path) == []


def test_a_missing_evaluation_is_named(tmp_path: Path) -> None:
    path = log_of(tmp_path, lambda records: records.pop(at(records, "eval_accuracy") + 4) and None)
    (warning,) = found(path, "warning")
    assert warning.what == "no evaluation at 750,400 samples; the next one stands at 900,032"


@pytest.mark.parametrize("offset", [-448, 448])
def test_a_batch_to_each_side_is_no_violation(tmp_path: Path, offset: int) -> None:
    def shift(records: list[Record]) -> None:
        for record in records:
            if record["key"] == "eval_accuracy":
                record["metadata"]["epoch_num"] += offset
            if record["key"] == "train_samples":
                record["value"] += offset

    assert lint(read_run(log_of(tmp_path, shift)), "5.0.0") == []


def test_a_placeholder_for_the_samples_is_a_warning(tmp_path: Path) -> None:
    def ones(records: list[Record]) -> None:
        for record in records:
            if record["key"] == "eval_accuracy":
                record["metadata"]["epoch_num"] = 1

    path = log_of(tmp_path, ones)
    assert [f.rule for f in lint(read_run(path), "5.0.0")] == ["epoch_num"]
    assert read_run(path).evaluations[2].samples == 450_240  # 3 * 150,000, rounded up to 448


def test_open_runs_are_not_held_to_what_the_closed_division_fixes(tmp_path: Path) -> None:
    def small(records: list[Record]) -> None:
        for key, value in (("eval_samples", 500), ("max_predictions_per_seq", 10), ("global_batch_size", 3000)):
            records[at(records, key)]["value"] = value
        del records[at(records, "seed")]

    assert lint(read_run(log_of(tmp_path, small, division="open")), "5.0.0") == []


# Text that comes out of fuzzing: lines of a real shape, cut, doubled, with foreign bytes in them.
LINES = [
    json.dumps({"time_ms": time_ms, "event_type": kind, "key": key, "value": value, "metadata": more})
    for kind, key, value, more, time_ms in submission.records(seed=1, evaluations=3)
    if key != "weights_initialization"
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def mutated_logs(draw: st.DrawFn) -> bytes:
    lines = list(LINES)
    for _ in range(draw(st.integers(1, 4))):
        index, how = (
            draw(st.integers(0, len(lines) - 1)),
            draw(st.sampled_from(("drop", "double", "cut", "field", "raw"))),
        )
        if how == "drop" and len(lines) > 1:
            del lines[index]
        elif how == "double":
            lines.insert(index, lines[draw(st.integers(0, len(lines) - 1))])
        elif how == "cut":
            lines[index] = lines[index][: draw(st.integers(0, len(lines[index])))]
        elif how == "field" and lines[index].endswith("}"):
            name = draw(st.sampled_from(("time_ms", "key", "value", "metadata", "event_type")))
            lines[index] = json.dumps({**json.loads(lines[index]), name: draw(JSON)}) if _whole(lines[index]) else "{}"
        else:
            lines[index] = draw(st.text(max_size=20))
    end = draw(st.sampled_from((b"\n", b"\r\n", b"\r", b"")))
    return b"".join(b":::MLLOG " + line.encode("utf-8", "surrogatepass") + (end or b"\n") for line in lines)


def _whole(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=mutated_logs())
@example(content=b":::MLLOG {}")
@example(content=b':::MLLOG {"key":"eval_accuracy","value":1e999,"time_ms":1e999,"metadata":null}')
@example(content=b':::MLLOG {"key":["a"],"value":{"a":[[[[[[[1]]]]]]},"time_ms":true,"metadata":{}}')
@example(content=b":::MLLOG " + b"[" * 100_000)
@example(content=b':::MLLOG {"key":"seed","value":' + b"9" * 5000 + b',"time_ms":1,"metadata":{}}')
def test_no_log_makes_the_checks_stumble(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "result_0.txt"
    path.write_bytes(content)
    for round_name in ("2.1.0", "5.0.0"):
        try:
            verdict = check_log(path, round_name)
        except UserError as error:
            assert "\n" not in str(error)
        else:
            assert all(f.what and "\n" not in f.what for f in verdict.findings)
