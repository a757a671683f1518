"""Logs, runs and systems: what is read out of a file, whatever its dialect, and where it stands."""

import json
import os
import tracemalloc
from pathlib import Path

import pytest

from bert_mlperf.errors import UserError
from bert_mlperf.report import logs
from bert_mlperf.report.logs import read_log
from bert_mlperf.report.runs import read_run
from bert_mlperf.report.systems import find_logs, find_systems, round_of_path
from tests.mlperf import submission


def line(key: str, value: object = None, time_ms: int = 1_740_000_000_000, **metadata: object) -> str:
    return ":::MLLOG " + json.dumps({"time_ms": time_ms, "key": key, "value": value, "metadata": metadata})


def write(path: Path, *lines: str, end: str = "\n") -> Path:
    path.write_bytes("".join(text + end for text in lines).encode("latin-1"))
    return path


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_prefixes_line_ends_and_foreign_bytes(tmp_path: Path, end: str) -> None:
    path = write(tmp_path / "log", "caf\xe9", " 0: [r0] " + line("seed", 5), "", line("run_stop", status="ok"), end=end)
    log = read_log(path)
    assert [(r.line, r.index, r.key, r.value) for r in log.records] == [(2, 0, "seed", 5), (4, 1, "run_stop", None)]
    assert (log.lines, log.last_line, log.size, log.complete) == (4, 4, path.stat().st_size, True)
    assert log.first("run_stop").metadata == {"status": "ok"}


def test_a_progress_bar_in_front_of_a_record_is_passed_over(tmp_path: Path) -> None:
    path = write(tmp_path / "log", "step 1\rstep 2\r" + line("seed", 5), line("seed", 6) + "\rstep 3")
    assert [(r.line, r.value, r.fault) for r in read_log(path).records] == [(1, 5, ""), (2, 6, "")]


def test_what_the_official_parser_does_not_see_is_kept_apart(tmp_path: Path) -> None:
    good = line("seed", 5)
    path = write(
        tmp_path / "log", good + good, good.replace("LOG {", "LOG{"), good.replace("MLLOG", "MLLog"), good + "x"
    )
    log = read_log(path)
    assert [(odd.line, odd.kind) for odd in log.oddities] == [(1, "two records"), (2, "no space"), (3, "no space")]
    assert [(r.line, r.fault) for r in log.faults] == [(4, "not valid JSON after :::MLLOG: text behind the record: x")]
    assert log.counts == {"seed": 1} and log.faults_in_all == 1


