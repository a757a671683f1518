"""All ranks ask for SHARP or none does."""

import contextlib
import io
from dataclasses import replace

import pytest
import torch

from bert_mlperf.comm.control import Control
from bert_mlperf.config.sharding import sharding_plan
from bert_mlperf.config.sharp import SharpFacts
from bert_mlperf.errors import UserError
from bert_mlperf.train import inter_node, setup
from tests.dist.ranks import run_ranks
from tests.train.small import small_run

CPU = torch.device("cpu")
GOOD = SharpFacts("nccl", nodes=2, nccl_version=(2, 29, 3), infiniband=("mlx5_0",))


def ask(control: Control, wanted: str, without_plugin: list[int], reduction: str) -> tuple[str | None, str | None]:
    """Kind and way of this rank's request, where some ranks have no plugin; or the sentence that ended it."""
    fault = "no plugin" if control.rank in without_plugin else None
    inter_node.gather_facts = lambda **_: replace(GOOD, plugin_fault=fault)
    run = small_run(ranks_per_node=2, sharp=wanted, reduction=reduction)
    try:
        request = inter_node.sharp_request(run, sharding_plan(run, world_size=4), control, CPU)
    except UserError as error:
        return None, str(error)
    return (None, None) if request is None else (request.kind, request.way)


@pytest.mark.parametrize(("reduction", "kind"), [("hierarchical", "replica"), ("node", "world")])
def test_all_ranks_ask(reduction, kind):
    assert run_ranks(4, ask, "auto", [], reduction) == [(kind, "environment")] * 4


def test_one_rank_without_plugin_and_nobody_asks():
    assert run_ranks(4, ask, "auto", [3], "node") == [(None, None)] * 4
    assert run_ranks(4, ask, "off", [], "node") == [(None, None)] * 4


def test_require_ends_all_ranks():
    results = run_ranks(4, ask, "require", [2, 3], "node")
    assert all(request is None for request, _ in results)
    assert "ranks that cannot: 2, 3 (bert-mlperf doctor" in results[0][1]
    assert "not requested: no plugin" in results[2][1]
    assert run_ranks(4, ask, "require", [], "node") == [("world", "environment")] * 4


def build(control: Control) -> list[int]:
    """Ranks of the communicator between nodes of a state that is built as if SHARP were there (the backend is gloo)."""
    inter_node.gather_facts = lambda **_: GOOD
    run = small_run(ranks_per_node=2, reduction="hierarchical")
    state = setup.build_state(run, control, CPU, seed=5, checkpoint=None)
    return torch.distributed.get_process_group_ranks(state.gradients._reduction._groups.replica)


def test_a_run_starts_with_the_request():
    assert run_ranks(4, build) == [[0, 2], [1, 3], [0, 2], [1, 3]]


def tell(control: Control) -> str:
    """What this rank says on stderr, on two nodes with gloo."""
    run = small_run(ranks_per_node=2)
    with contextlib.redirect_stderr(io.StringIO()) as text:
        inter_node.sharp_request(run, sharding_plan(run, world_size=4), control, CPU)
    return text.getvalue()


def test_the_run_goes_on_and_says_why_not():
    line = "sharp    not requested: the backend is gloo, and only nccl knows SHARP\n"
    assert run_ranks(4, tell) == [line, "", "", ""]
