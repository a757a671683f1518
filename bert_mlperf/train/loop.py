"""The timed part of a run: train, evaluate at the scheduled points, stop at the target or at max_samples."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bert_mlperf.data.background import InBackground
from bert_mlperf.data.loader import StepSamples
from bert_mlperf.mlperf.log import MlperfLog
from bert_mlperf.model.batch import Batch
from bert_mlperf.report.metrics import MetricsWriter
from bert_mlperf.report.progress import Progress
from bert_mlperf.train.evaluate import Accuracy, evaluate
from bert_mlperf.train.loading import StepSource
from bert_mlperf.train.step import StepResult, TrainState, train_step
from bert_mlperf.train.trace import StepTrace


@dataclass(frozen=True)
class Outcome:
    """How a run ended, after `samples` samples."""

    reached: bool
    accuracy: float
    samples: int


@dataclass
class Interval:
    """Sums since the last line of progress; losses stay on the device until a line is due."""

    started: float = field(default_factory=time.perf_counter)
    steps: int = 0
    samples: int = 0
    tokens: int = 0
    waited: float = 0.0
    masked_lm_loss: Tensor | float = 0.0
    next_sentence_loss: Tensor | float = 0.0
    skipped: Tensor | int = 0

    def add(self, step: StepSamples[Batch], result: StepResult) -> None:
        self.steps += 1
        self.samples += step.global_samples
        self.tokens += step.global_tokens
        self.masked_lm_loss = self.masked_lm_loss + result.masked_lm_loss
        self.next_sentence_loss = self.next_sentence_loss + result.next_sentence_loss
        self.skipped = self.skipped + result.skipped.long()

    def summary(self, state: TrainState, result: StepResult, *, waited: float) -> dict[str, float]:
        """The line of progress: means over the interval's steps, rates per second of wall time."""
        seconds = time.perf_counter() - self.started
        masked_lm, next_sentence = float(self.masked_lm_loss) / self.steps, float(self.next_sentence_loss) / self.steps
        return {
            "samples": state.samples,
            "step": state.step,
            "loss": masked_lm + next_sentence,
            "mlm_loss": masked_lm,
            "nsp_loss": next_sentence,
            "learning_rate": float(result.learning_rate),
            "grad_norm": float(result.gradient_norm),
            "samples_per_s": self.samples / seconds,
            "tokens_per_s": self.tokens / seconds,
            "wait_percent": 100 * waited / seconds,
            "skipped_steps": int(self.skipped),
        }


@dataclass
class TrainLoop:
    """Training between two evaluation points, and the evaluation at a point. `report_every_s` in seconds."""

    state: TrainState
    loader: StepSource
    evaluation: InBackground[list[Batch]]
    log: MlperfLog
    metrics: MetricsWriter
    progress: Progress
    report_every_s: float
    trace: StepTrace
    timeout_s: float = 60.0  # for the evaluation samples to be there
    first_step_at: float | None = None  # time.perf_counter() when the first step was done
    first_wait_s: float = 0.0  # what the loader was waited for until then

    def run(self, points: list[int], target: float | None) -> Outcome:
        """Trains to each of the evaluation `points` (in samples, multiples of the global batch) until an accuracy
        reaches `target`; without a target to the last point."""
        steps = iter(self.loader)
        accuracy = 0.0
        for point in points:
            self.log.block_start(self.state.samples)
            trained, seconds = point - self.state.samples, time.perf_counter()
            self.train_until(point, steps)
            self.log.tracked_stats(trained / (time.perf_counter() - seconds), self.state.samples)
            self.log.block_stop(self.state.samples)
            accuracy = self.evaluate().value
            if target is not None and accuracy >= target:
                return Outcome(reached=True, accuracy=accuracy, samples=self.state.samples)
        return Outcome(reached=False, accuracy=accuracy, samples=self.state.samples)

    def train_until(self, point: int, steps: Iterator[StepSamples[Batch]]) -> None:
        """Steps up to `point` samples, with a line of progress every `report_every_s` and at the end."""
        interval, waited = Interval(), self.loader.wait_seconds
        while self.state.samples < point:
            step = next(steps)
            self.trace.before(self.state)
            result = train_step(self.state, step)
            self.trace.after(self.state)
            if self.first_step_at is None:
                self.first_step_at, self.first_wait_s = time.perf_counter(), self.loader.wait_seconds
            interval.add(step, result)
            due = time.perf_counter() - interval.started >= self.report_every_s
            if due or self.state.samples >= point:
                line = interval.summary(self.state, result, waited=self.loader.wait_seconds - waited)
                self.metrics.interval(**line)
                self.progress.interval(**line)
                interval, waited = Interval(), self.loader.wait_seconds
        self.state.check_finite()

    @property
    def wait_share(self) -> float:
        """Share of the time since the first step in which training waited for samples."""
        if self.first_step_at is None:
            return 0.0
        return (self.loader.wait_seconds - self.first_wait_s) / (time.perf_counter() - self.first_step_at)

    def evaluate(self) -> Accuracy:
        samples = self.state.samples
        self.log.eval_start(samples)
        batches = self.evaluation.result(timeout_s=self.timeout_s)
        accuracy = evaluate(self.state.model, batches, self.state.control, self.state.device)
        self.log.eval_stop(samples)
        self.log.eval_accuracy(accuracy.value, samples)
        self.metrics.evaluation(
            samples=samples, accuracy=accuracy.value, correct=accuracy.correct, total=accuracy.total
        )
        self.progress.evaluation(samples=samples, accuracy=accuracy.value)
        return accuracy


def peak_over_ranks(state: TrainState, value: float) -> float:
    """The largest `value` over all ranks."""
    values = torch.zeros(state.control.world_size, dtype=torch.float64, device=state.device)
    values[state.control.rank] = value
    state.control.sum(values)
    return float(values.max())
