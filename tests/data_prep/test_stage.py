"""The stage runner: same bytes always, goes on after any end, never a half-written file under its final name."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bert_mlperf.data_prep import claim, stage
from bert_mlperf.data_prep.request import difference
from bert_mlperf.data_prep.stage import Job, read_manifest, run_stage
from bert_mlperf.errors import UserError

Progress = Callable[[int], None]


def double(job: Job, targets: tuple[Path, ...], progress: Progress) -> dict[str, Any]:
    """Writes the source twice, in two halves. `arguments` can make it fail in between."""
    data = job.sources[0].read_bytes()
    with open(targets[0], "wb") as file:
        file.write(data)
        file.flush()
        _misbehave(job)
        file.write(data)
    progress(len(data))
    return {"bytes_read": len(data)}


def _misbehave(job: Job) -> None:
    trouble = job.arguments.get("trouble", "")
    if trouble and Path(trouble).exists():
        what = Path(trouble).read_text()
        if what == "bad input":
            raise UserError("the text is bad.")
        if what == "full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if what == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "slow":
            Path(f"{trouble}.pid").write_text(str(os.getpid()))
            time.sleep(60)


@pytest.fixture
def jobs(tmp_path: Path) -> list[Job]:
    """Five jobs; the file "trouble" says what happens to the fourth."""
    folder = tmp_path / "in"
    folder.mkdir()
    found = []
    for i in range(5):
        path = folder / f"text{i}"
        path.write_text(f"{i}\n" * (100 + i))
        found.append(Job((path,), (f"sub/{i}.out",), {"trouble": str(tmp_path / "trouble")} if i == 3 else {}))
    return found


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def run(jobs: list[Job], out: Path, *, workers: int = 1, options: dict[str, Any] | None = None) -> dict[str, Any]:
    return run_stage("double", out=out, options=options or {}, jobs=jobs, work=double, workers=workers)


def test_same_bytes_for_any_number_of_workers_and_time_zone(
    jobs: list[Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for workers, zone in ((1, "UTC"), (3, "Asia/Tokyo")):
        monkeypatch.setenv("TZ", zone)
        manifest = run(jobs, tmp_path / f"out{workers}", workers=workers)
        found.append(contents(tmp_path / f"out{workers}"))
    assert found[0] == found[1] and len(found[0]) == 6
    assert found[0]["sub/2.out"] == b"2\n" * 204
    assert [entry["name"] for entry in manifest["inputs"]] == [f"text{i}" for i in range(5)]
    assert manifest["outputs"][2]["bytes"] == 408 and manifest["outputs"][2]["facts"] == {"bytes_read": 204}
    assert read_manifest(tmp_path / "out1") == manifest


@pytest.mark.parametrize(
    ("trouble", "message"),
    [
        ("bad input", "the text is bad"),
        ("full", "out cannot be written: .*No space left on device; .* what is finished is kept"),
        ("killed", "text3 was killed by SIGKILL, often a sign of too little memory"),
    ],
)
def test_goes_on_after_a_failure(jobs: list[Job], tmp_path: Path, trouble: str, message: str) -> None:
    run(jobs, tmp_path / "undisturbed")
    (tmp_path / "trouble").write_text(trouble)
    with pytest.raises(UserError, match=message):
        run(jobs, tmp_path / "out")
    left = contents(tmp_path / "out")
    assert "manifest.json" not in left and "sub/3.out" not in left and left["sub/2.out"] == b"2\n" * 204
    (tmp_path / "trouble").unlink()
    before = (tmp_path / "out" / "sub" / "2.out").stat().st_ino
    run(jobs, tmp_path / "out", workers=2)
    assert (tmp_path / "out" / "sub" / "2.out").stat().st_ino == before  # not done again
    assert contents(tmp_path / "out") == contents(tmp_path / "undisturbed")


def test_a_job_without_record_is_done_again(jobs: list[Job], tmp_path: Path) -> None:
    """A kill between the output's rename and its record: the output is there, but nobody vouches for it."""
    (tmp_path / "trouble").write_text("bad input")
    with pytest.raises(UserError):
        run(jobs, tmp_path / "out")
    (tmp_path / "out" / ".unfinished" / "done" / "000001.json").unlink()
    (tmp_path / "out" / "sub" / "1.out").write_text("half")
    (tmp_path / "trouble").unlink()
    run(jobs, tmp_path / "out")
    assert (tmp_path / "out" / "sub" / "1.out").read_bytes() == b"1\n" * 202


