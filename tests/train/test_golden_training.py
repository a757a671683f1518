"""Ten training steps of the published reference, replayed through our training step."""

import json
import re

import numpy as np
import pytest
import torch

from bert_mlperf.comm.control import Control
from bert_mlperf.config.sharding import sharding_plan
from bert_mlperf.data.loader import StepSamples
from bert_mlperf.model import tensors as tensors_module
from bert_mlperf.model.batch import make_batch
from bert_mlperf.model.bert import BertForPreTraining
from bert_mlperf.model.tensors import tensor_specs
from bert_mlperf.train import setup
from bert_mlperf.train.step import TrainState, train_step
from tests import golden
from tests.dist.ranks import run_ranks
from tests.train.small import small_run

LOSS_BOUND = 5e-6
WEIGHT_BOUND = 2e-6
KEY_BIAS_BOUND = 2e-5


ALONE = Control(rank=0, world_size=1)


def golden_state(control: Control = ALONE, **changes) -> TrainState:
    config = golden.tiny_config()
    settings = json.loads((golden.FOLDER / "train10_config.json").read_text())
    recipe = golden.recipe_of(settings, global_batch_size=6).model_copy(update=changes)
    model = BertForPreTraining(config)
    golden.load_into(model, golden.arrays("bert_tiny_weights"))
    run = small_run(
        model=config, recipe=recipe.model_dump(), ranks_per_node=control.world_size, reduction="flat", bucket_mib=0.02
    )
    plan = sharding_plan(run, world_size=control.world_size)
    return setup.shard_state(model, run, plan, control, torch.device("cpu"))


def golden_step(index: int, control: Control = ALONE) -> StepSamples:
    """The rank's part of a recorded batch."""
    batches = golden.arrays("train10_batches")
    samples = golden.samples_from_padded({name: array[index] for name, array in batches.items()})
    own = samples.take(np.arange(samples.num_samples).reshape(control.world_size, -1)[control.rank])
    return StepSamples(index, [make_batch(own)], samples.num_samples, samples.num_masked, samples.num_tokens)


def train_ten_steps(control: Control = ALONE, **changes) -> dict[str, float]:
    """Largest errors of the losses, the final weights and the final key biases."""
    state, trajectory = golden_state(control, **changes), golden.arrays("train10_trajectory")
    losses = [train_step(state, golden_step(index, control)).loss.item() for index in range(10)]
    wanted = golden.arrays("train10_final_weights")
    weights, errors = state.weights.in_fp32(), {"weight": 0.0, "key_bias": 0.0}
    for spec in tensor_specs(state.model.config):
        key = "key_bias" if spec.name.endswith("key/bias") else "weight"
        error = (spec.of(weights) - golden.tf_tensor(wanted[spec.name], spec)).abs().max().item()
        errors[key] = max(errors[key], error)
    return errors | {"loss": float(np.abs(np.array(losses) - trajectory["loss"]).max())}


@pytest.mark.parametrize("world", [1, 2, 3])
def test_losses_and_weights_equal_the_reference_on_any_number_of_ranks(world):
    for errors in run_ranks(world, train_ten_steps):
        assert errors["loss"] <= LOSS_BOUND
        assert errors["weight"] <= WEIGHT_BOUND
        assert errors["key_bias"] <= KEY_BIAS_BOUND


@pytest.mark.parametrize("mistake", [{"weight_decay": 0.0}, {"epsilon": 1e-8}], ids=["no weight decay", "epsilon 1e-8"])
def test_a_planted_mistake_fails_the_bounds(mistake):
    assert train_ten_steps(**mistake)["weight"] > WEIGHT_BOUND


def test_decay_on_everything_fails_the_bounds(monkeypatch):
    monkeypatch.setattr(tensors_module, "EXCLUDED", re.compile("nothing at all"))
    assert train_ten_steps()["weight"] > WEIGHT_BOUND


def test_the_gradient_norm_before_clipping_equals_the_reference():
    state, trajectory = golden_state(), golden.arrays("train10_trajectory")
    result = train_step(state, golden_step(0))
    assert result.gradient_norm.item() == pytest.approx(float(trajectory["grad_global_norm_unclipped"][0]), rel=2e-6)
    assert result.learning_rate == pytest.approx(float(trajectory["learning_rate"][0]), abs=1e-9)
