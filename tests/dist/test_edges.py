"""Gradients that are missing, empty, not finite or complete twice, and ranks that are lost: every rank ends."""

import os
import signal
import time
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from bert_mlperf.comm import wire
from bert_mlperf.comm.control import Control
from bert_mlperf.comm.reduction import Finish, Reduction
from bert_mlperf.comm.topology import Topology
from bert_mlperf.model.bert import Losses
from bert_mlperf.train.step import NotFiniteError, TrainState, forward_backward, train_step
from tests.dist.ranks import run_ranks
from tests.dist.replay import Case, Replay, odd_problem, open_lanes
from tests.dist.training import ALONE, global_step, state_of

LAYOUTS = {
    "flat": {"ranks_per_node": 4, "reduction": "flat"},
    "node": {"ranks_per_node": 2, "reduction": "node"},
    "hierarchical": {"ranks_per_node": 2, "reduction": "hierarchical"},
}


def forget_next_sentence(state: TrainState, ranks: list[int]) -> None:
    """No gradient reaches the next-sentence head on these ranks."""

    def forget(model, inputs, losses: Losses) -> Losses:
        return Losses(losses.masked_lm_sum, losses.next_sentence_sum.detach())

    if state.control.rank in ranks:
        state.model.register_forward_hook(forget)


def without_gradient(control: Control) -> list[tuple]:
    """Per layout, after a step in which the head got no gradient from any rank: was each of its parameters what it
    should be. Then a step with one from rank 1 alone: do all ranks hold the same weights."""
    found = []
    for layout in LAYOUTS.values():
        state = state_of(control, **layout)
        forget_next_sentence(state, [0, 1, 2, 3])
        before = state.weights.in_fp32()
        rate = train_step(state, global_step(0, control)).learning_rate.float()
        after = state.weights.in_fp32()
        head = [name for name in after if name.startswith("next_sentence")]
        biases = all(torch.equal(after[n], before[n]) for n in head if n.endswith("bias"))
        shrunk = [n for n in head if n.endswith("weight")]
        kernels = all(torch.allclose(after[n], before[n] * (1 - rate), rtol=1e-6) for n in shrunk)
        partial = state_of(control, **layout)
        forget_next_sentence(partial, [0, 2, 3])
        train_step(partial, global_step(0, control))
        partial.weights.wait()
        moved = not torch.equal(partial.weights.in_fp32()[head[-1]], before[head[-1]])
        found.append((len(head), biases, kernels, moved, control.equal_everywhere(partial.flat.weights)))
    return found


def test_parameters_without_gradient_are_left_alone_or_decay():
    for found in run_ranks(4, without_gradient):
        assert found == 3 * [(4, True, True, True, True)]


def empty_parameters(control: Control) -> tuple[float, bool]:
    """One backward of a model with an empty parameter; the largest error of its reduced gradients."""
    case = Case("flat", control.world_size, bucket_size=1, overlap=True)
    replay = Replay(odd_problem(), case, control, open_lanes(Topology(control.rank, control.world_size, case.shards)))
    parameters = dict(replay.holder.named_parameters())
    replay.gradients.watch(parameters)
    replay.gradients.open()
    sum(((control.rank + 1) * p).sum() for p in parameters.values()).backward()
    whole = replay.flat.split(replay.whole(replay.gradients.finish().shard))
    return max(float((g - 3).abs().max()) for g in whole.values() if g.numel()), whole["empty"].shape == (0, 5)


def test_an_empty_parameter_is_reduced_like_others():
    assert run_ranks(2, empty_parameters) == 2 * [(0.0, True)]


def test_a_gradient_that_is_complete_twice_is_noticed():
    state = state_of(ALONE)
    step = global_step(0, ALONE)
    forward_backward(state, step.micro_batches[0], step)  # not open: one of the first micro-batches
    state.gradients.open()
    forward_backward(state, step.micro_batches[0], step)
    with pytest.raises(AssertionError, match="is complete twice"):
        forward_backward(state, step.micro_batches[0], step)


