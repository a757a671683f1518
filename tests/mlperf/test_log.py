import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import mlperf_logging.compliance_checker
import numpy as np
import pytest
import yaml

from bert_mlperf.config import rules
from bert_mlperf.config.system import load_system
from bert_mlperf.errors import UserError
from bert_mlperf.mlperf.check import check_log
from bert_mlperf.mlperf.log import MlperfLog
from tests.config import files
from tests.mlperf import logs

RULES = Path(mlperf_logging.compliance_checker.__file__).parent


def records(path: Path) -> list[dict[str, Any]]:
    """Every line of a log; each must be one JSON record."""
    lines = path.read_text().split("\n")
    assert lines[-1] == ""
    return [json.loads(line.removeprefix(":::MLLOG ")) for line in lines[:-1]]


def first(path: Path, key: str) -> dict[str, Any]:
    return next(record for record in records(path) if record["key"] == key)


def test_the_name_list_has_398_variables() -> None:
    assert len(logs.variables()) == len(set(logs.variables())) == 398


@pytest.mark.parametrize("name", rules.ROUNDS)
def test_a_successful_run_passes_the_closed_rules_of_every_round(tmp_path: Path, name: str) -> None:
    verdict = check_log(logs.write_run(tmp_path, division="closed"), name)
    assert [f.rule for f in verdict.findings] == ["cache_clear", "cadence"]  # what a test's run cannot do
    assert str(verdict) == f"VALID for {name} closed (0 errors, 2 warnings)"
    assert verdict.target_met


@pytest.mark.parametrize("name", rules.ROUNDS)
def test_a_successful_run_passes_the_open_rules_of_every_round(tmp_path: Path, name: str) -> None:
    verdict = check_log(logs.write_run(tmp_path), name)
    assert (verdict.ok, verdict.warnings, verdict.division) == (True, (), "open")


def required_keys(name: str, division: str) -> list[tuple[str, ...]]:
    """What the installed rules demand: tuples of keys of which one has to be there."""
    required: set[tuple[str, ...]] = set()
    for part in ("common", f"{division}_common", f"{division}_bert"):
        for entry in yaml.safe_load((RULES / f"training_{name}" / f"{part}.yaml").read_text()):
            key = entry.get("KEY", {})
            demand = key.get("REQ", "")
            if demand.startswith("AT_LEAST_ONE_OR("):
                required.add(tuple(sorted((key["NAME"], demand[len("AT_LEAST_ONE_OR(") : -1]))))
            elif demand in ("EXACTLY_ONE", "AT_LEAST_ONE"):
                required.add((key["NAME"],))
    return sorted(required)


@pytest.mark.parametrize("name", ["0.7.0", "2.0.0", "2.1.0", "5.0.0"])  # the others demand what one of these demands
def test_a_log_without_a_required_key_fails(tmp_path: Path, name: str) -> None:
    path = logs.write_run(tmp_path, division="closed")
    required = required_keys(name, "closed")
    assert len(required) >= 25
    name = rules.EDITED if name == "2.1.0" else name  # what is installed
    for keys in required:
        verdict = check_log(logs.without(path, *keys), name)
        assert not verdict.ok, keys
        assert any(keys[0] in message for message in verdict.errors), (keys, verdict.errors)


def test_both_names_of_epsilon_are_written(tmp_path: Path) -> None:
    path = logs.write_run(tmp_path, division="closed")
    for key in rules.EPSILON_KEYS:
        assert first(path, key)["value"] == 1e-6
    assert not check_log(logs.without(path, "opt_epsilon"), "2.0.0").ok
    assert not check_log(logs.without(path, "opt_lamb_epsilon"), rules.EDITED).ok


@pytest.mark.parametrize("status", rules.STATUS_IN_LOG)
def test_every_status_of_a_system_file_passes_the_rules_that_want_short_ones(tmp_path: Path, status: str) -> None:
    with MlperfLog(tmp_path / "log.txt") as log:
        logs.begin(log, tmp_path, status=status)
    errors = check_log(tmp_path / "log.txt", "2.1.0").errors
    assert not any("submission_status" in error for error in errors)
    assert first(tmp_path / "log.txt", "submission_status")["value"] in ("onprem", "cloud", "research", "preview")


