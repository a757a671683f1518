"""Whole runs through the command line: what they leave behind, several at a time, several nodes, kept weights."""

import json
import shutil
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from bert_mlperf.checkpoint.store import load_weights
from bert_mlperf.report.metrics import read_metrics
from tests.launch import launching
from tests.launch.launching import TINY_MODEL, Launched, events, tiny_system, values

RUN_FILES = ("config.json", "context.json", "curves.png", "environment.json", "metrics.jsonl")


@dataclass(frozen=True)
class Runs:
    """Launchers that have ended, and the earlier results that two of them found."""

    twice: Launched  # --runs 2, seeds from the OS
    kept: Launched  # --save, 1 node x 2 ranks
    nodes: tuple[Launched, Launched]  # 2 nodes x 1 rank, which exchange samples; the same as `kept` otherwise
    together: tuple[Launched, Launched]  # at the same time on the same folder of results
    before: dict[str, tuple[bytes, int] | None]  # that folder before they started


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Runs:
    root = tmp_path_factory.mktemp("runs")
    shutil.copytree(data, root / "data")  # an index will lie there
    nodes = tiny_system(root / "data", ranks=1, micro_batch_size=4, master_port=free_port()) | {"number_of_nodes": "2"}
    nodes["run"] |= {"read": "exchange", "cache": "node", "cache_folder": str(root), "loader_workers": 2}
    nodes["run"]["recipe"]["beta_1"] = 0.8
    shared = root / "together" / "results" / "tiny" / "bert"
    (shared / "run_1").mkdir(parents=True)
    (shared / "result_0.txt").write_text("an earlier result without a folder\n")
    before = launching.snapshot(shared)

    options = ["--save", str(root / "kept" / "kept"), "--trace", "2", "--set", "recipe.beta_1=0.8", "sw_notes=a test"]

    def one_node(number: int) -> Launched:
        return ended(
            Launched(root / f"node{number}", nodes, env={"NODE_RANK": str(number), "MASTER_ADDR": "127.0.0.1"})
        )

    def one_of_two(number: int) -> Launched:
        return ended(Launched(root / "together", tiny_system(data, ranks=1), tag=f"_{number}"), alone=False)

    with ThreadPoolExecutor(3) as pool:
        several = [pool.submit(one_node, number) for number in (0, 1)]
        twice = pool.submit(lambda: ended(Launched(root / "twice", tiny_system(data, seed="os"), "--runs", "2")))
        together = [pool.submit(one_of_two, number) for number in (0, 1)]
        kept = pool.submit(lambda: ended(Launched(root / "kept", tiny_system(data), *options)))
        return Runs(
            twice=twice.result(),
            kept=kept.result(),
            nodes=(several[0].result(), several[1].result()),
            together=(together[0].result(), together[1].result()),
            before=before,
        )


def ended(launched: Launched, *, alone: bool = True) -> Launched:
    """The launcher, which must have ended well. `alone`: no other launcher uses its folder."""
    code = launched.end() if alone else launched.process.wait(launching.PATIENCE_S)
    assert code == 0, launched.output
    return launched


def losses(launched: Launched) -> list[float]:
    return [line.loss for line in read_metrics(launched.results / "run_0" / "metrics.jsonl").intervals]


def test_two_runs_write_two_logs_with_seeds_of_their_own(runs: Runs) -> None:
    logs = [runs.twice.results / f"result_{number}.txt" for number in (0, 1)]
    assert sorted(path.name for path in runs.twice.results.iterdir()) == [
        "result_0.txt",
        "result_1.txt",
        "run_0",
        "run_1",
    ]
    seeds = [values(log, "seed") for log in logs]
    assert [len(seed) for seed in seeds] == [1, 1]
    assert seeds[0] != seeds[1]
    assert runs.twice.output.count("verdict  VALID for 5.0.0 open (0 errors, 0 warnings)") == 2


def test_a_run_leaves_everything_beside_its_log(runs: Runs) -> None:
    for run in ("run_0", "run_1"):
        folder = runs.twice.results / run
        assert sorted(path.name for path in folder.iterdir()) == sorted(RUN_FILES)
        assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")
        environment = json.loads((folder / "environment.json").read_text())
        assert environment["torch"] == torch.__version__
        metrics = read_metrics(folder / "metrics.jsonl")
        assert [line.samples for line in metrics.evaluations] == [24, 48]
        assert metrics.intervals[-1].samples == 48


