"""The verdict on a log, a result and a submission: official checkers and lint together, their words, exit codes."""

import json
from pathlib import Path

import pytest

from bert_mlperf.errors import UserError
from bert_mlperf.mlperf.check import check_log
from bert_mlperf.mlperf.checking import check_paths, main_check, to_sarif
from tests.mlperf import logs, submission
from tests.mlperf.test_official import changed, line_number


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    return logs.write_run(tmp_path, division="closed")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return submission.write(tmp_path / "Somebody")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b" \n\r\n", "is empty"),
        (b"\x7fELF\0\0\0", "is a binary file"),
        ("hello".encode("utf-16"), "is UTF-16 text"),
        (b"hello\n", "is no MLPerf log"),
        (b':::MLLOG{"key": 1}\n', "line 1 has :::MLLOG instead of ':::MLLOG ' with a space behind it"),
    ],
)
def test_files_that_are_no_log(tmp_path: Path, content: bytes, reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "log.txt"
    path.write_bytes(content)
    with pytest.raises(UserError, match=reason):
        check_log(path)
    assert main_check([path]) == 2
    assert reason in capsys.readouterr().out


def test_missing_files_and_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match="does not exist"):
        check_log(tmp_path / "gone.txt")
    with pytest.raises(UserError, match="is a folder; give the log files in it"):
        check_log(tmp_path)
    assert main_check([tmp_path]) == 2
    assert "has no result_<n>.txt in it or below" in capsys.readouterr().out


