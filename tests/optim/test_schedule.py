"""The learning-rate schedule against the published reference, recipe by recipe."""

import json

import pytest
import torch

from bert_mlperf.config.recipe import Recipe
from bert_mlperf.optim.schedule import learning_rate
from tests import golden

RECIPES = json.loads((golden.FOLDER / "schedule.json").read_text())


def recipe(**changes) -> Recipe:
    fields = {"global_batch_size": 1, "base_learning_rate": 1.0, "training_steps": 600}
    return Recipe(**{**fields, **changes})


def rate(step: int, of: Recipe) -> float:
    return learning_rate(torch.tensor(step, dtype=torch.float64), of).item()


@pytest.mark.parametrize("case", RECIPES, ids=lambda case: f"batch{case['label_global_batch_size']}")
def test_rates_equal_the_reference(case):
    ours = recipe(
        base_learning_rate=case["base_learning_rate"],
        training_steps=case["num_train_steps"],
        warmup_steps=case["num_warmup_steps"],
        start_warmup_step=case["start_warmup_step"],
    )
    for step, expected in zip(case["steps"], case["learning_rates"], strict=True):
        assert rate(step, ours) == pytest.approx(expected, abs=1e-6 * case["base_learning_rate"])


def test_the_rate_jumps_from_the_warmup_line_to_the_decay_line():
    ours = recipe(training_steps=600, warmup_steps=287, start_warmup_step=-76)
    assert rate(210, ours) == pytest.approx(286 / 287)
    assert rate(211, ours) == pytest.approx(1 - 211 / 600)


def test_the_first_update_of_a_warmup_has_rate_zero_and_the_rate_is_zero_after_the_last_step():
    ours = recipe(training_steps=10, warmup_steps=3)
    assert rate(0, ours) == 0
    assert rate(10, ours) == 0
    assert rate(1000, ours) == 0
