"""Set-up and evaluation: warm-up leaves no trace, evaluation neither, bf16 keeps fp32 masters, failures are named."""

import pytest
import torch

from bert_mlperf.comm.control import Control
from bert_mlperf.comm.process_group import RankInfo
from bert_mlperf.data.loader import StepSamples
from bert_mlperf.data.shards import write_shard
from bert_mlperf.model.batch import make_batch
from bert_mlperf.model.bert import Losses
from bert_mlperf.optim.loss_scale import MOST_SKIPS
from bert_mlperf.train import loading, setup
from bert_mlperf.train.evaluate import evaluate
from bert_mlperf.train.step import NotFiniteError, StepResult, TrainState, train_step
from tests.train.small import GLOBAL_BATCH, small_model, small_run, uneven_samples

CPU = torch.device("cpu")
ALONE = Control(rank=0, world_size=1)


def small_state(**changes) -> TrainState:
    return setup.build_state(small_run(**changes), ALONE, CPU, seed=5, checkpoint=None)


def steps(count: int) -> list[StepSamples]:
    """Steps of one global batch each in one micro-batch."""
    config, made = small_model(), []
    for index in range(count):
        samples = uneven_samples(GLOBAL_BATCH, config=config, seed=index)
        made.append(
            StepSamples(index, [make_batch(samples)], samples.num_samples, samples.num_masked, samples.num_tokens)
        )
    return made


