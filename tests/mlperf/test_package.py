"""Packages: what is built passes the official checkers by their words; what would be rejected is not written."""

import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bert_mlperf.cli import main
from bert_mlperf.mlperf import sources
from tests.mlperf import submission


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """results/ and systems/ as a checkout has them."""
    top = submission.write(tmp_path / "checkout", evaluations=16)
    shutil.rmtree(top / "benchmarks")
    path = top / "systems" / "box.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"run": {"model": "bert-large"}}))
    return top / "results"


def official(module: str, *arguments: str, cwd: Path) -> str:
    """What an official checker says, which exits with 0 whatever it is."""
    command = [sys.executable, "-m", f"mlperf_logging.{module}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=300)
    return done.stdout + done.stderr


def test_what_is_built_passes_every_official_checker(results: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    assert main(["package", str(results / "box"), "--out", str(out)]) == 0
    tree = out / "Somebody"
    logs = sorted((tree / "results" / "box" / "bert").iterdir())
    assert [path.name for path in logs] == [*(f"result_{n}.txt" for n in range(10)), "scaling.json"]
    for path in logs[:10]:
        assert path.read_bytes() == (results / "box" / "bert" / path.name).read_bytes()
    assert json.loads(logs[10].read_text())["scaling_factor"] == pytest.approx(2_414_421.333 / 2_400_328, rel=1e-8)
    assert "run" not in json.loads((tree / "systems" / "box.json").read_text())
    implementation = tree / "benchmarks" / "bert" / "implementations" / "bert-mlperf"
    for name in ("run_and_time.sh", "bert_mlperf/train/step.py", "kernels/attention.py", "LICENSE", "README_box.md"):
        assert (implementation / name).is_file(), name
    assert json.loads((implementation / "systems" / "box.json").read_text())["run"] == {"model": "bert-large"}
    assert not (implementation / "tests").exists()
    logged = tmp_path / "log"
    logged.mkdir()
    assert "PACKAGE CHECKER FOUND NO ERRORS, SUCCESS !" in official(
        "package_checker", str(tree), "training", "5.0.0", cwd=logged
    )
    text = official("system_desc_checker", str(tree / "systems" / "box.json"), "training", "5.0.0", cwd=logged)
    assert "System description checker passed for box" in text
    assert "ALL CHECKS PASSED." in official("repo_checker", str(tree), "training", "5.0.0", cwd=logged)
    assert [path.name for path in out.iterdir()] == ["Somebody"]
    assert main(["check", str(tree)]) == 0


def test_nothing_is_overwritten(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out" / "Somebody").mkdir(parents=True)
    assert main(["package", str(results), "--out", str(tmp_path / "out")]) == 2
    assert "exists and is not overwritten" in capsys.readouterr().err
    assert list((tmp_path / "out" / "Somebody").iterdir()) == []


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def drop_field(path: Path, name: str) -> None:
    content = json.loads(path.read_text())
    del content[name]
    path.write_text(json.dumps(content))


BREAKS = {
    "nine runs": (lambda r: (r / "box/bert/result_9.txt").unlink(), 1, "9 result files, expected 10"),
    "equal seeds": (
        lambda r: change(r / "box/bert/result_4.txt", '"seed", "value": 1004', '"seed", "value": 1003'),
        1,
        "seed 1003 is that of result_3.txt",
    ),
    "foreign batch": (
        lambda r: change(
            r / "box/bert/result_4.txt", '"global_batch_size", "value": 448', '"global_batch_size", "value": 512'
        ),
        1,
        "global_batch_size is 512, 9 other run(s) of this result have 448",
    ),
    "no required field": (lambda r: drop_field(r.parent / "systems/box.json", "cooling"), 1, "cooling"),
    "unfilled field": (
        lambda r: change(r.parent / "systems/box.json", '"cooling": "said"', '"cooling": "TODO: cooling"'),
        1,
        "cooling",
    ),
    "two failed": (
        lambda r: [change(r / f"box/bert/result_{n}.txt", "success", "aborted") for n in (1, 2)],
        1,
        "2 of 10 runs did not converge",
    ),
    "no system": (lambda r: (r.parent / "systems/box.json").unlink(), 2, "does not exist"),
    "no JSON": (lambda r: (r.parent / "systems/box.json").write_text("{"), 2, "it is no JSON"),
    "other sources": (
        lambda r: change(r / "box/bert/result_0.txt", "bert_mlperf/train/run.py", "/workspace/bert/run_pretraining.py"),
        2,
        "line 1, was written by '/workspace/bert/run_pretraining.py', not by bert-mlperf",
    ),
    "no log": (lambda r: (r / "box/bert/result_0.txt").write_text("hello"), 2, "cannot go into a submission"),
    "odd submitter": (
        lambda r: change(r.parent / "systems/box.json", '"submitter": "Somebody"', '"submitter": "a/b"'),
        2,
        'submitter is "a/b", expected a name that can be a folder',
    ),
    "submitter is no text": (
        lambda r: change(r.parent / "systems/box.json", '"submitter": "Somebody"', '"submitter": {"a": "\\ud800"}'),
        2,
        "expected a name that can be a folder",
    ),
    "one foreign line": (
        lambda r: change(
            r / "box/bert/result_2.txt", '"bert_mlperf/train/run.py", "lineno": 430', '"x.py", "lineno": 430'
        ),
        2,
        "result_2.txt, line 430, was written by 'x.py'",
    ),
    "a pipe": (
        lambda r: ((r.parent / "systems/box.json").unlink(), os.mkfifo(r.parent / "systems/box.json")),
        2,
        "box.json is no file",
    ),
    "brackets": (
        lambda r: (
            (r / "box").rename(r / "b[o]x"),
            (r.parent / "systems/box.json").rename(r.parent / "systems/b[o]x.json"),
        ),
        1,
        "the name 'b[o]x' holds one of []*?",
    ),
    "elsewhere": (lambda r: (r / "box").rename(r.parent / "box"), 2, "has no result_<n>.txt"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_what_would_be_rejected_is_refused(
    results: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    action, code, words = BREAKS[name]
    action(results)
    out = tmp_path / "new" / "out"
    assert main(["package", str(results), "--out", str(out)]) == code
    said = capsys.readouterr()
    assert words in (said.err if code == 2 else said.out), said
    assert not out.parent.exists()


def test_relative_paths_work_from_anywhere(results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["package", "checkout/results", "--out", "out"]) == 0
    assert (tmp_path / "out" / "Somebody" / "README.md").is_file()


def test_one_log_or_one_system_twice(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["package", str(results / "box/bert/result_1.txt"), "--out", str(tmp_path / "out")]) == 2
    assert "is one log; give the folder of the ten runs" in capsys.readouterr().err
    other = submission.write(tmp_path / "other")
    assert main(["package", str(results), str(other), "--out", str(tmp_path / "out")]) == 2
    assert "are both of a system 'box'" in capsys.readouterr().err


def test_a_refusal_takes_nothing_away_that_others_made(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (results / "box/bert/result_9.txt").unlink()
    out = tmp_path / "new" / "out"

    def meanwhile(*_: object, **__: object) -> list[object]:
        (out / "precious.txt").write_text("mine")
        return []

    monkeypatch.setattr(sources, "copy", meanwhile)
    assert main(["package", str(results), "--out", str(out)]) == 1
    assert [path.name for path in out.iterdir()] == ["precious.txt"]


def test_one_failed_run_goes_in_as_the_slowest(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"seed": 77, "evaluations": 20, "success": False, "start_ms": 1_741_000_000_000}
    assert "aborted" in submission.write_log(results / "box/bert/result_5.txt", **options).read_text()
    assert main(["package", str(results), "--out", str(tmp_path / "out")]) == 0
    assert "One run of ten may; it counts as the slowest." in capsys.readouterr().out


def test_of_twelve_runs_the_median_window_goes_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    top = submission.write(tmp_path / "checkout", runs=12)
    assert main(["package", str(top), "--out", str(tmp_path / "out")]) == 0
    assert "of 12 runs the ten of the median window go in" in capsys.readouterr().out
    assert len(list((tmp_path / "out" / "Somebody" / "results" / "box" / "bert").glob("result_*"))) == 10


def test_sources_are_those_of_the_revision_that_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = tmp_path / "repository"
    repository.mkdir()

    def git(*arguments: str) -> str:
        identity = ("-c", "user.name=x", "-c", "user.email=x@example.org")
        return subprocess.run(
            ["git", "-C", str(repository), *identity, *arguments], check=True, capture_output=True, text=True
        ).stdout.strip()

    git("init", "-q")
    for text in ("old", "new"):
        (repository / "run_and_time.sh").write_text(text)
        git("add", "-A")
        git("commit", "-qm", text)
    first = git("rev-parse", "HEAD~1")
    monkeypatch.setattr(sources, "REPOSITORY", repository)
    logs = [submission.write_log(tmp_path / "r" / f"result_{n}.txt", seed=n) for n in range(2)]
    for number, revision in ((0, first), (1, first)):
        (tmp_path / "r" / f"run_{number}").mkdir()
        (tmp_path / "r" / f"run_{number}" / "environment.json").write_text(json.dumps({"git_revision": revision}))
    (note,) = sources.copy(tmp_path / "a", logs)
    assert (note.severity, (tmp_path / "a" / "run_and_time.sh").read_text()) == ("note", "old")
    (tmp_path / "r" / "run_1" / "environment.json").write_text(json.dumps({"git_revision": first + "+changes"}))
    (warning,) = sources.copy(tmp_path / "b", logs)
    assert (warning.severity, (tmp_path / "b" / "run_and_time.sh").read_text()) == ("warning", "new")


def test_the_root_logger_is_left_alone(results: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = list(logging.root.handlers)
    main(["package", str(results), "--out", str(tmp_path / "out")])
    assert logging.root.handlers == before and caplog.records == []
