"""Twenty steps of training are the same for every strategy and layout of nodes; overlap changes no bit."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor

from bert_mlperf.comm.control import Control
from bert_mlperf.config.sharding import sharding_plan
from bert_mlperf.model import bert
from bert_mlperf.model.bert import Losses
from bert_mlperf.model.tie import tie
from bert_mlperf.train.step import TrainState, forward_backward
from tests.dist.ranks import run_ranks
from tests.dist.training import ALONE, Trained, Variant, global_step, state_of, train, train_all
from tests.train.small import small_run

LOSS_BOUND = 2e-6  # relative
WEIGHT_BOUND = 1e-5  # of the tensor's norm
KEY_BIAS_BOUND = 2e-5  # absolute: its gradient is rounding alone


@contextmanager
def tied_gradient_doubled() -> Iterator[None]:
    """The decoder's gradient of the word embeddings counts twice."""

    def doubled(word_VH: Tensor) -> tuple[Tensor, Tensor]:
        embeddings_VH, decoder_VH = tie(word_VH)
        return embeddings_VH, 2 * decoder_VH - decoder_VH.detach()

    with patch.object(bert, "tie", doubled):
        yield


def average_means(state: TrainState) -> None:
    """Each rank divides by its own masked tokens, and the ranks' means are averaged."""

    def mean(model, inputs, losses: Losses) -> Losses:
        share = NUM_MASKED / (inputs[0].num_masked * state.control.world_size)
        return Losses(losses.masked_lm_sum * share, losses.next_sentence_sum)

    state.model.register_forward_hook(mean)


NUM_MASKED = 384  # of each global batch: 16 x 20 + 32 x 2


