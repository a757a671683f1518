"""A rank that dies, hangs or fails: everybody ends, the error line names rank and cause, the log says aborted."""

import os
import re
import shutil
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bert_mlperf.cli import main
from bert_mlperf.data.indexing import index_of
from bert_mlperf.data.shard_file import read_header
from tests.launch import launching
from tests.launch.launching import ENDLESS, SHARD, Launched, tiny_system


@dataclass(frozen=True)
class Ended:
    launched: Launched
    code: int | AssertionError
    process: int  # of the rank that the test has ended, 0 if none


def signalled(
    rank: int, signum: signal.Signals, *, timeout_s: int = 20, **changes: Any
) -> Callable[[Path, Path], Ended]:
    def act(folder: Path, data: Path) -> Ended:
        shutil.copytree(data, folder / "data")  # an index may lie there
        launched = Launched(folder, tiny_system(folder / "data", **ENDLESS | {"timeout_s": timeout_s} | changes))
        launched.wait_for_training()
        process = launched.rank(rank)
        os.kill(process, signum)
        return ended(launched, process)

    return act


def overwritten_shard(folder: Path, data: Path) -> Ended:
    """Token ids become 65535 while the file is open."""
    shutil.copytree(data, folder / "data")
    launched = Launched(folder, tiny_system(folder / "data", ranks=1, **ENDLESS))
    launched.wait_for_training()
    shard = folder / "data" / "train" / SHARD
    ids = read_header(shard).arrays["input_ids"]
    with shard.open("r+b") as file:
        file.seek(ids.byte_offset)
        file.write(b"\xff" * (ids.byte_end - ids.byte_offset))
    return ended(launched)


def shortened_shard(folder: Path, data: Path) -> Ended:
    """What is to be read is there no more."""
    shutil.copytree(data, folder / "data")
    launched = Launched(folder, tiny_system(folder / "data", ranks=1, **ENDLESS))
    launched.wait_for_training()
    os.truncate(folder / "data" / "train" / SHARD, 0)
    return ended(launched)


def lost_shard(folder: Path, data: Path) -> Ended:
    """One of two shards goes while the ranks start; with an index nobody looks before its first sample is wanted."""
    copy = folder / "data"
    shutil.copytree(data, copy)
    shutil.copy(copy / "train" / SHARD, copy / "train" / "part_more.hdf5")
    index_of(copy / "train")
    launched = Launched(folder, tiny_system(copy, **ENDLESS))
    launched.wait_until(lambda: launched.results.joinpath("run_0", "context.json").exists(), "a context")
    copy.joinpath("train", "part_more.hdf5").unlink()
    return ended(launched)


def absurd_rate(folder: Path, data: Path) -> Ended:
    return ended(Launched(folder, tiny_system(data, **ENDLESS), "--set", "run.recipe.base_learning_rate=1e30"))


def ended(launched: Launched, process: int = 0) -> Ended:
    try:
        return Ended(launched, launched.end(), process)
    except AssertionError as error:
        return Ended(launched, error, process)


SCENARIOS = {
    "hanging rank 1": signalled(1, signal.SIGSTOP, timeout_s=6),  # first: it takes longest and uses no processor
    "SIGKILL of rank 1": signalled(1, signal.SIGKILL),
    "SIGKILL of rank 1 that exchanges samples": signalled(1, signal.SIGKILL, read="exchange"),
    "lost shard": lost_shard,
    "SIGKILL of rank 0": signalled(0, signal.SIGKILL),
    "SIGTERM of rank 1": signalled(1, signal.SIGTERM),
    "overwritten shard": overwritten_shard,
    "shortened shard": shortened_shard,
    "absurd rate": absurd_rate,
}


@pytest.fixture(scope="module")
def scenarios(tmp_path_factory: pytest.TempPathFactory, data: Path) -> dict[str, Ended]:
    """All of them, three at a time."""
    root = tmp_path_factory.mktemp("failing")
    with ThreadPoolExecutor(3) as pool:
        folders = [root / str(number) for number in range(len(SCENARIOS))]
        results = pool.map(lambda folder, play: play(folder, data), folders, SCENARIOS.values())
        return dict(zip(SCENARIOS, results, strict=True))