def test_printed_verdicts_and_exit_codes(closed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = logs.without(closed, "run_stop")
    assert main_check([closed]) == 0
    text = capsys.readouterr().out
    assert f"{closed}: VALID for 5.0.0 closed (0 errors, 2 warnings)\n" in text
    assert "benchmark bert, model bert-large, last accuracy 0.7205 at 3000 samples, run success" in text
    assert main_check([bad], round_name="4.1") == 1
    text = capsys.readouterr().out
    assert f"{bad}: INVALID for 4.1.0 closed (1 error, 2 warnings)\n" in text
    assert "run_stop: expected exactly one line, found none (the log ends at line 448)\n" in text
    assert main_check([bad, closed.parent / "gone.txt", closed]) == 2
    text = capsys.readouterr().out
    assert "gone.txt: cannot be judged" in text and "INVALID (1 error" in text
    with pytest.raises(UserError, match=r"Round 5\.1\.0 has no BERT"):
        main_check([closed], round_name="5.1.0")


def test_the_round_comes_from_the_path_then_from_the_date(closed: Path) -> None:
    folder = closed.parent / "v2.1" / "results"
    folder.mkdir(parents=True)
    moved = folder / "result_0.txt"
    moved.write_bytes(closed.read_bytes())
    assert check_log(moved, None).round_name == "2.1.0"
    assert check_log(closed, None).round_name == "5.0.0"
    past = closed.with_name("past.txt")
    lines = [json.loads(line.split(" ", 1)[1]) for line in closed.read_text().splitlines()]
    start = lines[0]["time_ms"]
    for record in lines:
        record["time_ms"] += 1_660_000_000_000 - start  # August 2022
    past.write_text("".join(f":::MLLOG {json.dumps(record)}\n" for record in lines))
    assert check_log(past, None).round_name == "2.1.0"
    unknown = closed.parent / "v6.0"
    unknown.mkdir()
    (unknown / "result_0.txt").write_bytes(closed.read_bytes())
    with pytest.raises(UserError, match=r"Round 6\.0\.0 has no BERT"):
        check_log(unknown / "result_0.txt", None)


def test_round_2_1_as_it_stood_and_as_it_was_edited(closed: Path) -> None:
    old, new = logs.without(closed, "opt_lamb_epsilon"), logs.without(closed, "opt_epsilon")
    assert check_log(old, "2.1.0").ok
    assert check_log(new, "2.1.0").errors == ("opt_epsilon: expected exactly one line, found none",)
    assert check_log(old, "2.1.0-edited").errors == ("opt_lamb_epsilon: expected exactly one line, found none",)
    assert check_log(new, "2.1.0-edited").ok


def test_a_finding_of_both_stands_once(closed: Path) -> None:
    verdict = check_log(changed(closed, "0.7205", "0.7199"))
    (error,) = [f for f in verdict.findings if f.severity == "error"]
    assert error.source == "official"
    assert error.line == line_number(closed, "run_stop") - 4
    assert error.what == "run_stop (line 449) says success, and the last eval_accuracy is 0.7199, below 0.72"


def test_a_crash_of_the_checker_does_not_poison_the_next_log(closed: Path) -> None:
    assert not check_log(changed(closed, '"closed"', '"Closed"')).ok
    assert check_log(closed).ok


def test_a_run_without_a_target_ends_as_it_should(closed: Path) -> None:
    aborted = changed(closed, '"status": "success"', '"status": "aborted"')
    assert not check_log(aborted).target_met
    no_target = changed(aborted, '"target_accuracy", "value": 0.72', '"target_accuracy", "value": null')
    assert check_log(no_target).target_met
    assert not check_log(logs.without(no_target, "train_samples")).target_met


def test_a_submission_passes_and_nothing_in_it_changes(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tree / "results" / "box" / "bert" / "scaling.json").write_text('{"scaling_factor": 1.5}')
    before = {path: path.stat() for path in tree.rglob("*")}
    assert main_check([tree]) == 0, capsys.readouterr().out
    text = capsys.readouterr().out
    assert "passes the official package and repository checks" in text and "VALID (0 errors" in text
    assert {path: path.stat() for path in tree.rglob("*")} == before


def test_json_and_sarif_name_every_finding(tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tree / "results" / "box" / "bert" / "result_3.txt"
    text = log.read_text()
    log.write_text(text.replace('"opt_lamb_beta_1", "value": 0.9', '"opt_lamb_beta_1", "value": 2.0'))
    line = 1 + next(i for i, item in enumerate(text.splitlines()) if "opt_lamb_beta_1" in item)
    sarif = tmp_path / "out.sarif"
    assert main_check([tree], as_json=True, sarif=sarif) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["exit_code"] == 1
    errors = [(f["rule"], f["line"]) for f in found["findings"] if f["severity"] == "error"]
    assert errors == [("opt_lamb_beta_1", line), ("opt_lamb_beta_1-differs", line)]
    results = json.loads(sarif.read_text())["runs"][0]["results"]
    assert len(results) == len(found["findings"])
    assert results[0]["locations"][0]["physicalLocation"]["region"] == {"startLine": line}
    assert to_sarif(check_paths([tmp_path / "gone"]))["runs"][0]["results"][0]["level"] == "error"


def broken_trees() -> dict[str, tuple[str, str]]:
    """How to break a submission: shell-like action on a path below it, and what has to be said."""
    return {
        "nine": ("unlink results/box/bert/result_9.txt", "9 result files, expected 10"),
        "no system": ("unlink systems/box.json", "no system description"),
        "case": ("move results/box/bert results/box/BERT", "the folder is called 'BERT', expected 'bert'"),
        "name": ("touch benchmarks/bert/implementations/x/a b.py", "git-unfriendly"),
    }


@pytest.mark.parametrize("name", broken_trees())
def test_what_a_submission_lacks_is_named(tree: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    action, words = broken_trees()[name]
    verb, rest = action.split(" ", 1)
    if verb == "unlink":
        (tree / rest).unlink()
    elif verb == "move":
        source, target = rest.split(" ")
        (tree / source).rename(tree / target)
    else:
        (tree / rest).touch()
    assert main_check([tree]) == 1
    assert words in capsys.readouterr().out


def test_runs_that_do_not_belong_together(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tree / "results" / "box" / "bert"
    for number, old, new in (
        (1, '"global_batch_size", "value": 448', '"global_batch_size", "value": 896'),
        (2, '"seed", "value": 1002', '"seed", "value": 1000'),
        (3, '"submission_division", "value": "closed"', '"submission_division", "value": "open"'),
        (4, '"submission_org", "value": "Somebody"', '"submission_org", "value": "Else"'),
    ):
        path = folder / f"result_{number}.txt"
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))
    (folder / "result_5.txt").write_bytes((folder / "result_6.txt").read_bytes())
    assert main_check([folder]) == 1
    text = capsys.readouterr().out
    for words in (
        "global_batch_size is 896, 9 other run(s) of this result have 448",
        "seed 1000 is that of result_0.txt",
        "submission_division is 'open', 9 other run(s) of this result have 'closed'",
        "submission_division is 'open', the system description says 'closed'",
        "submission_org is 'Else', 9 other run(s) of this result have 'Somebody'",
        "the evaluations are those of result_5.txt, to the millisecond: a copy",
        "the runs of a result have one global batch, found 448, 896",
    ):
        assert words in text, words


def test_two_failed_runs_are_no_result(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in (2, 7):
        path = tree / "results" / "box" / "bert" / f"result_{number}.txt"
        path.write_text(
            path.read_text().replace('"status": "success"', '"status": "aborted"').replace("0.7205", "0.71")
        )
    assert main_check([tree]) == 1
    text = capsys.readouterr().out
    assert "2 of 10 runs did not converge (result_2.txt, result_7.txt), at most one may" in text
    assert "the run did not converge: status aborted, eval_accuracy at most 0.71, below 0.72" in text


def test_a_log_cannot_write_lines_of_its_own(closed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = changed(closed, '"value": "bert-large"', json.dumps("value") + ": " + json.dumps("\x1b[31mx\nVALID for 9"))
    assert main_check([path]) == 0
    assert "model \\x1b[31mx\\nVALID for 9" in capsys.readouterr().out


def test_the_verdict_stands_on_the_folder_where_only_one_log_can_be_read(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tree / "results" / "box" / "bert"
    for number in range(9):
        (folder / f"result_{number}.txt").write_text("hello")
    assert main_check([folder]) == 1
    text = capsys.readouterr().out
    assert "result_9.txt: INVALID" not in text and "is no MLPerf log" in text


def test_too_fast_convergence_and_scaling(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main_check([submission.write(tmp_path / "Fast", evaluations=13)]) == 1
    assert "it converges faster than chance allows" in capsys.readouterr().out
    assert main_check([submission.write(tmp_path / "Scaled", evaluations=16)]) == 0
    # (2,250,304 + 6 * 2,400,384 + 2,550,016) / 8 samples; the reference's 21 middle runs at 448: 2,414,421.33
    assert "the time is scaled by 1.005871" in capsys.readouterr().out


def test_a_large_log_is_not_given_to_the_official_checker(closed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bert_mlperf.mlperf.official.MAX_BYTES", 1000)
    verdict = check_log(changed(closed, "0.7205", "0.7199"))
    assert verdict.errors == ("run_stop (line 449) says success, and the last eval_accuracy is 0.7199, below 0.72",)
    assert any("the official compliance checker was not run" in text for text in verdict.warnings)


@pytest.mark.reference
def test_published_logs_have_no_false_error(reference_dir: Path) -> None:
    folder = reference_dir / "logs"
    if not folder.is_dir():
        pytest.skip("no published logs")
    outcome = check_paths([folder / name for name in ("v2.0", "v2.1", "v5.0")])
    errors = [f for f in outcome.findings if f.severity == "error"]
    assert [(f.path.name, f.line, f.what[:24]) for f in errors] == [("result_6.txt", 448, "the run did not converge")]
    late = {f.path.parts[-3] for f in outcome.findings if f.rule == "cadence"}
    assert {name.split("_")[-2] for name in late if name.startswith("HPE")} == {"2N", "8N", "A100-SXM-80GB"}
    assert len(outcome.submissions) == 5


MUTANTS = {
    "acc_below_target_status_success": (501, "below 0.72"),
    "acc_peak_early_then_falls": (501, "an earlier one reached 0.72100"),
    "acc_string": (437, "found '0.37619999051094055' (text)"),
    "bad_json_line": (51, "not valid JSON after :::MLLOG"),
    "beta1_2.0": (423, "opt_lamb_beta_1: expected a number from 0 to below 1, found 2.0"),
    "clock_backwards_run_stop": (506, "run_stop is 236.799 s before epoch_stop"),
    "drop_cache_clear": (0, "cache_clear: expected at least one line, found none"),
    "drop_opt_lamb_epsilon": (0, "opt_lamb_epsilon: expected exactly one line, found none"),
    "drop_run_stop": (0, "run_stop: expected exactly one line, found none"),
    "drop_seed": (0, "seed: expected at least one line, found none"),
    "eval_samples_80": (505, "eval_samples: expected 10,000, found 80"),
    "gbs_twice_diff": (17, "found 2 with different values 768, 512 (lines 16, 17)"),
    "gbs_twice_same": (17, "found 2 with the same value (lines 16, 17)"),
    "init_31min": (429, "expected less than 30 minutes after the first init_start, found 31.3"),
    "interleaved_suffix": (41, "text behind the record"),
    "lr_negative": (420, "opt_base_learning_rate: expected a number above 0, at most 1, found -1"),
    "missing_metadata": (430, "run_start: the field metadata is missing"),
    "run_stop_twice": (507, "run_stop: expected exactly one line, found 2"),
    "status_aborted": (506, "run_stop says aborted, and the last eval_accuracy (line 501) is 0.7203008"),
    "truncated_last_line": (506, "the line is cut off"),
    "two_records_one_line": (41, "2 records, of which only the last one counts"),
}
FINE = {"00_baseline", "acc_exactly_0.720", "rank_prefix"}
UNUSABLE = {"empty_file": "is empty", "token_no_space": "line 1 has :::MLLOG instead of"}


@pytest.mark.reference
def test_each_broken_copy_of_a_published_log_is_named(reference_dir: Path) -> None:
    folder = reference_dir / "logs" / "mutants"
    if not folder.is_dir():
        pytest.skip("no published logs")
    assert {path.stem for path in folder.glob("*.txt")} == MUTANTS.keys() | FINE | UNUSABLE.keys()
    for name in FINE:
        assert check_log(folder / f"{name}.txt").ok, name
    for name, (line, words) in MUTANTS.items():
        errors = [f for f in check_log(folder / f"{name}.txt").findings if f.severity == "error"]
        assert any(f.line == line and words in f.what for f in errors), (name, errors)
    for name, words in UNUSABLE.items():
        with pytest.raises(UserError, match=words):
            check_log(folder / f"{name}.txt")
