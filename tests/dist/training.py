"""Training of the small model on gloo ranks, in the several ways in which it can be shared out."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch

from bert_mlperf.comm.control import Control
from bert_mlperf.data.loader import StepSamples
from bert_mlperf.model.batch import make_batch
from bert_mlperf.model.tensors import tensor_specs
from bert_mlperf.train import setup
from bert_mlperf.train.step import TrainState, train_step
from tests.train.small import GLOBAL_BATCH, small_model, small_run, uneven_samples

CPU = torch.device("cpu")
ALONE = Control(rank=0, world_size=1)
BUCKET_MIB = 0.01  # 2,621 numbers of fp32: four buckets


@dataclass(frozen=True)
class Trained:
    """What one rank saw of a training."""

    losses: list[float]
    weights: dict[str, np.ndarray]  # fp32, by tensor of the reference
    equal: bool  # after each step all ranks held the same weights

    def same_bits(self, other: "Trained") -> bool:
        """Losses and weights are bit-equal."""
        same = all(np.array_equal(w, other.weights[name]) for name, w in self.weights.items())
        return same and self.losses == other.losses


def state_of(control: Control, **changes) -> TrainState:
    run = small_run(**{"bucket_mib": BUCKET_MIB, "timeout_s": 30, "ranks_per_node": control.world_size, **changes})
    return setup.build_state(run, control, CPU, seed=5, checkpoint=None)


def global_step(index: int, control: Control, accumulation: int = 1) -> StepSamples:
    """The rank's micro-batches of the index-th global batch, the same for any number of ranks; the first ranks have the
    samples with many masked tokens."""
    samples = uneven_samples(GLOBAL_BATCH, config=small_model(), seed=index)
    order = np.argsort(-samples.masked_counts, kind="stable")
    parts = order.reshape(control.world_size, accumulation, -1)[control.rank]
    micro_batches = [make_batch(samples.take(part), part) for part in parts]
    return StepSamples(index, micro_batches, samples.num_samples, samples.num_masked, samples.num_tokens)


def train(control: Control, *, steps: int = 20, prepare: Callable[[TrainState], object] = id, **changes) -> Trained:
    """`prepare` is called with the state before the first step."""
    state = state_of(control, **changes)
    prepare(state)
    losses, equal = [], True
    for index in range(steps):
        step = global_step(index, control, changes.get("gradient_accumulation_steps", 1))
        losses.append(train_step(state, step).loss.item())
        state.weights.wait()
        equal &= control.equal_everywhere(state.flat.weights)
    full = state.weights.in_fp32()
    weights = {spec.name: spec.of(full).numpy().copy() for spec in tensor_specs(small_model())}
    return Trained(losses, weights, equal)


@dataclass(frozen=True)
class Variant:
    """A way to train: settings of the run, number of steps, a context and a preparation."""

    changes: dict
    steps: int = 20
    context: Callable[[], AbstractContextManager] = nullcontext
    prepare: Callable[[TrainState], object] = id


def train_all(control: Control, variants: dict[str, Variant]) -> dict[str, Trained]:
    found = {}
    for name, variant in variants.items():
        with variant.context():
            found[name] = train(control, steps=variant.steps, prepare=variant.prepare, **variant.changes)
    return found
