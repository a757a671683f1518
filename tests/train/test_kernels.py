"""Training with the kernels: every one is called, and losses are those of the reference, as far as bf16 itself
allows."""

from collections import Counter

import numpy as np
import pytest
import torch

from bert_mlperf.comm.control import Control
from bert_mlperf.config.system import Run
from bert_mlperf.data.loader import StepSamples
from bert_mlperf.kernels.jit import HAS_TRITON
from bert_mlperf.kernels.registry import KERNELS
from bert_mlperf.model.batch import make_batch
from bert_mlperf.train import setup
from bert_mlperf.train.evaluate import evaluate
from bert_mlperf.train.step import TrainState, train_step
from tests.train.small import small_model, small_run, uneven_samples

CPU = torch.device("cpu")
ALONE = Control(rank=0, world_size=1)
BATCH = 8


def run_of(kernels: str, **changes) -> Run:
    model = small_model(
        hidden_size=64,
        num_attention_heads=2,
        intermediate_size=128,
        hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1,
        **{key: changes.pop(key) for key in list(changes) if key == "num_hidden_layers"},
    )
    recipe = {"global_batch_size": BATCH, "base_learning_rate": 0.01, "training_steps": 100}
    return small_run(model=model, recipe=recipe, micro_batch_size=BATCH, kernels=kernels, **changes)


def state_of(kernels: str, **changes) -> TrainState:
    return setup.build_state(run_of(kernels, **changes), ALONE, CPU, seed=5, checkpoint=None)


def step_of(index: int, order: np.ndarray | None = None) -> StepSamples:
    """The index-th global batch in one micro-batch, its samples in `order`."""
    samples = uneven_samples(BATCH, config=small_model(), seed=index % 10)
    order = np.arange(BATCH) if order is None else order
    counts = (samples.num_samples, samples.num_masked, samples.num_tokens)
    return StepSamples(index, [make_batch(samples.take(order), order)], *counts)


@pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed")
@pytest.mark.parametrize("implementation", ["triton", "native"])
def test_a_step_calls_every_kernel_and_gives_the_loss_of_the_reference(implementation, monkeypatch):
    called: Counter[str] = Counter()

    def counted(operation, function):
        def call(*arguments, **options):
            called[operation] += 1
            return function(*arguments, **options)

        return call

    for module in KERNELS.values():
        for operation, implementations in module.OPERATIONS.items():
            monkeypatch.setitem(implementations, implementation, counted(operation, implementations[implementation]))
    reference, state = state_of("reference"), state_of(implementation)
    batches = step_of(0).micro_batches
    assert evaluate(state.model, batches, ALONE, CPU) == evaluate(reference.model, batches, ALONE, CPU)
    for index in range(2):  # the second loss is one with updated weights
        expected, found = (train_step(s, step_of(index)) for s in (reference, state))
        assert found.loss.item() == pytest.approx(expected.loss.item(), rel=1e-5)
        assert found.gradient_norm.item() == pytest.approx(expected.gradient_norm.item(), rel=1e-4)
    assert set(called) == {operation for module in KERNELS.values() for operation in module.OPERATIONS}


def losses(kernels: str, order: np.ndarray | None = None) -> np.ndarray:
    """Of 50 steps of a 4-layer model in bf16."""
    state = state_of(kernels, num_hidden_layers=4, precision="bf16")
    return np.array([train_step(state, step_of(index, order)).loss.item() for index in range(50)])


def test_losses_in_bf16_differ_less_than_with_another_order_of_summation():
    """The noise of bf16: the reference with the samples of a batch in two other orders (their masks stay)."""
    reference = losses("reference")
    orders = [np.arange(BATCH)[::-1].copy(), np.random.default_rng(0).permutation(BATCH)]
    noise = np.mean([np.abs(losses("reference", order) - reference) for order in orders])
    assert 0 < noise < 0.05
    assert np.abs(losses("native") - reference).mean() < 2 * noise
    assert reference[-1] < reference[0] - 0.3
