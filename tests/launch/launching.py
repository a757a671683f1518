"""Starts the real command line on a tiny system and watches it: output in files, processes by their command line."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bert_mlperf.data.shards import write_shard
from tests.config import files
from tests.train.small import small_model, uneven_samples

PATIENCE_S = 60.0  # for anything that has to happen at all; the machine may be busy
SHARD = "part_00000_of_00001.hdf5"
TINY_MODEL = small_model(name="bert-tiny-test", num_hidden_layers=1, intermediate_size=16)
SLOW_MODEL = small_model(  # seconds of initialisation, to be interrupted in
    name="bert-slow-test", vocab_size=30000, hidden_size=512, num_attention_heads=8, intermediate_size=2048
)
ENDLESS = {"max_samples": 4_000_000, "eval_interval_samples": 4_000_000, "progress_interval_s": 0.1}


def write_data(folder: Path) -> Path:
    """200 training and 21 evaluation samples as shards in `folder`/train and `folder`/eval."""
    for name, count in (("train", 200), ("eval", 21)):
        (folder / name).mkdir(parents=True)
        samples = uneven_samples(count, config=TINY_MODEL, seed=count)
        write_shard(folder / name / SHARD, samples, vocab_size=TINY_MODEL.vocab_size)
    return folder


def tiny_system(data: Path, *, ranks: int = 2, **changes: Any) -> dict[str, Any]:
    """A system that trains 48 samples in 6 steps and evaluates twice. `changes` are keys of `run`."""
    run: dict[str, Any] = {
        "model": TINY_MODEL.model_dump(),
        "recipe": {"global_batch_size": 8, "base_learning_rate": 0.01, "training_steps": 100},
        "data": {"train": str(data / "train"), "eval": str(data / "eval")},
        "micro_batch_size": 8 // ranks,
        "ranks_per_node": ranks,
        "threads_per_rank": 1,
        "device": "cpu",
        "precision": "fp32",
        "target_accuracy": None,
        "eval_interval_samples": 24,
        "max_samples": 48,
        "seed": 7,
        "progress_interval_s": 1000.0,  # so that there is one line per evaluation
        "timeout_s": 20,
    }
    return files.small() | {"run": run | changes}


class Launched:
    """`python -m bert_mlperf launch` as a process of its own session; its results go to `folder`/results.

    `tag` keeps the outputs of several launchers in one folder apart.
    """

    def __init__(
        self, folder: Path, system: dict[str, Any], *arguments: str, tag: str = "", env: dict[str, str] | None = None
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.stdout, self.stderr = folder / f"stdout{tag}.txt", folder / f"stderr{tag}.txt"
        file = files.write(folder, system, "tiny.json")
        command = [sys.executable, "-m", "bert_mlperf", "launch", str(file), "--results", str(folder / "results")]
        with self.stdout.open("wb") as out, self.stderr.open("wb") as err:
            self.process = subprocess.Popen(
                [*command, *arguments],
                stdout=out,
                stderr=err,
                cwd=folder,
                env=clean_environment() | (env or {}),
                start_new_session=True,
            )

    @property
    def results(self) -> Path:
        return self.folder / "results" / "tiny" / "bert"

    @property
    def log(self) -> Path:
        return self.results / "result_0.txt"

    @property
    def output(self) -> str:
        return self.stderr.read_text()

    def errors(self) -> list[str]:
        """Lines on stderr that start with 'error: '."""
        return [line for line in self.output.splitlines() if line.startswith("error: ")]

    def wait_until(self, happened: Callable[[], object], what: str) -> None:
        """Polls until `happened()`; fails when the launcher ends first or it takes too long."""
        deadline = time.monotonic() + 2 * PATIENCE_S
        while not happened():
            assert self.process.poll() is None, f"the launcher ended before {what}:\n{self.output}"
            assert time.monotonic() < deadline, f"{what} did not happen:\n{self.output}"
            time.sleep(0.01)

    def wait_for_training(self) -> None:
        self.wait_until(lambda: "samples/s" in self.output, "the first line of progress")

    def wait_for_init(self) -> None:
        """Until init_start is in the log."""
        self.wait_until(lambda: self.log.exists() and '"init_start"' in self.log.read_text(), "init_start")

    def rank(self, number: int) -> int:
        """Process id of a rank."""
        self.wait_until(lambda: number in self._ranks(), f"the start of rank {number}")
        return self._ranks()[number]

    def end(self) -> int:
        """The exit code, once the launcher has ended and no process of its is left; else the test fails."""
        try:
            code = self.process.wait(PATIENCE_S)
            left = wait_for_none(self.folder)
            assert not left, f"processes {left} are left:\n{self.output}"
        finally:
            self.kill()
        return code

    def kill(self) -> None:
        """Ends whatever is left."""
        for process in {*processes_of(self.folder), *([self.process.pid] if self.process.poll() is None else [])}:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def _ranks(self) -> dict[int, int]:
        return {int(environment_of(p)["RANK"]): p for p in processes_of(self.folder) if "RANK" in environment_of(p)}


def clean_environment() -> dict[str, str]:
    """This environment without the variables by which ranks and nodes find each other."""
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "NODE_RANK", "SLURM_NODEID", "MASTER_ADDR", "MASTER_PORT")
    return {name: value for name, value in os.environ.items() if name not in names} | {"OMP_NUM_THREADS": "1"}


def processes_of(folder: Path) -> list[int]:
    """Processes (launcher and ranks, no zombies) whose command line names a path in `folder`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if f"{folder}/" in (entry / "cmdline").read_bytes().decode(errors="replace"):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def environment_of(process: int) -> dict[str, str]:
    try:
        text = Path(f"/proc/{process}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return {}
    return dict(pair.split("=", 1) for pair in text.split("\0") if "=" in pair)


def wait_for_none(folder: Path) -> list[int]:
    """The processes of `folder` that are still there when some seconds have passed."""
    deadline = time.monotonic() + 10
    while (left := processes_of(folder)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def events(log: Path) -> list[dict[str, Any]]:
    """The lines of a log, each of which must be an MLLOG line of valid JSON."""
    lines = log.read_text().splitlines(keepends=True)
    assert all(line.startswith(":::MLLOG ") and line.endswith("\n") for line in lines), lines
    return [json.loads(line.removeprefix(":::MLLOG ")) for line in lines]


def values(log: Path, key: str) -> list[Any]:
    return [event["value"] for event in events(log) if event["key"] == key]


def run_stop_status(log: Path) -> str:
    """Status of the one run_stop, which must be the last event."""
    found = events(log)
    assert [event["key"] for event in found].count("run_stop") == 1
    assert found[-1]["key"] == "run_stop"
    return found[-1]["metadata"]["status"]


def snapshot(folder: Path) -> dict[str, tuple[bytes, int] | None]:
    """Content and time of change of every file below `folder`, None for a folder; empty if it does not exist."""
    return {
        str(path.relative_to(folder)): None if path.is_dir() else (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
    }