def the_error(scenario: Ended, *, code: int) -> str:
    """The one error line; `Launched.end` has seen that it took less than a minute and that no process is left."""
    output = scenario.launched.output
    assert scenario.code == code, f"{scenario.code}\n{output}"
    assert len(scenario.launched.errors()) == 1, output
    return scenario.launched.errors()[0]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_is_named(scenarios: dict[str, Ended], rank: int) -> None:
    scenario = scenarios[f"SIGKILL of rank {rank}"]
    error = the_error(scenario, code=1)
    assert error.startswith(f"error: rank {rank} (process {scenario.process}) was killed by SIGKILL")
    assert "Traceback" not in scenario.launched.output  # the other rank lost contact, which is no news
    if rank == 1:
        assert launching.run_stop_status(scenario.launched.log) == "aborted"
    else:
        assert launching.events(scenario.launched.log)[-1]["key"] == "block_start"


def test_a_rank_that_is_stopped_from_outside_is_named(scenarios: dict[str, Ended]) -> None:
    scenario = scenarios["SIGTERM of rank 1"]
    error = the_error(scenario, code=1)
    assert error.startswith(f"error: rank 1 (process {scenario.process}) failed: stopped by SIGTERM")
    assert launching.run_stop_status(scenario.launched.log) == "aborted"


def test_a_hanging_rank_ends_the_run(scenarios: dict[str, Ended]) -> None:
    scenario = scenarios["hanging rank 1"]
    error = the_error(scenario, code=1)
    assert error.startswith("error: rank 0 ")
    assert "Timed out waiting 6000ms" in error
    assert "rank 1 hung and was killed" in error
    assert launching.run_stop_status(scenario.launched.log) == "aborted"


def test_an_overwritten_shard_is_named(scenarios: dict[str, Ended]) -> None:
    scenario = scenarios["overwritten shard"]
    error = the_error(scenario, code=2)
    assert str(scenario.launched.folder / "data" / "train" / SHARD) in error
    assert "was changed since it was opened; put the right file back" in error
    assert "Traceback" not in scenario.launched.output
    assert launching.run_stop_status(scenario.launched.log) == "aborted"


def test_a_rank_that_is_killed_while_samples_are_exchanged_is_named(scenarios: dict[str, Ended]) -> None:
    scenario = scenarios["SIGKILL of rank 1 that exchanges samples"]
    error = the_error(scenario, code=1)
    assert error.startswith(f"error: rank 1 (process {scenario.process}) was killed by SIGKILL")


def test_a_shard_that_is_lost_is_named(scenarios: dict[str, Ended]) -> None:
    scenario = scenarios["lost shard"]
    error = the_error(scenario, code=2)
    assert f"{scenario.launched.folder / 'data' / 'train' / 'part_more.hdf5'}, which" in error
    assert "is not there; put it back" in error


def test_a_shard_that_becomes_shorter_while_it_is_read(scenarios: dict[str, Ended]) -> None:
    error = the_error(scenarios["shortened shard"], code=2)
    assert "rank 0" in error and re.search(f"{SHARD} (has become shorter|was changed) since it was opened", error)
    launching.events(scenarios["shortened shard"].launched.log)  # whole lines


def test_a_gradient_that_is_not_finite_is_named(scenarios: dict[str, Ended]) -> None:
    scenario = scenarios["absurd rate"]
    error = the_error(scenario, code=1)
    assert "NotFiniteError: the gradient of step" in error
    assert "lower the learning rate" in error
    assert scenario.launched.output.count("Traceback") == 1  # of the rank that is named
    assert launching.run_stop_status(scenario.launched.log) == "aborted"


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_log_gets_a_verdict(scenarios: dict[str, Ended], name: str, capsys: pytest.CaptureFixture[str]) -> None:
    log = scenarios[name].launched.log
    assert main(["check", str(log)]) == 1
    assert f"{log}: INVALID for 5.0.0 open" in capsys.readouterr().out
