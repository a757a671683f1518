"""One training step, top to bottom."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bert_mlperf.comm.control import Control
from bert_mlperf.comm.overlap import GradientReduction, WeightGather
from bert_mlperf.comm.recorder import COMPUTE, Recorder
from bert_mlperf.data.loader import StepSamples
from bert_mlperf.model.batch import Batch
from bert_mlperf.model.bert import MASKED_LM_EPSILON, BertForPreTraining, DropoutSeed
from bert_mlperf.optim.flat import FlatBuffers
from bert_mlperf.optim.loss_scale import MOST_SKIPS, LossScale
from bert_mlperf.optim.sharded_lamb import ShardedLamb


class NotFiniteError(RuntimeError):
    """The gradient of a step is Inf or NaN; the run cannot go on."""


@dataclass
class TrainState:
    """Everything a step reads and changes."""

    model: BertForPreTraining
    flat: FlatBuffers
    optimizer: ShardedLamb
    gradients: GradientReduction
    weights: WeightGather
    control: Control
    device: torch.device
    loss_scale: LossScale
    recorder: Recorder
    dropout_seed: int  # the same on all ranks
    step: int = 0  # steps done, skipped ones included
    samples: int = 0  # samples of all ranks trained on so far
    last_norm: Tensor | None = None  # gradient norm of the last step, still on the device

    def check_finite(self) -> None:
        """Raises NotFiniteError if the last step's gradient was not finite; with a dynamic loss scale if that was so
        for many steps in a row. Called one step later, so that the host waits for a step that is over; without loss
        scale the weights are lost by then, the log and the error are not."""
        if self.last_norm is None or math.isfinite(self.last_norm.item()):
            return
        skips = int(self.loss_scale.skips_in_row)
        if self.loss_scale.dynamic and skips < MOST_SKIPS:
            return
        bad = self.gradients.not_finite(self.optimizer.ranges)
        where = f"first in {bad[0]}" if bad else "in the gradient of another rank or in the sum on the wire"
        row = f", as were those of the {skips - 1} steps before, at loss scale 1" if skips else ""
        raise NotFiniteError(
            f"the gradient of step {self.step - 1} is not finite (norm {self.last_norm.item()}, {where}){row}: lower "
            "the learning rate or look at this step's data"
        )


@dataclass(frozen=True)
class StepResult:
    """What a step says of itself; tensors stay on the device until somebody reads them."""

    masked_lm_loss: Tensor  # of the global batch, before the update
    next_sentence_loss: Tensor
    gradient_norm: Tensor  # before clipping
    learning_rate: Tensor
    skipped: Tensor  # bool; True: the gradient was not finite and nothing was updated

    @property
    def loss(self) -> Tensor:
        return self.masked_lm_loss + self.next_sentence_loss


def train_step(state: TrainState, step: StepSamples[Batch]) -> StepResult:
    """Forward and backward of each micro-batch, one reduction, clip, update.

    Losses are sums divided by the counts of the global batch, which every rank knows from the data order, so the sum
    of the gradients over ranks and micro-batches is the gradient of the global batch however it was split.
    """
    state.check_finite()
    state.flat.zero_gradients()
    sums_2 = torch.zeros(2, dtype=torch.float64, device=state.device)
    *first, last = step.micro_batches
    for batch in first:
        sums_2 += forward_backward(state, batch, step)
        state.flat.accumulate()
    state.gradients.open()
    sums_2 += forward_backward(state, last, step)
    reduced = state.gradients.finish()
    with state.recorder.span(COMPUTE, "update"):
        update = state.optimizer.step(reduced, scale=state.loss_scale.value)
        state.loss_scale.update(update.skipped)
    state.weights.start()

    state.control.sum(sums_2)
    state.step += 1
    state.samples += step.global_samples
    state.last_norm = update.gradient_norm
    return StepResult(
        masked_lm_loss=sums_2[0] / (step.global_masked + MASKED_LM_EPSILON),
        next_sentence_loss=sums_2[1] / step.global_samples,
        gradient_norm=update.gradient_norm,
        learning_rate=update.learning_rate,
        skipped=update.skipped,
    )


def forward_backward(state: TrainState, batch: Batch, step: StepSamples[Batch]) -> Tensor:
    """Adds the gradients of one micro-batch; its sums of losses, [2]."""
    with state.recorder.span(COMPUTE, "forward"):
        losses = state.model(batch.to(state.device), DropoutSeed(state.dropout_seed, state.step))
        loss = losses.of_global_batch(step.global_masked, step.global_samples)
    with state.recorder.span(COMPUTE, "backward"):
        (loss * state.loss_scale.value).backward()
    return torch.stack([losses.masked_lm_sum, losses.next_sentence_sum]).detach()