def test_finished_is_not_done_again(jobs: list[Job], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = run(jobs, tmp_path / "out")
    (tmp_path / "trouble").write_text("bad input")
    assert run(jobs, tmp_path / "out") == first
    assert "holds this already, nothing to do" in capsys.readouterr().err


def test_a_changed_input_is_refused(jobs: list[Job], tmp_path: Path) -> None:
    (tmp_path / "trouble").write_text("bad input")
    with pytest.raises(UserError, match="the text is bad"):
        run(jobs, tmp_path / "out")
    (tmp_path / "trouble").unlink()
    jobs[0].sources[0].touch()  # same content: no reason to stop
    text = jobs[1].sources[0].read_text()
    jobs[1].sources[0].write_text(text.replace("1", "7", 1))
    with pytest.raises(UserError, match=r"text1 has changed since .*out was made from it"):
        run(jobs, tmp_path / "out")
    jobs[1].sources[0].write_text(text)
    run(jobs, tmp_path / "out")
    jobs[1].sources[0].write_text(text.replace("1", "7", 1))
    with pytest.raises(UserError, match=r"text1 has changed since .*out was made from it"):
        run(jobs, tmp_path / "out")


def test_another_request_is_refused(jobs: list[Job], tmp_path: Path) -> None:
    (tmp_path / "trouble").write_text("bad input")
    with pytest.raises(UserError, match="the text is bad"):
        run(jobs, tmp_path / "out", options={"seed": 1})
    with pytest.raises(UserError, match=r"an unfinished run of another request \(--seed 1, not --seed 2\); run"):
        run(jobs, tmp_path / "out", options={"seed": 2})
    (tmp_path / "trouble").unlink()
    run(jobs, tmp_path / "out", options={"seed": 1})
    with pytest.raises(UserError, match=r"holds the result of another request \(other input files\); remove"):
        run(jobs[:4], tmp_path / "out", options={"seed": 1})


@pytest.mark.parametrize("trouble", ["bad input", "full", "killed"])
@pytest.mark.parametrize("out", ["out", "new/out", "old/out"])
def test_a_failure_before_the_first_file_leaves_nothing(
    jobs: list[Job], tmp_path: Path, trouble: str, out: str
) -> None:
    (tmp_path / "old" / "out").mkdir(parents=True)
    (tmp_path / "trouble").write_text(trouble)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError):
        run(jobs[3:], tmp_path / out)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_run_killed_before_its_first_file_gives_way_to_another(jobs: list[Job], tmp_path: Path) -> None:
    unfinished = tmp_path / "out" / ".unfinished"
    for folder in ("done", "tmp"):
        (unfinished / folder).mkdir(parents=True)
    (unfinished / "tmp" / "0-0").write_text("half")
    (unfinished / "plan.json").write_text(json.dumps({"stage": "other", "options": {}, "versions": {}, "request": ""}))
    run(jobs, tmp_path / "out", options={"seed": 2})
    run(jobs, tmp_path / "undisturbed", options={"seed": 2})
    assert contents(tmp_path / "out") == contents(tmp_path / "undisturbed")


