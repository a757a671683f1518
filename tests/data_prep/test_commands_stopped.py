"""`prep examples` killed at any moment, or stopped with Ctrl-C, and started again."""

import hashlib
import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.data_prep.commands import children_of, complaint, files_of, is_alive, prep, start, write_parts

EXAMPLES = ("examples", "parts", "--vocab", "vocab.txt", "--own-vocabulary", "--dupe-factor", "20")
KILLS = 10


def digests(folder: Path) -> dict[str, str]:
    return {name: hashlib.sha256(content).hexdigest() for name, content in files_of(folder).items()}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, str], float]]:
    """The folder of a text of four parts, the checksums of what an undisturbed run writes, and its seconds."""
    folder = write_parts(tmp_path_factory.mktemp("stopped"), parts=4, documents=300, repeat=4)
    begin = time.monotonic()
    result = prep(folder, *EXAMPLES, "--out", "whole", "--workers", "2")
    seconds = time.monotonic() - begin
    assert result.returncode == 0, result.stderr
    yield folder, digests(folder / "whole"), seconds


def check_names(out: Path, expected: dict[str, str]) -> dict[str, int]:
    """Asserts that all that lies under a final name is whole; gives inode and time of the parts that are recorded."""
    found = digests(out) if out.exists() else {}
    unnamed = {name for name in found if Path(name).name.startswith(".") and name.endswith(".tmp")}
    assert {name: found[name] for name in found.keys() - unnamed} == {
        name: expected[name] for name in found.keys() - unnamed
    }
    records = [json.loads(path.read_text()) for path in out.glob(".unfinished/done/*.json")]
    names = [output["name"] for record in records for output in record["outputs"]]
    return {name: (out / name).stat().st_mtime_ns for name in names}


def wait_until_dead(pids: list[int]) -> None:
    deadline = time.monotonic() + 10
    while any(map(is_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not [pid for pid in pids if is_alive(pid)]


def stop(process: subprocess.Popen[str], signum: int, *, of_a_worker: bool = False) -> str:
    """Signals the process (its whole group if it may heed it, one worker if wished); gives its stderr."""
    workers = children_of(process.pid)
    if signum != signal.SIGKILL:
        os.killpg(process.pid, signum)
    elif of_a_worker and workers:
        os.kill(workers[-1], signum)
    else:
        process.send_signal(signum)
    _, said = process.communicate(timeout=30)
    wait_until_dead([*workers, process.pid])
    return said


def wait_for_records(process: subprocess.Popen[str], folder: Path, count: int, *, step: str = "") -> None:
    """Until `count` parts are recorded in `folder` (0: until the work begins) or in its `step`."""
    deadline = time.monotonic() + 30
    while process.poll() is None and time.monotonic() < deadline:
        if any(folder.glob(f"{step}plan.json")) and len(list(folder.glob(f"{step}done/*.json"))) >= count:
            return
        time.sleep(0.005)


@pytest.mark.slow
def test_killed_at_ten_random_moments(undisturbed: tuple[Path, dict[str, str], float]) -> None:
    """A moment is a number of finished parts (-1: not even begun) and a time after that, so that it falls into the
    work however busy the machine is; a run that ends before is tried again."""
    folder, expected, seconds = undisturbed
    rng = random.Random(20)
    kills, kept = 0, 0
    for number in range(3 * KILLS):
        out = folder / f"out{number}"
        process = start(folder, *EXAMPLES, "--out", out.name, "--workers", str(1 + number % 2))
        finished = rng.choice([-1, 0, 1, 2, 3] if number % 2 == 0 else [0, 1])
        if finished >= 0:
            wait_for_records(process, out / ".unfinished", finished)
        time.sleep(rng.uniform(0, seconds / 6))
        said = stop(process, signal.SIGKILL, of_a_worker=number % 3 == 2)
        if process.returncode == 2:
            assert "was killed by SIGKILL" in complaint(said.splitlines())
        kills += process.returncode != 0
        before = check_names(out, expected)
        again = prep(folder, *EXAMPLES, "--out", out.name, "--workers", "2")
        assert again.returncode == 0, again.stderr
        assert digests(out) == expected and not (out / ".unfinished").exists()
        assert {name: (out / name).stat().st_mtime_ns for name in before} == before  # not made again
        kept += len(before)
        for path in out.iterdir():
            path.unlink()
        if kills == KILLS:
            break
    assert kills == KILLS and kept > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("signum", "finished"),
    [(signal.SIGINT, 0), (signal.SIGINT, 1), (signal.SIGINT, 2), (signal.SIGTERM, 1), (signal.SIGHUP, 1)],
)
def test_told_to_stop(undisturbed: tuple[Path, dict[str, str], float], signum: signal.Signals, finished: int) -> None:
    folder, expected, _ = undisturbed
    out = folder / f"interrupted{signum}-{finished}"
    process = start(folder, *EXAMPLES, "--out", out.name, "--workers", "2")
    wait_for_records(process, out / ".unfinished", finished)
    said = stop(process, signum)
    assert process.returncode == 128 + signum, said
    lines = said.splitlines()
    assert lines[-1].startswith("examples stopped; what is finished is kept in ") and "Traceback" not in said
    assert "leaked" not in said and sum("stopped" in line for line in lines) == 1
    before = check_names(out, expected)
    again = prep(folder, *EXAMPLES, "--out", out.name)
    assert again.returncode == 0 and digests(out) == expected
    assert {name: (out / name).stat().st_mtime_ns for name in before} == before


@pytest.mark.slow
def test_a_subset_that_is_killed_while_it_counts(undisturbed: tuple[Path, dict[str, str], float]) -> None:
    folder, _, _ = undisturbed
    arguments = (*EXAMPLES, "--subset", "300")
    assert prep(folder, *arguments, "--out", "subset").returncode == 0
    expected = digests(folder / "subset")
    out = folder / "killed-subset"
    for counted in (0, 1):
        process = start(folder, *arguments, "--out", out.name, "--workers", "2")
        wait_for_records(process, out / ".unfinished", counted, step="counts-*/.unfinished/")
        stop(process, signal.SIGKILL)
        assert files_of(out) == {}
    assert prep(folder, *arguments, "--out", out.name).returncode == 0
    assert digests(out) == expected