def losses(state: TrainState, count: int = 5) -> list[float]:
    return [train_step(state, step).loss.item() for step in steps(count)]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_warm_up_leaves_no_trace(precision):
    dropout = small_model(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    cold = small_state(precision=precision, model=dropout)
    expected = losses(cold)
    warm = small_state(precision=precision, model=dropout)
    before = warm.flat.shard_weights.clone()
    setup.warm_up(warm, small_run(precision=precision, model=dropout))
    assert torch.equal(warm.flat.shard_weights, before)
    assert (warm.step, warm.samples, warm.optimizer.updates) == (0, 0, 0)
    assert losses(warm) == expected
    assert torch.equal(warm.flat.shard_weights, cold.flat.shard_weights)


def test_evaluation_drops_nothing_and_leaves_random_state_and_training_as_they_were():
    model = small_model(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    state, undisturbed = small_state(model=model), small_state(model=model)
    exact = small_state()
    exact.model.load_state_dict(state.model.state_dict())
    before = torch.get_rng_state()
    batches = steps(1)[0].micro_batches
    assert evaluate(state.model, batches, ALONE, CPU) == evaluate(exact.model, batches, ALONE, CPU)
    assert torch.equal(torch.get_rng_state(), before)
    assert losses(state) == losses(undisturbed)


def test_an_evaluation_set_without_masked_tokens_is_an_error():
    with pytest.raises(ValueError, match="no masked token"):
        evaluate(small_state().model, [], ALONE, CPU)


def test_bf16_trains_close_to_fp32_with_fp32_masters():
    exact, rounded = small_state(), small_state(precision="bf16")
    assert rounded.model.embeddings.word.weight.dtype == torch.bfloat16
    assert rounded.flat.shard_weights.dtype == torch.float32
    assert losses(rounded, 20) == pytest.approx(losses(exact, 20), rel=0.02)
    rounded.weights.wait()
    assert torch.equal(rounded.flat.weights, rounded.flat.shard_weights.bfloat16())


def test_bf16_gradients_of_micro_batches_are_added_in_fp32():
    flat = small_state(precision="bf16", gradient_accumulation_steps=2).flat
    flat.zero_gradients()
    for gradient in [1.0] + 100 * [2.0**-9]:  # in bf16 each of the hundred would be rounded away
        for parameter in flat.parameters.values():
            parameter.grad = torch.full_like(parameter, gradient)
        flat.accumulate()
    assert all((s == 1 + 100 * 2.0**-9).all() for s in flat.split(flat.accumulated).values())
    assert all(parameter.grad is None for parameter in flat.parameters.values())


def test_every_parameter_is_a_view_of_the_flat_buffer_and_belongs_to_one_tensor():
    state = small_state()
    owners = torch.zeros(state.flat.layout.size)
    for tensor in state.optimizer.ranges:
        owners[tensor.start : tensor.end] += 1
    parameters = dict(state.model.named_parameters())
    assert owners.sum() == sum(p.numel() for p in parameters.values()) and owners.max() == 1
    assert all((view == 1).all() for view in state.flat.split(owners).values())
    state.flat.weights.fill_(7.0)
    assert all((p == 7).all() and p.grad is None for p in parameters.values())


def test_a_gradient_that_is_not_finite_ends_the_run_and_is_named():
    state = small_state()
    first, second = steps(2)
    train_step(state, first)

    def poison(model, inputs, sums: Losses) -> Losses:
        return Losses(sums.masked_lm_sum, sums.next_sentence_sum * float("inf"))

    handle = state.model.register_forward_hook(poison)
    train_step(state, second)
    handle.remove()
    with pytest.raises(NotFiniteError, match=r"gradient of step 1 is not finite \(norm nan, first in bert/embeddings"):
        train_step(state, first)


def test_seeds_decide_weights_order_and_dropout_independently():
    same, other = small_state(), setup.build_state(small_run(), ALONE, CPU, seed=6, checkpoint=None)
    assert torch.equal(same.flat.weights, small_state().flat.weights)
    assert not torch.equal(same.flat.weights, other.flat.weights)
    seeds = {setup.derived_seed(5, purpose, rank) for purpose in ("weights", "order", "dropout") for rank in range(4)}
    assert len(seeds) == 12


def test_evaluation_batches_hold_every_sample_once(tmp_path):
    path = tmp_path / "part_00000_of_00001.hdf5"
    samples = uneven_samples(13, config=small_model())
    write_shard(path, samples, vocab_size=small_model().vocab_size)
    run = small_run(micro_batch_size=4)
    batches = [
        batch
        for rank in range(3)
        for batch in loading.evaluation_batches(run, loading.open_shards(run, path), RankInfo(rank, 0, 3))
    ]
    assert sum(batch.num_samples for batch in batches) == 13
    assert sum(batch.num_masked for batch in batches) == samples.num_masked
    assert sorted(torch.cat([b.input_ids_T for b in batches]).tolist()) == sorted(samples.input_ids.tolist())


def poisoned(state: TrainState, step: StepSamples) -> StepResult:
    """A step whose loss is Inf."""

    def poison(model, inputs, sums: Losses) -> Losses:
        return Losses(sums.masked_lm_sum, sums.next_sentence_sum * float("inf"))

    handle = state.model.register_forward_hook(poison)
    result = train_step(state, step)
    handle.remove()
    return result


def test_fp16_trains_close_to_fp32():
    exact, scaled = small_state(), small_state(precision="fp16")
    assert scaled.model.embeddings.word.weight.dtype == torch.float16
    assert losses(scaled, 20) == pytest.approx(losses(exact, 20), rel=0.005)
    assert scaled.loss_scale.skips == 0


def test_a_skipped_step_moves_neither_weights_nor_moments_nor_schedule():
    straight, skipping = small_state(precision="fp16"), small_state(precision="fp16")
    made = steps(4)
    rates = [train_step(straight, step).learning_rate.item() for step in made]
    assert len(set(rates)) == 4
    assert train_step(skipping, made[0]).learning_rate == rates[0]
    before = [s.clone() for s in (skipping.flat.shard_weights, skipping.optimizer.first_moment)]
    second = skipping.optimizer.second_moment.clone()
    assert poisoned(skipping, made[1]).skipped
    assert torch.equal(skipping.flat.shard_weights, before[0]) and skipping.optimizer.updates == 1
    assert torch.equal(skipping.optimizer.first_moment, before[1])
    assert torch.equal(skipping.optimizer.second_moment, second)
    assert skipping.loss_scale.value == straight.loss_scale.value / 2
    result = train_step(skipping, made[1])
    assert result.learning_rate == rates[1] and not result.skipped
    assert (skipping.step, skipping.optimizer.updates, skipping.loss_scale.skips) == (3, 2, 1)
    for step in made[2:]:
        train_step(skipping, step)
    difference = skipping.flat.shard_weights - straight.flat.shard_weights  # at another scale other bits are rounded
    assert difference.norm() < 1e-3 * straight.flat.shard_weights.norm()


def test_the_first_step_may_be_skipped():
    state = small_state(precision="fp16")
    before = state.flat.shard_weights.clone()
    assert poisoned(state, steps(1)[0]).skipped
    assert torch.equal(state.flat.shard_weights, before)
    assert losses(state) == pytest.approx(losses(small_state(precision="fp16")), rel=1e-3)


def test_too_many_skipped_steps_in_a_row_end_the_run():
    state = small_state(precision="fp16")
    (step,) = steps(1)
    for _ in range(MOST_SKIPS):
        poisoned(state, step)
    assert state.loss_scale.value == 1
    last, before = MOST_SKIPS - 1, MOST_SKIPS - 1
    message = rf"gradient of step {last} is not finite \(norm nan, first in bert/emb.* of the {before} steps before"
    with pytest.raises(NotFiniteError, match=message):
        train_step(state, step)