def test_a_file_without_record_is_not_given_away(jobs: list[Job], tmp_path: Path) -> None:
    """A kill between the rename of the first output and its record."""
    (tmp_path / "trouble").write_text("bad input")
    with pytest.raises(UserError):
        run(jobs, tmp_path / "out", options={"seed": 1})
    for path in (tmp_path / "out" / ".unfinished" / "done").iterdir():
        path.unlink()
    with pytest.raises(UserError, match="an unfinished run of another request"):
        run(jobs, tmp_path / "out", options={"seed": 2})
    with pytest.raises(UserError, match="the text is bad"):
        run(jobs[3:4], tmp_path / "other", options={"seed": 1})
    assert not (tmp_path / "other").exists() and (tmp_path / "out" / "sub" / "0.out").exists()


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        ({"stage": "split"}, {"stage": "gather"}, "prep split, not prep gather"),
        ({"options": {"num_eval_articles": 40}}, {"options": {"num_eval_articles": 7}}, "--eval-articles 40, not --ev"),
        ({"options": {"a": {"dupe_factor": 2}}}, {"options": {"a": {"dupe_factor": 3}}}, "--dupe-factor 2, not --dupe"),
        ({"options": {"subset": None}}, {"options": {"subset": 5}}, "no --subset, not --subset 5"),
        ({"options": {"x": True, "y": 1}}, {"options": {"x": False, "y": 2}}, "--x, --y 1, not no --x, --y 2"),
        ({"request": "a"}, {"request": "b"}, "other input files"),
        ({"versions": {"tokenizers": "1"}}, {"versions": {"tokenizers": "2"}}, "tokenizers 1, not tokenizers 2"),
    ],
)
def test_how_requests_differ(before: dict[str, Any], now: dict[str, Any], said: str) -> None:
    plan = {"stage": "clean", "options": {}, "request": "", "versions": {}}
    assert difference(plan | before, plan | now).startswith(said)


def test_foreign_files_are_left_alone(jobs: list[Job], tmp_path: Path) -> None:
    (tmp_path / "out" / "sub").mkdir(parents=True)
    (tmp_path / "out" / "sub" / "1.out").write_text("precious")
    with pytest.raises(UserError, match="exists and holds other files"):
        run(jobs, tmp_path / "out")
    assert contents(tmp_path / "out") == {"sub/1.out": b"precious"}
    with pytest.raises(UserError, match="cannot be written"):
        run(jobs, jobs[0].sources[0] / "out")


def test_missing_input(jobs: list[Job], tmp_path: Path) -> None:
    jobs[2].sources[0].unlink()
    with pytest.raises(UserError, match=r"the input .*text2 cannot be read: No such file"):
        run(jobs, tmp_path / "out")
    with pytest.raises(UserError, match="double has no input"):
        run([], tmp_path / "out")


def test_files_of_a_lost_plan_are_not_taken_for_ones_own(jobs: list[Job], tmp_path: Path) -> None:
    """Without it nothing says with which options the finished files were made."""
    (tmp_path / "trouble").write_text("bad input")
    with pytest.raises(UserError):
        run(jobs, tmp_path / "out", options={"seed": 1})
    plan = tmp_path / "out" / ".unfinished" / "plan.json"
    whole = plan.read_bytes()
    for damaged in (None, b"", whole[:20], b"{}", b"[1]", b'{"stage": 1}'):
        plan.unlink()
        if damaged is not None:
            plan.write_bytes(damaged)
        before = contents(tmp_path / "out")
        with pytest.raises(UserError, match=r"plan.json, which says of which, is lost or damaged; remove the folder"):
            run(jobs, tmp_path / "out", options={"seed": 5})
        assert contents(tmp_path / "out") == before
        plan.write_bytes(whole)
    (tmp_path / "trouble").unlink()
    run(jobs, tmp_path / "out", options={"seed": 1})


@pytest.mark.parametrize("damage", ["", "{", "{}", "[]", "null", "facts", "names"])
def test_a_job_with_a_damaged_record_is_done_again(jobs: list[Job], tmp_path: Path, damage: str) -> None:
    (tmp_path / "trouble").write_text("bad input")
    with pytest.raises(UserError):
        run(jobs, tmp_path / "out")
    path = tmp_path / "out" / ".unfinished" / "done" / "000001.json"
    record = json.loads(path.read_text())
    changes = {"facts": record | {"facts": None}, "names": record | {"outputs": []}}
    path.write_text(json.dumps(changes[damage]) if damage in changes else damage)
    (tmp_path / "trouble").unlink()
    run(jobs, tmp_path / "out")
    run(jobs, tmp_path / "undisturbed")
    assert contents(tmp_path / "out") == contents(tmp_path / "undisturbed")