def layout(nodes: int, reduction: str, **changes) -> dict:
    return {"ranks_per_node": 4 // nodes, "reduction": reduction, **changes}


EXACT = {
    "flat 1x4": Variant(layout(1, "flat")),
    "node 1x4": Variant(layout(1, "node")),
    "node 2x2": Variant(layout(2, "node")),
    "hierarchical 2x2": Variant(layout(2, "hierarchical")),
    "node 4x1": Variant(layout(4, "node")),
    "hierarchical 4x1": Variant(layout(4, "hierarchical")),
    "hierarchical 4x1, shards of 2": Variant(layout(4, "hierarchical", shard_group=2)),
    "node 2x2, shards over all": Variant(layout(2, "node", shard_group="world")),
    "hierarchical 2x2, 3 micro-batches": Variant(layout(2, "hierarchical", gradient_accumulation_steps=3)),
}
TWINS = {  # bit-equal to the one of the first name
    "flat 1x4, no overlap": Variant(layout(1, "flat", overlap=False)),
    "node 2x2, no overlap": Variant(layout(2, "node", overlap=False)),
    "hierarchical 2x2, no overlap": Variant(layout(2, "hierarchical", overlap=False)),
    "hierarchical 2x2, again": Variant(layout(2, "hierarchical")),
}
ROUNDED = {
    f"{wire} on the wire, {strategy}": Variant(layout(2, strategy, wire=wire), steps=6)
    for wire in ("bf16", "fp16")
    for strategy in ("flat", "node", "hierarchical")
} | {
    "bf16": Variant(layout(2, "hierarchical", precision="bf16", gradient_accumulation_steps=3), steps=6),
    "bf16, fp32 on the wire": Variant(layout(2, "hierarchical", precision="bf16", wire="fp32"), steps=6),
    "fp16": Variant(layout(2, "hierarchical", precision="fp16", gradient_accumulation_steps=3), steps=6),
}
ROUNDING = {"bf16 on": 3e-5, "fp16 on": 3e-6, "bf16": 5e-4, "fp16": 5e-5}  # by the first letters; of a loss, relative
MISTAKES = {
    "tied gradient doubled": Variant(layout(2, "hierarchical"), context=tied_gradient_doubled),
    "mean of means": Variant(layout(2, "hierarchical"), prepare=average_means),
}


@pytest.fixture(scope="module")
def trained() -> list[dict[str, Trained]]:
    return run_ranks(4, train_all, EXACT | TWINS | ROUNDED | MISTAKES)


@pytest.fixture(scope="module")
def alone() -> Trained:
    return train(ALONE)


@pytest.mark.parametrize("nodes", [2, 4])
def test_flat_knows_no_nodes(nodes):
    plans = [sharding_plan(small_run(**layout(n, "flat")), world_size=4) for n in (1, nodes)]
    assert plans[0] == plans[1]


def errors(got: Trained, wanted: Trained) -> dict[str, float]:
    """Largest errors of losses (relative), key biases (absolute) and other weights (of the tensor's norm)."""
    losses = max(abs(a / b - 1) for a, b in zip(got.losses, wanted.losses, strict=False))
    found = {"loss": losses, "key bias": 0.0, "weight": 0.0}
    for name, right in wanted.weights.items():
        difference = got.weights[name] - right
        if name.endswith("key/bias"):
            found["key bias"] = max(found["key bias"], np.abs(difference).max())
        else:
            found["weight"] = max(found["weight"], np.linalg.norm(difference) / np.linalg.norm(right))
    return found


@pytest.mark.parametrize("name", EXACT)
def test_every_layout_trains_as_one_rank_does(name, trained, alone):
    for rank in trained:
        found = errors(rank[name], alone)
        assert found["loss"] <= LOSS_BOUND
        assert found["weight"] <= WEIGHT_BOUND
        assert found["key bias"] <= KEY_BIAS_BOUND


@pytest.mark.parametrize("name", TWINS)
def test_overlap_and_another_run_change_no_bit(name, trained):
    for rank in trained:
        assert rank[name].same_bits(rank[name.split(",")[0]])


@pytest.mark.parametrize("name", [*EXACT, *TWINS, *ROUNDED])
def test_all_ranks_hold_the_same_weights_after_each_step(name, trained):
    for rank in trained:
        assert rank[name].equal
        assert rank[name].same_bits(trained[0][name])


@pytest.mark.parametrize("name", ROUNDED)
def test_a_narrow_wire_and_low_precision_stay_close_to_fp32(name, trained, alone):
    bound = next(bound for start, bound in ROUNDING.items() if name.startswith(start))
    losses = trained[0][name].losses
    assert losses == pytest.approx(alone.losses[:6], rel=bound)
    assert losses[1:] != pytest.approx(alone.losses[1:6], rel=1e-9)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_planted_mistake_fails_the_bound(name, trained, alone):
    found = errors(trained[0][name], alone)
    assert found["loss"] > 20 * LOSS_BOUND
    assert found["weight"] > 100 * WEIGHT_BOUND


def sums_of_micro_batches(control: Control) -> tuple[bool, float]:
    """Whether the reduced shard is the fp32 sum of all bf16 gradients, and how far a sum in bf16 would be off it."""
    accumulation = 4
    state = state_of(control, precision="bf16", gradient_accumulation_steps=accumulation, wire="fp32")
    step = global_step(0, control, accumulation)
    single = []
    for batch in step.micro_batches:
        state.flat.zero_gradients()
        forward_backward(state, batch, step)
        single.append(torch.zeros(state.flat.layout.size))
        for name, view in state.flat.split(single[-1]).items():
            view.copy_(state.flat.parameters[name].grad)
    wanted = sum(single)
    rounded = torch.stack(single).bfloat16().cumsum(0)[-1].float()
    control.sum(wanted)
    control.sum(rounded)
    state.flat.zero_gradients()
    for batch in step.micro_batches[:-1]:
        forward_backward(state, batch, step)
        state.flat.accumulate()
    state.gradients.open()
    forward_backward(state, step.micro_batches[-1], step)
    reduced = state.gradients.finish()
    parts = state.flat.layout.parts(control.rank)
    wanted, rounded = (torch.cat([flat[p.start : p.end] for p in parts]) for flat in (wanted, rounded))
    return torch.equal(reduced.shard, wanted), float((rounded - wanted).norm() / wanted.norm())


def test_bf16_gradients_of_micro_batches_and_ranks_are_summed_in_fp32():
    for exact, off in run_ranks(2, sums_of_micro_batches):
        assert exact
        assert off > 1e-4
