"""`reduction: auto` on two nodes: all ranks decide alike, rank 0 tells, nothing of the others is left."""

import contextlib
import io
import json
from pathlib import Path

import torch
import torch.distributed as dist

from bert_mlperf.comm.control import Control
from bert_mlperf.train.sharding import CHOICE_FILE, decide_sharding
from tests.dist.ranks import run_ranks
from tests.train.small import small_run


def decide(control: Control, folder: Path, changes: dict) -> tuple[str, int, str]:
    """(strategy, communicators that are left, what this rank says)."""
    before, said = len(dist.distributed_c10d._world.pg_map), io.StringIO()
    with contextlib.redirect_stderr(said):
        run = small_run(ranks_per_node=2, **changes)
        plan = decide_sharding(run, control, torch.device("cpu"), folder=folder)
    return plan.strategy, len(dist.distributed_c10d._world.pg_map) - before, said.getvalue()


def test_all_ranks_decide_alike_and_rank_0_keeps_the_table(tmp_path):
    results = run_ranks(4, decide, tmp_path, {})
    record = json.loads((tmp_path / CHOICE_FILE).read_text())
    assert {strategy for strategy, _, _ in results} == {record["chosen"]}
    assert [left for _, left, _ in results] == [0, 0, 0, 0]
    assert [timing["strategy"] for timing in record["seconds_per_step"]] == ["flat", "node", "hierarchical"]
    assert "is taken: it reduces and gathers" in results[0][2]
    assert [said for _, _, said in results[1:]] == ["", "", ""]


def test_what_is_given_is_not_timed(tmp_path):
    results = run_ranks(4, decide, tmp_path, {"reduction": "node"})
    assert [(strategy, said) for strategy, _, said in results] == [("node", "")] * 4
    assert not (tmp_path / CHOICE_FILE).exists()