def test_the_log_holds_nothing_but_events_and_stderr_holds_progress(runs: Runs) -> None:
    for launched in (runs.twice, runs.kept, *runs.together):
        assert "48 / 48 samples" in launched.output
        assert launched.stdout.read_text() == ""
    keys = [event["key"] for event in events(runs.kept.log)]
    assert keys[0] == "cache_clear"
    assert keys[-1] == "run_stop"
    assert [key for key in keys if key in ("init_start", "init_stop", "run_start", "block_start", "eval_accuracy")] == [
        "init_start",
        "init_stop",
        "run_start",
        "block_start",
        "eval_accuracy",
        "block_start",
        "eval_accuracy",
    ]


def test_overrides_are_in_the_config_and_in_the_log(runs: Runs) -> None:
    config = json.loads((runs.kept.results / "run_0" / "config.json").read_text())
    assert config["system"]["run"]["recipe"]["beta_1"] == 0.8
    assert config["system"]["sw_notes"] == "a test"
    assert config["sources"]["run.recipe.beta_1"] == "--set"
    assert config["sources"]["run.recipe.beta_2"] == "default"
    assert config["set"] == ["recipe.beta_1=0.8", "sw_notes=a test"]
    assert values(runs.kept.log, "opt_lamb_beta_1") == [0.8]
    assert values(runs.kept.log, "seed") == [7]


def test_launches_at_the_same_time_take_numbers_of_their_own(runs: Runs) -> None:
    """0 has a result and 1 has a folder already, so 2 and 3 are free."""
    folder = runs.together[0].results
    after = launching.snapshot(folder)
    assert {name: after[name] for name in runs.before} == runs.before
    assert {name.split("/")[0] for name in after} == {
        "result_0.txt",
        "run_1",
        *("result_2.txt", "run_2"),
        *("result_3.txt", "run_3"),
    }
    assert not list((folder / "run_1").iterdir())
    for number in (2, 3):
        found = [event["key"] for event in events(folder / f"result_{number}.txt")]
        assert found.count("run_start") == found.count("run_stop") == 1
        assert any(f"result_{number}.txt" in launched.output for launched in runs.together)
    assert launching.wait_for_none(runs.together[0].folder) == []


def test_two_nodes_train_as_one_and_only_node_0_writes(runs: Runs) -> None:
    first, second = runs.nodes
    assert "2 node(s) x 1 rank(s)" in first.output
    assert not [path for path in (second.folder / "results").rglob("*") if path.is_file()]
    assert values(first.log, "submission_platform") == ["2xsmall"]
    assert launching.run_stop_status(first.log) == "aborted"  # there is no target
    assert len(values(first.log, "cache_clear")) == 2
    assert len(losses(first)) == 2
    assert losses(first) == pytest.approx(losses(runs.kept), rel=2e-6)
    assert values(first.log, "eval_accuracy") == values(runs.kept.log, "eval_accuracy")


def test_kept_weights_are_where_another_run_begins(runs: Runs, data: Path, tmp_path: Path) -> None:
    """The other run takes one step so small that no weight moves: its weights and its accuracy are those of before."""
    saved = runs.kept.folder / "kept"
    system = tiny_system(data, max_samples=8, eval_interval_samples=8)
    system["run"]["data"]["checkpoint"] = str(saved)
    system["run"]["recipe"]["base_learning_rate"] = 1e-30
    launched = ended(Launched(tmp_path, system, "--save", str(tmp_path / "kept")))
    assert f"weights  {saved}" in launched.output
    before, after = (load_weights(folder, TINY_MODEL) for folder in (saved, tmp_path / "kept"))
    assert before.keys() == after.keys()
    for name in before:
        torch.testing.assert_close(after[name], before[name], rtol=0, atol=1e-12, msg=name)
    assert values(launched.log, "eval_accuracy") == [values(runs.kept.log, "eval_accuracy")[-1]]


def test_the_timeline_of_a_step_shows_all_lanes_of_all_ranks(runs: Runs) -> None:
    folder = runs.kept.results / "run_0"
    assert sorted(path.name for path in folder.iterdir()) == sorted((*RUN_FILES, "timeline.png", "trace.json"))
    spans = [e for e in json.loads((folder / "trace.json").read_text())["traceEvents"] if e["ph"] == "X"]
    work = {(span["pid"], span["tid"], span["name"].split()[0]) for span in spans}
    kinds = {"compute": ("forward", "backward", "update"), "reduce": ("reduce",), "gather": ("gather",)}
    assert work == {(rank, lane, kind) for rank in (0, 1) for lane, names in kinds.items() for kind in names}