def test_values_are_those_of_the_system(tmp_path: Path) -> None:
    resolved = load_system(
        files.write(tmp_path, files.small()), ["recipe.warmup_steps=7", "recipe.start_warmup_step=-3"]
    )
    path = tmp_path / "log.txt"
    with MlperfLog(path) as log:
        log.submission(resolved.system)
        log.hyperparameters(resolved.run, 2**32 - 1)
    values = {record["key"]: record["value"] for record in records(path)}
    assert values == {
        "submission_benchmark": "bert",
        "submission_org": "Example",
        "submission_division": "open",
        "submission_status": "onprem",
        "submission_platform": "1xsmall",
        "model_name": "bert-small",
        "seed": 2**32 - 1,
        "global_batch_size": 16,
        "d_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "max_sequence_length": 64,
        "max_predictions_per_seq": 10,
        "target_accuracy": 0.72,
        "opt_base_learning_rate": 1e-3,
        "opt_lamb_beta_1": 0.9,
        "opt_lamb_beta_2": 0.999,
        "opt_lamb_weight_decay_rate": 0.01,
        "opt_lamb_learning_rate_decay_poly_power": 1.0,
        "opt_learning_rate_training_steps": 100,
        "opt_learning_rate_warmup_steps": 7,
        "num_warmup_steps": 7,
        "start_warmup_step": -3,
        "opt_epsilon": 1e-6,
        "opt_lamb_epsilon": 1e-6,
    }
    assert first(path, "model_name")["metadata"]["num_hidden_layers"] == 2
    assert {record["namespace"] for record in records(path)} == {"bert_mlperf"}


def test_evaluations_carry_training_samples_as_epoch_num(tmp_path: Path) -> None:
    path = logs.write_run(tmp_path)
    accuracies = [record for record in records(path) if record["key"] == "eval_accuracy"]
    assert [(r["value"], r["metadata"]["epoch_num"]) for r in accuracies] == [(0.4, 1000), (0.7, 2000), (0.7205, 3000)]
    blocks = [r["metadata"]["first_epoch_num"] for r in records(path) if r["key"] in ("block_start", "block_stop")]
    assert blocks == [0, 0, 1000, 1000, 2000, 2000]
    assert first(path, "tracked_stats")["value"] == {"throughput": 123.5}
    kinds = {r["key"]: r["event_type"] for r in records(path)}
    assert (kinds["eval_start"], kinds["eval_stop"], kinds["seed"]) == (
        "INTERVAL_START",
        "INTERVAL_END",
        "POINT_IN_TIME",
    )


def test_a_line_names_the_code_that_called_the_log(tmp_path: Path) -> None:
    with MlperfLog(tmp_path / "log.txt") as log:
        log.init_start()
        log.eval_accuracy(0.5, 10)
    for record in records(tmp_path / "log.txt"):
        assert record["metadata"]["file"] == "tests/mlperf/test_log.py"
        line = Path(__file__).read_text().splitlines()[record["metadata"]["lineno"] - 1]
        assert record["key"] in line


def test_two_logs_in_one_process_write_each_line_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    one, two = MlperfLog(tmp_path / "one.txt"), MlperfLog(tmp_path / "two.txt")
    for log in (one, two, MlperfLog(None)):
        log.init_start()
        log.init_stop()
    one.run_start()
    assert [r["key"] for r in records(tmp_path / "one.txt")] == ["init_start", "init_stop", "run_start"]
    assert [r["key"] for r in records(tmp_path / "two.txt")] == ["init_start", "init_stop"]
    assert capfd.readouterr() == ("", "")