def test_a_step_that_was_not_finished_is_noticed():
    state = state_of(ALONE)
    state.gradients.open()
    with pytest.raises(AssertionError, match="not finished"):
        state.gradients.open()


def poison(state: TrainState, value: float, rank: int = 2) -> None:
    """From now on one number of the segment embeddings' gradient is `value` on one rank."""

    def spoil(gradient: Tensor) -> Tensor:
        spoilt = gradient.clone()
        spoilt[1, 3] = value
        return spoilt

    if state.control.rank == rank:
        state.model.embeddings.token_type.weight.register_hook(spoil)


def not_finite(control: Control) -> list[str]:
    """What each rank says when the gradient of step 1 is not finite on rank 2, or too large for the wire."""
    said = []
    for layout in LAYOUTS.values():
        for value, dtype in ((float("nan"), "fp32"), (float("-inf"), "fp32"), (1e6, "fp16")):
            state = state_of(control, wire=dtype, **layout)
            train_step(state, global_step(0, control))
            poison(state, value)
            train_step(state, global_step(1, control))
            try:
                train_step(state, global_step(2, control))
                said.append("nothing")
            except NotFiniteError as error:
                said.append(str(error))
    return said


def test_a_gradient_that_is_not_finite_on_one_rank_ends_all_and_is_named_where_it_arose():
    for rank, said in enumerate(run_ranks(4, not_finite)):
        assert len(said) == 9
        assert all(line.startswith("the gradient of step 1 is not finite (norm ") for line in said)
        for line in said[2:6:3]:
            assert "in the gradient of another rank or in the sum on the wire" in line
        if rank == 2:
            assert all("first in bert/embeddings/token_type_embeddings" in said[i] for i in (0, 1, 3, 4, 6, 7))


def skipped(control: Control) -> list[tuple]:
    """Per layout, of an fp16 run with Inf on rank 2 in step 1: is it skipped, does nothing move, are all ranks equal,
    does the schedule go on where it was."""
    found = []
    for layout in LAYOUTS.values():
        state = state_of(control, precision="fp16", **layout)
        rates = [train_step(state, global_step(0, control)).learning_rate.item()]
        state.weights.wait()
        kept = (state.flat.weights, *state.flat.shard_parts, state.optimizer.first_moment)
        before = [x.clone() for x in (*kept, state.optimizer.second_moment)]
        hooks = dict(state.model.embeddings.token_type.weight._backward_hooks or {})
        poison(state, float("inf"))
        result = train_step(state, global_step(1, control))
        state.weights.wait()
        still = all(torch.equal(a, b) for a, b in zip(before, (*kept, state.optimizer.second_moment), strict=True))
        state.model.embeddings.token_type.weight._backward_hooks = hooks or None
        equal = control.equal_everywhere(state.flat.weights)
        after = train_step(state, global_step(1, control))
        rates.append(after.learning_rate.item())
        state.weights.wait()
        equal &= control.equal_everywhere(state.flat.weights)
        counts = (
            state.step,
            state.optimizer.updates.item(),
            state.loss_scale.skips.item(),
            state.loss_scale.value.item(),
        )
        found.append((bool(result.skipped), bool(after.skipped), still, equal, counts, rates))
    return found


def test_inf_on_one_rank_skips_the_step_everywhere():
    answers = run_ranks(4, skipped)
    for found in answers:
        assert found == answers[0]
        for was_skipped, next_skipped, still, equal, counts, rates in found:
            assert (was_skipped, next_skipped, still, equal) == (True, False, True, True)
            assert counts == (3, 2, 1, 2048.0)
            assert rates == pytest.approx([0.01, 0.0099])


