"""World-size invariance: the same losses for any number of ranks and any micro-batch split (fp32)."""

from pathlib import Path

import numpy as np
import pytest
import torch

from bert_mlperf.comm.control import Control
from bert_mlperf.comm.process_group import RankInfo
from bert_mlperf.data.shards import write_shard
from bert_mlperf.model.bert import Losses
from bert_mlperf.optim.lamb import accurate_norm
from bert_mlperf.errors import UserError
from bert_mlperf.train import loading, setup
from bert_mlperf.train.evaluate import evaluate
from bert_mlperf.train.step import TrainState, train_step
from tests.dist.ranks import run_ranks
from tests.train.small import GLOBAL_BATCH, small_model, small_run, uneven_samples

STEPS = 20
BOUND = 2e-6
SPLITS = [(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (2, 4), (3, 1), (3, 2), (3, 4), (4, 1), (4, 2), (4, 4)]


@pytest.fixture(scope="module")
def shard(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("uneven") / "part_00000_of_00001.hdf5"
    write_shard(path, uneven_samples(500, config=small_model()), vocab_size=small_model().vocab_size)
    return path


def train_losses(
    control: Control, path: Path, accumulation: int, mean_of_means: bool = False, dropout: float = 0.0
) -> tuple:
    """(losses and gradient norms of 20 steps, whether all ranks hold the same weights)."""
    world = control.world_size
    model = small_model(hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
    run = small_run(model=model, ranks_per_node=world, gradient_accumulation_steps=accumulation)
    state = setup.build_state(run, control, torch.device("cpu"), seed=5, checkpoint=None)
    if mean_of_means:
        state.model.register_forward_hook(
            lambda model, inputs, losses: _mean_of_means(inputs[0], losses, world, accumulation)
        )
    losses, norms = [], []
    shards, info = loading.open_shards(run, path), RankInfo(control.rank, 0, world)
    with loading.open_loader(run, shards, info, torch.device("cpu"), order_seed=5) as loader:
        for step in loader:
            result = train_step(state, step)
            losses.append(result.loss.item())
            norms.append(result.gradient_norm.item())
            if len(losses) == STEPS:
                break
    return losses, norms, control.equal_everywhere(weights_of(state))


def _mean_of_means(batch, losses: Losses, world: int, accumulation: int) -> Losses:
    """The mistake: each micro-batch divided by its own masked count, then averaged."""
    mean = losses.masked_lm_sum / batch.num_masked
    return Losses(mean * MASKED_PER_STEP / (world * accumulation), losses.next_sentence_sum)


MASKED_PER_STEP = 384  # about the masked tokens of a global batch: 16 x 20 + 32 x 2


@pytest.fixture(scope="module")
def single_rank(shard) -> tuple[list[float], list[float]]:
    losses, norms, _ = train_losses(Control(rank=0, world_size=1), shard, 1)
    assert losses[-1] < losses[0]
    return losses, norms


@pytest.mark.parametrize("world, accumulation", SPLITS)
def test_losses_and_norms_do_not_depend_on_the_split(world, accumulation, shard, single_rank):
    for losses, norms, equal in run_ranks(world, train_losses, shard, accumulation):
        assert losses == pytest.approx(single_rank[0], rel=BOUND)
        assert norms == pytest.approx(single_rank[1], rel=50 * BOUND)
        assert equal


@pytest.mark.parametrize("world, accumulation", [(1, 3), (2, 1), (4, 1), (4, 2)])
def test_losses_do_not_depend_on_the_split_with_dropout_on(world, accumulation, shard, single_rank):
    alone, _, _ = train_losses(Control(rank=0, world_size=1), shard, 1, dropout=0.1)
    assert alone != pytest.approx(single_rank[0], rel=1e-3)
    for losses, _, equal in run_ranks(world, train_losses, shard, accumulation, False, 0.1):
        assert losses == pytest.approx(alone, rel=BOUND)
        assert equal


def test_a_mean_of_means_fails_the_same_bound(shard, single_rank):
    losses, _, _ = run_ranks(2, train_losses, shard, 2, True)[0]
    assert losses[1:] != pytest.approx(single_rank[0][1:], rel=1000 * BOUND)


def weights_of(state: TrainState) -> torch.Tensor:
    """What the model reads, without the padding of the buffer."""
    state.weights.wait()
    return torch.cat([p.detach().flatten() for p in state.model.parameters()])


def clipped_gradient(control: Control, path: Path, accumulation: int) -> tuple[float, float]:
    """(norm before clipping, norm after, read off the first moment) of a step whose loss is scaled up, so that every
    part must be clipped."""
    run = small_run(ranks_per_node=control.world_size, gradient_accumulation_steps=accumulation)
    state = setup.build_state(run, control, torch.device("cpu"), seed=5, checkpoint=None)

    def scale(model, inputs, losses: Losses) -> Losses:
        return Losses(1000 * losses.masked_lm_sum, 1000 * losses.next_sentence_sum)

    state.model.register_forward_hook(scale)
    info = RankInfo(control.rank, 0, control.world_size)
    shards = loading.open_shards(run, path)
    with loading.open_loader(run, shards, info, torch.device("cpu"), order_seed=5) as loader:
        norm = train_step(state, next(loader)).gradient_norm.item()
    squared = accurate_norm(state.optimizer.first_moment / (1 - run.recipe.beta_1)).double().square()
    control.sum(squared)  # over the shards
    return norm, squared.sqrt().item()


def test_the_sum_is_clipped_once_whatever_the_split(shard):
    expected, after = clipped_gradient(Control(rank=0, world_size=1), shard, 1)
    assert expected > 100
    assert after == pytest.approx(1, rel=1e-6)
    for before, clipped in run_ranks(3, clipped_gradient, shard, 2):
        assert before == pytest.approx(expected, rel=1e-5)
        assert clipped == pytest.approx(1, rel=1e-6)


def test_masked_counts_differ_ten_fold():
    counts = uneven_samples(GLOBAL_BATCH, config=small_model()).masked_counts
    assert counts.max() == 10 * counts.min()


def count_accuracy(control: Control, path: Path, micro_batch: int) -> tuple[int, int]:
    run = small_run(micro_batch_size=micro_batch)
    state = setup.build_state(run, control, torch.device("cpu"), seed=5, checkpoint=None)
    info = RankInfo(control.rank, 0, control.world_size)
    batches = loading.evaluation_batches(run, loading.open_shards(run, path), info)
    accuracy = evaluate(state.model, batches, control, torch.device("cpu"))
    return accuracy.correct, accuracy.total


def test_evaluation_counts_are_the_same_integers_for_any_world_and_batch(tmp_path):
    path = tmp_path / "part_00000_of_00001.hdf5"
    samples = uneven_samples(13, config=small_model(), seed=3)
    write_shard(path, samples, vocab_size=small_model().vocab_size)
    results = {
        result
        for world in (1, 2, 3, 4)
        for micro_batch in (1, 4, 5)
        for result in run_ranks(world, count_accuracy, path, micro_batch)
    }
    assert len(results) == 1
    assert results.pop()[1] == samples.num_masked


def different_weights(control: Control) -> bool:
    return control.equal_everywhere(torch.tensor([1.0, 2.0 + control.rank * 1e-6]))


def test_a_difference_between_ranks_is_noticed():
    assert run_ranks(2, different_weights) == [False, False]


def node_numbers(control: Control) -> list[int]:
    run, info = small_run(ranks_per_node=2), RankInfo(control.rank, control.rank % 2, control.world_size)
    return setup.of_each_node(7 if control.rank < 2 else 0, run, info, control, torch.device("cpu"))


def test_every_rank_learns_what_each_node_said():
    assert run_ranks(4, node_numbers) == 4 * [[7, 0]]


def refused(control: Control, trains: list[str]) -> str:
    """What a rank of one of two nodes says to these digests of their training samples."""
    run, info = small_run(ranks_per_node=2), RankInfo(control.rank, control.rank % 2, control.world_size)
    try:
        setup.check_same_data([trains[control.rank // 2], "e" * 64], run, info, control, torch.device("cpu"))
    except UserError as error:
        return str(error)
    return ""


def test_nodes_with_other_samples_are_told_on_every_rank():
    same, other = "0123456789ab" + "0" * 52, "0123456789ac" + "0" * 52
    assert run_ranks(4, refused, [same, same]) == 4 * [""]
    for sentence in run_ranks(4, refused, [same, other]):
        assert "run.data.train holds other samples on node 1 than on node 0" in sentence
        assert "(digest 0123456789ac, expected 0123456789ab); copy the same shards" in sentence


def sum_of_ranks(control: Control) -> np.ndarray:
    buffer = torch.arange(5, dtype=torch.float32) * (control.rank + 1)
    control.sum(buffer)
    return buffer.numpy()


def test_a_reduction_is_the_numpy_sum():
    for result in run_ranks(3, sum_of_ranks):
        assert np.array_equal(result, np.arange(5) * 6.0)
