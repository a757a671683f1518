"""Learning rate of the MLPerf reference as a pure function of the step."""

import torch
from torch import Tensor

from bert_mlperf.config.recipe import Recipe


def learning_rate(step: Tensor, recipe: Recipe) -> Tensor:
    """Rate of the update with 0-based number `step` (float64, any shape and device), in the same dtype and shape.

    Polynomial decay of power 1 to 0:        base * (1 - min(step, T) / T)
    while step - start < W (linear warm-up): base * (step - start) / W

    T `training_steps`, W `warmup_steps`, start `start_warmup_step` (may be negative). The rate jumps from the warm-up
    line to the decay line at step start + W, as it does in the reference. The step is a tensor because only the device
    knows how many steps were skipped.
    """
    base = recipe.base_learning_rate
    decayed = base * (1 - step.clamp(max=recipe.training_steps) / recipe.training_steps)
    since_start = step - recipe.start_warmup_step
    warmed_up = base * since_start / max(recipe.warmup_steps, 1)
    return torch.where(since_start < recipe.warmup_steps, warmed_up, decayed)