def test_two_logs_on_one_file_append(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    with MlperfLog(path) as log:
        log.cache_clear(done=True)
    with MlperfLog(path) as log:
        log.init_start()
    assert [(r["key"], r["value"]) for r in records(path)] == [("cache_clear", True), ("init_start", None)]


def test_what_others_print_stays_out(tmp_path: Path) -> None:
    code = f"""
import logging, os, sys, threading
from bert_mlperf.mlperf.log import MlperfLog
log = MlperfLog({str(tmp_path / "log.txt")!r})
logging.basicConfig(level=logging.DEBUG)
def noise():
    for _ in range(300):
        print("noise", end=""); sys.stderr.write("\\rnoise"); logging.info("noise"); os.write(1, b"noise")
threads = [threading.Thread(target=noise) for _ in range(4)]
for thread in threads: thread.start()
for step in range(300): log.tracked_stats(1.0, step)
for thread in threads: thread.join()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert b"noise" in done.stdout and b"MLLOG" not in done.stdout + done.stderr
    assert [r["metadata"]["samples_count"] for r in records(tmp_path / "log.txt")] == list(range(300))


def test_a_killed_process_leaves_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    code = f"""
from bert_mlperf.mlperf.log import MlperfLog
log, step = MlperfLog({str(path)!r}), 0
while True: log.tracked_stats(1.0, step); step += 1
"""
    process = subprocess.Popen([sys.executable, "-c", code])
    deadline = time.monotonic() + 60
    while (not path.exists() or path.stat().st_size < 20_000) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    steps = [record["metadata"]["samples_count"] for record in records(path)]
    assert len(steps) > 50
    assert steps == list(range(len(steps)))


def test_an_aborted_run_is_well_formed(tmp_path: Path) -> None:
    path = logs.write_run(tmp_path, division="closed", accuracies=(0.4, 0.5), success=False)
    assert records(path)[-1]["metadata"]["status"] == "aborted"
    verdict = check_log(path)
    (error,) = verdict.errors
    assert error == "the run did not converge: status aborted, eval_accuracy at most 0.5, below 0.72"
    assert not verdict.target_met
    assert "run aborted" in verdict.summary


def test_a_log_says_when_it_has_ended() -> None:
    log = MlperfLog(None)
    log.run_start()
    assert not log.ended
    log.run_stop("aborted", 5)
    assert log.ended


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, np.float32("nan"), object(), {1, 2}])
def test_what_json_cannot_hold_is_refused_before_it_is_written(tmp_path: Path, value: Any) -> None:
    for path in (tmp_path / "log.txt", None):
        with (
            MlperfLog(path) as log,
            pytest.raises(ValueError, match=r"eval_accuracy: .* cannot stand in an MLPerf log"),
        ):
            log.eval_accuracy(value, 10)
    assert (tmp_path / "log.txt").read_text() == ""


def test_numpy_scalars_are_numbers(tmp_path: Path) -> None:
    with MlperfLog(tmp_path / "log.txt") as log:
        log.eval_accuracy(np.float64(0.25), np.int64(10))  # type: ignore[arg-type]
    assert (first(tmp_path / "log.txt", "eval_accuracy")["value"]) == 0.25
    assert first(tmp_path / "log.txt", "eval_accuracy")["metadata"]["epoch_num"] == 10


def test_what_the_rules_want_once_is_written_once(tmp_path: Path) -> None:
    with MlperfLog(tmp_path / "log.txt") as log:
        log.run_start()
        with pytest.raises(ValueError, match="run_start was written to this log already"):
            log.run_start()
        with pytest.raises(ValueError, match="status is 'done', expected 'success' or 'aborted'"):
            log.run_stop("done", 5)
    assert len(records(tmp_path / "log.txt")) == 1


def test_a_closed_log_and_an_unwritable_folder_are_errors(tmp_path: Path) -> None:
    log = MlperfLog(tmp_path / "log.txt")
    log.close()
    with pytest.raises(ValueError, match="is closed"):
        log.init_start()
    with pytest.raises(UserError, match="cannot be written: No such file or directory"):
        MlperfLog(tmp_path / "nowhere" / "log.txt")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_stops_the_run() -> None:
    log = MlperfLog("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        log.init_start()
