"""Ctrl-C and SIGTERM: the log is closed as aborted, the exit code names the signal, nothing is left running."""

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bert_mlperf.cli import main
from bert_mlperf.train.stop import STOP_SIGNALS
from tests.config import files
from tests.launch import launching
from tests.launch.launching import ENDLESS, Launched, tiny_system

Scenario = Callable[[Path, Path], Launched]


def in_training(signum: signal.Signals, *, ranks: int, terminal: bool) -> Scenario:
    """`terminal`: the whole process group gets the signal, as Ctrl-C does it; else the launcher alone."""

    def act(folder: Path, data: Path) -> Launched:
        launched = Launched(folder, tiny_system(data, ranks=ranks, **ENDLESS))
        launched.wait_for_training()
        (os.killpg if terminal else os.kill)(launched.process.pid, signum)
        return launched

    return act


def in_initialisation(signum: signal.Signals) -> Scenario:
    """While rank 0 draws the weights of a model that is large enough to be met there."""

    def act(folder: Path, data: Path) -> Launched:
        system = tiny_system(data, ranks=1, model=launching.SLOW_MODEL.model_dump(), **ENDLESS)
        launched = Launched(folder, system)
        launched.wait_for_init()
        os.killpg(launched.process.pid, signum)
        return launched

    return act


def at_the_start_of_ranks(folder: Path, data: Path) -> Launched:
    """When the ranks have just been started and the agent may not know them yet."""
    launched = Launched(folder, tiny_system(data, **ENDLESS))
    launched.rank(0)
    launched.process.terminate()
    return launched


def killed_launcher(folder: Path, data: Path) -> Launched:
    """SIGKILL: the launcher can do nothing any more, its ranks must end by themselves."""
    launched = Launched(folder, tiny_system(data, ranks=1, **ENDLESS))
    launched.wait_for_training()
    launched.process.kill()
    return launched


def before_the_nodes_meet(folder: Path, data: Path) -> Launched:
    """Node 0 waits in native code for a node that never comes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    system = tiny_system(data, ranks=1, micro_batch_size=4, master_port=port) | {"number_of_nodes": "2"}
    launched = Launched(folder, system, env={"NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1"})

    def listens() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
        return False

    launched.wait_until(listens, "node 0 listens")
    time.sleep(0.5)  # now it waits for the other node
    launched.process.terminate()
    return launched


SCENARIOS: dict[str, tuple[Scenario, int]] = {
    "Ctrl-C in training": (in_training(signal.SIGINT, ranks=2, terminal=True), 130),
    "SIGINT to the launcher alone": (in_training(signal.SIGINT, ranks=1, terminal=False), 130),
    "SIGTERM in training": (in_training(signal.SIGTERM, ranks=2, terminal=False), 143),
    "Ctrl-C in initialisation": (in_initialisation(signal.SIGINT), 130),
    "SIGTERM in initialisation": (in_initialisation(signal.SIGTERM), 143),
    "SIGTERM at the start of ranks": (at_the_start_of_ranks, 143),
    "SIGTERM before the nodes meet": (before_the_nodes_meet, 143),
    "SIGKILL of the launcher": (killed_launcher, -signal.SIGKILL),
}


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory, data: Path) -> dict[str, tuple[int | AssertionError, Launched]]:
    """Exit code (or why it never ended) and launcher of every scenario; they run three at a time."""
    root = tmp_path_factory.mktemp("stopping")

    def play(item: tuple[int, Scenario]) -> tuple[int | AssertionError, Launched]:
        launched = item[1](root / str(item[0]), data)
        try:
            return launched.end(), launched
        except AssertionError as error:
            return error, launched

    with ThreadPoolExecutor(3) as pool:
        results = pool.map(play, enumerate(scenario for scenario, _ in SCENARIOS.values()))
    return dict(zip(SCENARIOS, results, strict=True))


@pytest.mark.parametrize("name", SCENARIOS)
def test_exit_code_and_no_process_left(ended: dict[str, tuple[int | AssertionError, Launched]], name: str) -> None:
    code, launched = ended[name]
    assert code == SCENARIOS[name][1], f"{code}\n{launched.output}"
    assert "Traceback" not in launched.output
    assert launched.errors() == []


@pytest.mark.parametrize("name", [name for name in SCENARIOS if "in training" in name or "in initialisation" in name])
def test_log_ends_as_aborted(
    ended: dict[str, tuple[int | AssertionError, Launched]], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    launched = ended[name][1]
    assert "stopped by SIG" in launched.output
    assert launching.run_stop_status(launched.log) == "aborted"
    keys = [event["key"] for event in launching.events(launched.log)]
    assert "init_start" in keys
    assert ("run_start" in keys) == ("in training" in name)
    assert main(["check", str(launched.log)]) == 1  # no accuracy, or no run at all
    verdict = capsys.readouterr().out
    assert f"{launched.log}: INVALID for 5.0.0" in verdict
    assert "run aborted" in verdict


def test_alone_and_killed_launchers_close_the_log_too(
    ended: dict[str, tuple[int | AssertionError, Launched]],
) -> None:
    """One gets the signal alone and passes it on, the other passes nothing on."""
    for name in ("SIGINT to the launcher alone", "SIGKILL of the launcher"):
        assert launching.run_stop_status(ended[name][1].log) == "aborted"


@pytest.mark.parametrize("name", ["SIGTERM at the start of ranks", "SIGTERM before the nodes meet"])
def test_a_run_that_never_began_has_no_log_but_a_verdict(
    ended: dict[str, tuple[int | AssertionError, Launched]], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    launched = ended[name][1]
    assert launched.log.read_bytes() == b""
    assert main(["check", str(launched.log)]) == 2
    assert "is empty" in capsys.readouterr().out


def test_a_signal_before_the_ranks_start_leaves_nothing(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes while the data is looked at; the handlers of the caller are put back."""
    files.write(tmp_path, tiny_system(data), "tiny.json")
    before = launching.snapshot(tmp_path)
    handlers = [signal.getsignal(name) for name in STOP_SIGNALS]

    def inspect_shards(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("bert_mlperf.launch_data.inspect_shards", inspect_shards)
    assert main(["launch", str(tmp_path / "tiny.json"), "--results", str(tmp_path / "results")]) == 143
    assert capsys.readouterr().err.endswith("\nstopped by SIGTERM\n")
    assert launching.snapshot(tmp_path) == before
    assert [signal.getsignal(name) for name in STOP_SIGNALS] == handlers
