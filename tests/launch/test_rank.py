"""One rank by itself: the entry that torchrun calls, and the order in which it touches things."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bert_mlperf.comm.process_group import RankInfo
from bert_mlperf.config.system import load_system
from bert_mlperf.mlperf.log import MlperfLog
from bert_mlperf.train.context import RunContext
from bert_mlperf.train.run import run_rank
from tests.config import files
from tests.launch import launching
from tests.launch.launching import events, tiny_system


def make_context(folder: Path, data: Path, *, ranks: int) -> RunContext:
    """The context of a run whose log would be `folder`/result.txt."""
    resolved = load_system(files.write(folder, tiny_system(data, ranks=ranks)))
    return RunContext(
        system=resolved.system.model_dump(by_alias=True),
        train_data=resolved.run.data.train,
        eval_data=resolved.run.data.eval,
        checkpoint=None,
        evaluation_points=resolved.evaluation_points,
        threads_per_rank=1,
        seed=7,
        run_dir=str(folder),
        result_file=str(folder / "result.txt"),
        cache_cleared=False,
        cache_note="test",
    )


def start_rank(context: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bert_mlperf.train", str(context)],
        env=launching.clean_environment() | variables,
        capture_output=True,
        text=True,
        timeout=launching.PATIENCE_S,
    )


@pytest.mark.parametrize(("ranks", "world_size"), [(2, "3"), (2, None)])
def test_another_world_size_is_refused(tmp_path: Path, data: Path, ranks: int, world_size: str | None) -> None:
    make_context(tmp_path, data, ranks=ranks).write(tmp_path / "context.json")
    (tmp_path / "result.txt").touch()
    before = launching.snapshot(tmp_path)
    variables = {} if world_size is None else {"WORLD_SIZE": world_size, "RANK": "0", "LOCAL_RANK": "0"}
    done = start_rank(tmp_path / "context.json", **variables)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        f"error: rank 0: {world_size or 1} ranks were started, system small wants 1 nodes x 2 ranks = 2: start it with "
        "./run_and_time.sh, or correct number_of_nodes or run.ranks_per_node\n"
    )
    assert launching.snapshot(tmp_path) == before


def test_the_log_of_another_run_is_not_continued(tmp_path: Path, data: Path) -> None:
    make_context(tmp_path, data, ranks=1).write(tmp_path / "context.json")
    (tmp_path / "result.txt").write_text("an earlier log\n")
    before = launching.snapshot(tmp_path)
    done = start_rank(tmp_path / "context.json")
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: rank 0: {tmp_path / 'result.txt'} holds the log of a run already")
    assert launching.snapshot(tmp_path) == before


def test_a_file_that_is_no_context(tmp_path: Path) -> None:
    (tmp_path / "context.json").write_text('{"seed": 1}')
    done = start_rank(tmp_path / "context.json")
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: rank 0: {tmp_path / 'context.json'} is no context of a run")
    assert "Traceback" not in done.stderr


def test_data_is_touched_only_after_run_start(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The data is not there until run_start is logged: whatever looked for it earlier would fail."""
    context = make_context(tmp_path, data, ranks=1)
    context = dataclasses.replace(
        context, train_data=str(tmp_path / "late" / "train"), eval_data=str(tmp_path / "late" / "eval")
    )
    write_run_start = MlperfLog.run_start

    def run_start(log: MlperfLog) -> None:
        write_run_start(log)
        os.symlink(data, tmp_path / "late")

    monkeypatch.setattr(MlperfLog, "run_start", run_start)
    threads = torch.get_num_threads()
    with MlperfLog(tmp_path / "result.txt") as log:
        run_rank(context, RankInfo(rank=0, local_rank=0, world_size=1), log)
    torch.set_num_threads(threads)
    found = [event["key"] for event in events(tmp_path / "result.txt")]
    assert found.index("init_stop") < found.index("run_start") < found.index("block_start")
    assert found[-1] == "run_stop"


def test_data_that_is_gone_at_run_start_is_an_aborted_run(tmp_path: Path, data: Path) -> None:
    """So the run above did read the data, and not something that was read before."""
    context = dataclasses.replace(make_context(tmp_path, data, ranks=1), train_data=str(tmp_path / "gone"))
    threads = torch.get_num_threads()
    with MlperfLog(tmp_path / "result.txt") as log, pytest.raises(ValueError, match="gone does not exist"):
        run_rank(context, RankInfo(rank=0, local_rank=0, world_size=1), log)
    torch.set_num_threads(threads)
    assert launching.run_stop_status(tmp_path / "result.txt") == "aborted"


def test_a_signal_to_a_rank_that_is_ending_changes_nothing(tmp_path: Path) -> None:
    code = (
        "import atexit, os, runpy, signal, sys; sys.argv = ['rank', 'missing.json'];"
        "atexit.register(lambda: os.kill(os.getpid(), signal.SIGTERM));"
        "runpy.run_module('bert_mlperf.train', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("error: rank 0: missing.json is no context of a run")
    assert "Traceback" not in done.stderr
