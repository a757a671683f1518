"""Learning rate of the MLPerf reference as a pure function of the step."""

from bert_mlperf.config.recipe import Recipe


def learning_rate(step: int, recipe: Recipe) -> float:
    """Rate of the update with 0-based number `step`.

    Polynomial decay of power 1 to 0:        base * (1 - min(step, T) / T)
    while step - start < W (linear warm-up): base * (step - start) / W

    T `training_steps`, W `warmup_steps`, start `start_warmup_step` (may be negative). The rate jumps from the warm-up
    line to the decay line at step start + W, as it does in the reference.
    """
    base = recipe.base_learning_rate
    since_start = step - recipe.start_warmup_step
    if since_start < recipe.warmup_steps:
        return base * since_start / recipe.warmup_steps
    return base * (1 - min(step, recipe.training_steps) / recipe.training_steps)