def skip_with_huge_numbers(control: Control) -> tuple[bool, bool, bool]:
    """Beside Inf on one rank there are numbers whose square overflows: was it skipped, did nothing move, is the step
    after it bit-equal to that of a run without the bad one."""
    problem, case = odd_problem(), Case("flat", control.world_size, bucket_size=700)
    groups = open_lanes(Topology(control.rank, control.world_size, case.shards))
    straight = Replay(problem, case, control, groups, can_skip=True)
    straight.step(0)
    straight.step(1, scale=1024.0)

    def bad(step: int, rank: int, world: int) -> dict[str, Tensor]:
        made = problem.gradient(step, rank, world)
        if rank == 0:
            made["fused"][3, 3], made["embedding"][200:] = float("inf"), 1e25
        return made

    replay = Replay(problem, case, control, groups, can_skip=True)
    replay.step(0)
    before = replay.flat.weights.clone()
    replay.problem = replace(problem, gradient=bad)
    was_skipped = bool(replay.step(1).skipped)
    still = torch.equal(before, replay.flat.weights)
    replay.problem = problem
    replay.step(1)
    return was_skipped, still, torch.equal(replay.flat.weights, straight.flat.weights)


def test_a_skipped_step_leaves_no_trace_and_the_loss_scale_neither():
    assert run_ranks(2, skip_with_huge_numbers) == 2 * [(True, True, True)]


def reduced_gradients(control: Control) -> list[tuple[bool, float]]:
    """Whether the reduced gradient is the sum in fp32 in the order of the ranks, and its largest error, by case."""
    generator = torch.Generator().manual_seed(1)
    shapes = {name: w.shape for name, w in odd_problem().weights.items()}
    world = control.world_size
    shares = [{name: torch.randn(s, generator=generator) for name, s in shapes.items()} for _ in range(world)]
    problem, found = replace(odd_problem(), gradient=lambda step, rank, world: shares[rank]), []
    groups = open_lanes(Topology(control.rank, world, world))
    for strategy, bucket_size, slice_size in (
        ("flat", None, 2**20),
        ("flat", None, 300),
        ("flat", 700, 500),
        ("flat", 1, 2**20),
        ("node", 700, 500),
    ):
        with patch.object(wire, "SLICE", slice_size):
            replay = Replay(problem, Case(strategy, world, bucket_size), control, groups)
        for name, parameter in replay.flat.parameters.items():
            parameter.grad = shares[control.rank][name].clone()
        replay.gradients.open()
        got = replay.flat.split(replay.whole(replay.gradients.finish().shard))
        wanted = {name: sum(share[name] for share in shares) for name in shapes}
        errors = [float((got[name] - wanted[name]).abs().max()) for name in shapes if wanted[name].numel()]
        found.append((all(torch.equal(got[name], wanted[name]) for name in shapes), max(errors)))
    return found


def test_flat_adds_in_the_order_of_the_ranks_for_any_bucketing_and_slicing():
    for found in run_ranks(3, reduced_gradients):
        assert [exact for exact, _ in found[:4]] == 4 * [True]
        assert max(error for _, error in found) < 2e-6


def lose_a_rank(control: Control, layout: dict, how: str) -> tuple[str, float]:
    """Rank 1 is lost before it joins the second bucket's collective of step 1; what the others raise, and when."""
    state = state_of(control, timeout_s=3, **layout)
    train_step(state, global_step(0, control))
    right, calls = Reduction.start, []

    def lost(self: Reduction, bucket: Tensor, part: Tensor) -> Finish:
        calls.append(bucket)
        if len(calls) == 2 and how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if len(calls) == 2:
            time.sleep(3600)
        return right(self, bucket, part)

    started = time.perf_counter()
    with patch.object(Reduction, "start", lost if control.rank == 1 else right):
        try:
            for index in (1, 2):
                train_step(state, global_step(index, control))
        except Exception as error:
            return type(error).__name__, time.perf_counter() - started
    return "nothing", time.perf_counter() - started


@pytest.mark.parametrize("how", ["killed", "silent"])
@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "no overlap"])
def test_a_rank_lost_in_the_middle_of_a_collective_ends_all(overlap, how):
    name = "hierarchical" if overlap else "flat"
    answers = run_ranks(4, lose_a_rank, {**LAYOUTS[name], "overlap": overlap}, how, lost=(1,), timeout_s=40)
    for rank in (0, 2, 3):
        error, seconds = answers[rank]
        assert error in ("RuntimeError", "DistBackendError", "DistNetworkError")
        assert seconds < 3 + 10