def test_much_of_one_key_does_not_push_out_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MAX_OTHER_RECORDS", 10)
    path = write(tmp_path / "log", *(line("tracked_stats", n) for n in range(50)), line("run_stop", status="success"))
    log = read_log(path)
    assert len(log.all("tracked_stats")) == 10 and log.counts["tracked_stats"] == 50 and not log.complete
    assert log.first("run_stop").line == 51 and log.first("run_stop").index == 50


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """14 MB: a line of 8 MB without an end, and 6 MB of records; a record that is too long is told, not read."""
    path = tmp_path / "log"
    with path.open("w") as file:
        file.write(line("seed", 5) + "\n" + line("huge")[:-2] + "x" * 8_000_000 + "\n")
        record = line("tracked_stats", {"throughput": 1.5}, epoch_num=7) + "\n"
        for _ in range(6_000_000 // len(record) // 1000):
            file.write(record * 1000)
        file.write(line("run_stop", status="success") + "\n")
    tracemalloc.start()
    log = read_log(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5_000_000
    assert log.first("run_stop") is not None and [odd.kind for odd in log.oddities] == ["long line"]
    assert not log.complete and log.counts["tracked_stats"] > 30_000


@pytest.mark.parametrize("epoch_num", [1, 0, None])
def test_samples_follow_from_the_rule_where_epoch_num_is_a_placeholder(tmp_path: Path, epoch_num: int | None) -> None:
    more = {} if epoch_num is None else {"epoch_num": epoch_num}
    evaluations = [line("eval_accuracy", 0.5, 1_740_000_000_000 + 1000 * k, **more) for k in range(3)]
    run = read_run(write(tmp_path / "log", line("global_batch_size", 3072), *evaluations))
    assert run.samples_are_inferred
    assert [item.samples for item in run.evaluations] == [175_104, 350_208, 525_312]  # 57, 114 and 171 batches
    assert run.steady == (350_208, 2.0) and run.train_samples == 525_312


def test_numbers_may_be_floats(tmp_path: Path) -> None:
    run = read_run(
        write(tmp_path / "log", line("global_batch_size", 448.0), line("train_samples", 3e5),
              line("eval_accuracy", 0.1, epoch_num=150_080.0), line("eval_accuracy", 0.2, epoch_num=300_160.0))
    )  # fmt: skip
    assert (run.global_batch_size, run.train_samples, run.samples_at_end) == (448, 300_000, 300_160)
    assert not run.samples_are_inferred


def test_what_a_log_does_not_say_is_none(tmp_path: Path) -> None:
    run = read_run(write(tmp_path / "log", line("global_batch_size", "448"), line("eval_accuracy", "x", epoch_num=9)))
    assert (run.global_batch_size, run.seconds, run.steady, run.train_samples, run.status) == (None, None, None, 9, "")
    assert run.evaluations[0].accuracy != run.evaluations[0].accuracy  # NaN


def test_systems_are_found_from_above_and_below(tmp_path: Path) -> None:
    top = submission.write(tmp_path / "v5.0" / "Somebody", runs=3)
    submission.write(top, system="box2", runs=11, nodes=2)
    places = find_logs(tmp_path)
    assert [place.system for place in places] == ["box", "box2"]
    assert [path.name for path in places[1].logs][-2:] == ["result_9.txt", "result_10.txt"]
    assert find_logs(top / "results" / "box" / "bert")[0] == places[0]
    (one,) = find_logs(top / "results" / "box" / "bert" / "result_2.txt")
    assert one.logs == (top / "results" / "box" / "bert" / "result_2.txt",)
    box, box2 = find_systems([tmp_path, top / "results" / "box"])
    assert (box.submitter, box.nodes, box.accelerators, box.round_name) == ("Somebody", 1, 8, "5.0.0")
    assert (box2.nodes, box2.accelerators, box2.global_batch_size) == (2, 16, 448)
    with pytest.raises(UserError, match="does not exist"):
        find_logs(tmp_path / "gone")


def test_processors_count_where_there_are_no_accelerators(tmp_path: Path) -> None:
    top = submission.write(tmp_path / "S", runs=1)
    path = top / "systems" / "box.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"accelerators_per_node": "0", "number_of_nodes": "4"}))
    (system,) = find_systems([top])
    assert (system.accelerators, system.accelerator) == (8, "said")
    path.write_text("[1]")
    (system,) = find_systems([top])
    assert (system.accelerators, system.submitter) == (None, "Somebody")


@pytest.mark.parametrize(
    ("path", "name"),
    [("/a/v2.1/X", "2.1.0"), ("/a/training_results_v5.0/X", "5.0.0"), ("/4.1.0/X", "4.1.0"), ("/a/b12.3x/X", None),
     ("/v5.0/v2.0/X", "2.0.0"), ("/v7.0/X", None), ("/v6.0/X", "6.0.0"), ("/run_0.72/v1.5/X", None)],
)  # fmt: skip
def test_the_round_of_a_path(path: str, name: str | None) -> None:
    assert round_of_path(Path(path)) == name


def test_a_result_that_is_no_file_is_told(tmp_path: Path) -> None:
    top = submission.write(tmp_path / "S", runs=2)
    os.mkfifo(top / "results" / "box" / "bert" / "result_2.txt")
    (system,) = find_systems([top])
    assert len(system.runs) == 2
    assert "is no file but a pipe" in system.unreadable[0][1]


def test_many_long_keys_cost_nothing(tmp_path: Path) -> None:
    """12 MB of records with a key of their own, 12,000 letters each, and one record that is a list of empty lists."""
    path = tmp_path / "log"
    with path.open("w") as file:
        for number in range(1000):
            file.write(line(f"{number}" + "k" * 12_000) + "\n")
        file.write(line("seed", [[]] * 300_000) + "\n" + line("run_stop", status="success") + "\n")
    tracemalloc.start()
    log = read_log(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 25_000_000 and log.first("run_stop") is not None and len(log.counts) == 2
    assert [odd.kind for odd in log.oddities] == ["long line"]


def test_a_description_that_is_no_file_is_passed_over(tmp_path: Path) -> None:
    top = submission.write(tmp_path / "S", runs=1)
    (top / "systems" / "box.json").unlink()
    os.mkfifo(top / "systems" / "box.json")
    (system,) = find_systems([top])
    assert system.description == {}
