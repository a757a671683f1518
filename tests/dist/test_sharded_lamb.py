"""The sharded LAMB on gloo ranks equals the plain one and the published reference; planted mistakes do not."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from bert_mlperf.comm import wire
from bert_mlperf.comm.control import Control
from bert_mlperf.comm.reduction import Finish, Reduction
from bert_mlperf.comm.topology import Topology
from bert_mlperf.optim import sharded_lamb
from bert_mlperf.optim.layout import ALIGNMENT, TensorRange
from bert_mlperf.optim.sharded_lamb import ShardedLamb
from tests import golden
from tests.dist.ranks import run_ranks
from tests.dist.replay import STEPS, Case, Problem, Replay, State, golden_problem, odd_problem, open_lanes, plain_lamb

BOUND = 1e-6  # of each tensor's norm; gradient norm and rate relative
BUCKET_SIZES = {"flat": (None, 700, 1), "node": (700, 1), "hierarchical": (700,)}  # None: one, 1: one per unit
SMALL = 640  # elements of a slice on the wire: several a bucket
NO_CLIP = 1e30


def cases(world: int) -> list[Case]:
    """Every shard group size, every strategy that it allows, from one bucket to one per unit."""
    return [
        Case(strategy, shards, bucket_size)
        for shards in range(1, world + 1)
        if world % shards == 0
        for strategy, bucket_sizes in BUCKET_SIZES.items()
        if strategy != "flat" or shards == world
        for bucket_size in bucket_sizes
    ]


def largest(got: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    """The largest error of a tensor as a share of its norm (of 1 where that is 0)."""
    errors = [(got[name] - wanted[name]).norm() / (wanted[name].norm() or 1) for name in wanted]
    return max(float(error) for error in errors)


def compare(replay: Replay, states: list[State]) -> dict[str, float]:
    """Replays all steps; the largest errors of what a step says, of weights and moments, after any step. With `equal`
    0 if all ranks ever held other weights."""
    errors = {"norm": 0.0, "rate": 0.0, "weights": 0.0, "shards": 0.0, "m": 0.0, "v": 0.0, "equal": 1.0}

    def note(key: str, error: float) -> None:
        errors[key] = max(errors[key], error)

    for index, state in enumerate(states):
        update = replay.step(index)
        note("norm", abs(update.gradient_norm.item() / state.norm - 1))
        note("rate", abs(update.learning_rate.item() - state.rate) / replay.problem.recipe.base_learning_rate)
        note("weights", largest(replay.blocks(replay.flat.weights), state.weights))
        same = replay.control.equal_everywhere(replay.flat.weights)
        errors["equal"] = min(errors["equal"], float(same))
    for key, shard, wanted in (
        ("shards", replay.flat.shard_weights, state.weights),
        ("m", replay.optimizer.first_moment, state.first_moments),
        ("v", replay.optimizer.second_moment, state.second_moments),
    ):
        note(key, largest(replay.blocks(replay.whole(shard)), wanted))
    return errors


def every_case(control: Control) -> dict[Case, dict[str, float]]:
    problem, found = odd_problem(), {}
    states, opened = plain_lamb(problem, control.world_size), {}
    for case in cases(control.world_size):
        if case.shards not in opened:
            opened[case.shards] = open_lanes(Topology(control.rank, control.world_size, case.shards))
        size = SMALL if case.bucket_size == 700 else 2**16
        with patch.object(wire, "SLICE", size):
            found[case] = compare(Replay(problem, case, control, opened[case.shards]), states)
    return found


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_sharded_equals_plain_for_every_group_size_strategy_and_bucket(world):
    for found in run_ranks(world, every_case):
        assert len(found) == {1: 6, 2: 9, 3: 9, 4: 12}[world]
        for case, errors in found.items():
            assert errors.pop("equal") == 1, case
            assert max(errors.values()) <= BOUND, (case, errors)


def cuts(num_shards: int, bucket_size: int | None) -> dict[str, int]:
    """In how many shards each tensor has elements."""
    problem = odd_problem()
    layout = problem.layout(num_shards=num_shards, bucket_size=bucket_size)
    return {
        r.name: sum(bool(layout.pieces(r.start, r.end, shard)) for shard in range(num_shards))
        for r in problem.ranges(layout)
    }


def test_the_cases_cut_tensors_in_two_three_and_four():
    found = {number for shards in (2, 3, 4) for size in (None, 700, 1) for number in cuts(shards, size).values()}
    assert found == {0, 1, 2, 3, 4}
    assert cuts(4, None)["embedding"] == 3 and cuts(3, None)["embedding"] == 2
    assert {cuts(4, 700)[name] for name in "qkv"} == {2}


def reference_errors(control: Control, name: str) -> dict[str, float]:
    """Largest absolute error of a parameter after any step; errors of the moments as a share of their norms."""
    problem, recorded = golden_problem(name), golden.arrays(name)
    case = Case("flat", control.world_size, bucket_size=400)
    replay = Replay(problem, case, control, open_lanes(Topology(control.rank, control.world_size, case.shards)))
    names, errors = list(problem.weights), {"parameter": 0.0}
    with patch.object(sharded_lamb, "CLIP_NORM", NO_CLIP) if name == "lamb_const" else nullcontext():
        for step in range(STEPS):
            replay.step(step)
            got = replay.blocks(replay.flat.weights)
            for n in names:
                error = (got[n] - torch.from_numpy(recorded[f"param/{n}"][step])).abs().max().item()
                errors["parameter"] = max(errors["parameter"], error)
    for key, shard in (("m", replay.optimizer.first_moment), ("v", replay.optimizer.second_moment)):
        got = replay.blocks(replay.whole(shard))
        errors[key] = max(golden.relative_error(got[n], torch.from_numpy(recorded[f"{key}/{n}"])) for n in names)
    return errors


@pytest.mark.parametrize("name", ["lamb_const", "lamb_sched_clip"])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_twenty_updates_equal_the_published_reference(world, name):
    for errors in run_ranks(world, reference_errors, name):
        assert errors["parameter"] <= 1e-6  # as tests/optim/test_lamb.py
        assert errors["m"] <= 1e-6
        assert errors["v"] <= 2e-5


def without_sum(dim: int) -> AbstractContextManager:
    """Sums over shards are left out for values of so many dimensions: 2 are the norms of tensors, 0 the global one."""
    whole = Reduction.sum_over_shards

    def forgetful(self: Reduction, values: Tensor) -> None:
        if values.dim() != dim:
            whole(self, values)

    return patch.object(Reduction, "sum_over_shards", forgetful)


@contextmanager
def correction_off_by_one() -> Iterator[None]:
    right = ShardedLamb._directions

    def late(self: ShardedLamb, *arguments) -> tuple[Tensor, Tensor]:
        self.updates += 1
        found = right(self, *arguments)
        self.updates -= 1
        return found

    with patch.object(ShardedLamb, "_directions", late):
        yield


@contextmanager
def mean_over_ranks() -> Iterator[None]:
    right = Reduction.start

    def mean(self: Reduction, bucket: Tensor, part: Tensor) -> Finish:
        finish = right(self, bucket, part)

        def finish_and_divide() -> Tensor:
            squared = finish()
            part.div_(self.topology.world_size)
            return squared / self.topology.world_size**2

        return finish_and_divide

    with patch.object(Reduction, "start", mean):
        yield


@contextmanager
def norms_with_padding() -> Iterator[None]:
    right = Problem.ranges

    def longer(self: Problem, layout) -> list[TensorRange]:
        return [
            TensorRange(r.name, r.start, -(-r.end // ALIGNMENT) * ALIGNMENT if r.name == "tiny" else r.end, r.adapted)
            for r in right(self, layout)
        ]

    with patch.object(Problem, "ranges", longer):
        yield


MISTAKES = {
    "trust ratio per shard": (lambda: without_sum(2), "weights"),
    "clip per shard": (lambda: without_sum(0), "norm"),
    "bias correction off by one": (correction_off_by_one, "weights"),
    "mean over the ranks": (mean_over_ranks, "norm"),
    "padding in the norms": (norms_with_padding, "weights"),
}


def fill_padding(replay: Replay, flat: Tensor, value: float) -> None:
    """Sets what belongs to no parameter of a buffer."""
    is_padding = torch.ones(replay.layout.size, dtype=torch.bool)
    for view in replay.flat.split(is_padding).values():
        view.fill_(False)
    flat[is_padding] = value


def with_padding_of_ones(replay: Replay, states: list[State]) -> dict[str, float]:
    """As `compare`, with padding of 1 in the weights: only a mistake looks at it."""
    full = replay.whole(replay.flat.shard_weights)
    fill_padding(replay, full, 1.0)
    for part, weights in zip(
        replay.layout.parts(replay.reductions[0].topology.shard), replay.flat.shard_parts, strict=True
    ):
        weights.copy_(full[part.start : part.end])
    return compare(replay, states)


def planted(control: Control) -> dict[str, dict[str, float]]:
    problem, case = odd_problem(), Case("flat", control.world_size, bucket_size=700)
    states = plain_lamb(problem, control.world_size)
    groups = open_lanes(Topology(control.rank, control.world_size, case.shards))
    found = {"none": with_padding_of_ones(Replay(problem, case, control, groups), states)}
    for name, (mistake, _) in MISTAKES.items():
        with mistake():
            found[name] = with_padding_of_ones(Replay(problem, case, control, groups), states)
    return found


def test_planted_mistakes_fail_the_bounds():
    for found in run_ranks(2, planted):
        right = found.pop("none")
        assert max(error for key, error in right.items() if key != "equal") <= BOUND
        for name, errors in found.items():
            assert errors[MISTAKES[name][1]] > 100 * BOUND, (name, errors)