def test_a_changed_output_is_made_again(jobs: list[Job], tmp_path: Path) -> None:
    """Of the same size; one that was only copied is kept."""
    (tmp_path / "trouble").write_text("bad input")
    with pytest.raises(UserError):
        run(jobs, tmp_path / "out")
    (tmp_path / "out" / "sub" / "1.out").write_bytes(b"7\n" * 202)
    copied = tmp_path / "out" / "sub" / "2.out"
    os.utime(copied, ns=(1, 1))
    (tmp_path / "trouble").unlink()
    run(jobs, tmp_path / "out")
    run(jobs, tmp_path / "undisturbed")
    assert copied.stat().st_mtime_ns == 1
    assert contents(tmp_path / "out") == contents(tmp_path / "undisturbed")


def test_a_damaged_manifest_is_named(jobs: list[Job], tmp_path: Path) -> None:
    run(jobs, tmp_path / "out")
    path = tmp_path / "out" / "manifest.json"
    manifest = json.loads(path.read_text())
    for change in ({"inputs": manifest["inputs"][1:]}, {"inputs": []}, {"request": None}, {"versions": 3}):
        path.write_text(json.dumps(manifest | change))
        with pytest.raises(UserError, match=r"manifest.json is damaged"):
            run(jobs, tmp_path / "out")


@pytest.mark.parametrize("moment", ["before the lock", "between lock and folder"])
def test_a_folder_that_another_process_finishes_meanwhile_is_not_touched(
    jobs: list[Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The other one ends after this one has looked: before it opens the lock, or while it has the old one open."""
    out = tmp_path / "out"
    lock, check = claim._lock, claim.check_free

    def others_first(*arguments: Any) -> None:
        monkeypatch.setattr(claim, "_lock", lock)
        monkeypatch.setattr(claim, "check_free", check)
        run_stage("double", out=out, options={"seed": 1}, jobs=jobs, work=double, workers=1)
        (lock if moment == "between lock and folder" else check)(*arguments)

    monkeypatch.setattr(claim, "_lock" if moment == "between lock and folder" else "check_free", others_first)
    with pytest.raises(UserError, match=r"another process was just writing|exists and holds other files"):
        run(jobs, out, options={"seed": 2})
    assert not (out / ".unfinished").exists()
    run(jobs, tmp_path / "undisturbed", options={"seed": 1})
    assert contents(out) == contents(tmp_path / "undisturbed")


def test_a_folder_that_was_finished_between_look_and_lock(
    jobs: list[Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other process is through with everything, and this one makes .unfinished anew."""
    out = tmp_path / "out"
    run(jobs, out, options={"seed": 1})
    before = contents(out)
    monkeypatch.setattr(stage, "_finished", lambda *_: None)
    monkeypatch.setattr(claim, "check_free", lambda _: None)
    with pytest.raises(UserError, match=r"out has a manifest.json, which every step writes last"):
        run(jobs, out, options={"seed": 2})
    assert contents(out) == before and not (out / ".unfinished").exists()


SCRIPT = """
import json, sys
from pathlib import Path
from tests.data_prep.test_stage import Job, run
jobs = [Job((Path(source),), tuple(outputs), arguments) for source, outputs, arguments in json.loads(sys.argv[1])]
run(jobs, Path(sys.argv[2]), workers=2)
"""


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_workers_end_with_their_parent(jobs: list[Job], tmp_path: Path, signum: signal.Signals) -> None:
    (tmp_path / "trouble").write_text("slow")
    description = json.dumps([[str(job.sources[0]), job.outputs, job.arguments] for job in jobs])
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, description, str(tmp_path / "out")], stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 30
    while not (tmp_path / "trouble.pid").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    with pytest.raises(UserError, match="another process is writing to"):
        run(jobs, tmp_path / "out")
    process.send_signal(signum)
    process.communicate(timeout=30)
    worker = int((tmp_path / "trouble.pid").read_text())
    while _alive(worker) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _alive(worker)
    (tmp_path / "trouble").unlink()
    run(jobs, tmp_path / "out")
    run(jobs, tmp_path / "undisturbed")
    assert contents(tmp_path / "out") == contents(tmp_path / "undisturbed")


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
