"""Our training step beside torch's own sharded ones: `bert-mlperf bench peers`.

Each way is two processes of its own with one thread each. They take turns: a few steps of one while the others wait,
then a few of the next, so that noise of the machine hits all alike. All train on the same samples from the same
weights; if their losses do not agree, nothing is compared.
"""

import multiprocessing
import os
import statistics
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from rich.table import Table

from bert_mlperf.bench.machine import Disturbance, machine, say, wide_console
from bert_mlperf.bench.peer_ranks import BUILDERS, TIMEOUT_S, Memory, Round, serve
from bert_mlperf.config.model import ModelConfig
from bert_mlperf.config.system import Run
from bert_mlperf.errors import UserError
from bert_mlperf.ranks import ENVIRONMENT

WORLD_SIZE = 2
OURS, COMPUTE = "ours", "compute only"
RIVALS = ("DDP + ZeRO", "FSDP2")  # the ones to beat; the other is listed
BOUNDS = {  # of the settings
    "layers": (1, 48),
    "hidden": (64, 4096),
    "vocabulary": (100, 1_000_000),
    "samples": (1, 1024),
    "max_length": (32, 4096),
    "rounds": (1, 1000),
    "steps": (1, 1000),
}
LOSS_TOLERANCE = 2e-5  # relative: fp32 sums in another order, over all steps


@dataclass(frozen=True)
class Settings:
    """What is trained, and how often it is measured. All sizes are counts."""

    layers: int = 4
    hidden: int = 512
    vocabulary: int = 30_522
    samples: int = 1  # of one rank in a step
    max_length: int = 128
    rounds: int = 7
    steps: int = 3  # of a round

    def run(self) -> Run:
        """The run of all ways: fp32, LAMB, no dropout, 25 MiB buckets."""
        model = ModelConfig(
            name="bert-bench",
            vocab_size=self.vocabulary,
            hidden_size=self.hidden,
            num_hidden_layers=self.layers,
            num_attention_heads=max(1, self.hidden // 64),
            intermediate_size=4 * self.hidden,
            max_position_embeddings=self.max_length,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
        fields: dict[str, Any] = {
            "model": model,
            "recipe": {
                "global_batch_size": WORLD_SIZE * self.samples,
                "base_learning_rate": 1e-2,
                "training_steps": 1000,
            },
            "data": {"train": "none", "eval": "none"},
            "micro_batch_size": self.samples,
            "ranks_per_node": WORLD_SIZE,
            "precision": "fp32",
            "device": "cpu",
            "reduction": "flat",
        }
        return Run.model_validate(fields)


@dataclass(frozen=True)
class Result:
    """One way to train."""

    seconds: list[float]  # per step, one of each round, of the slower rank
    cpu_seconds: list[float]  # likewise, all threads of a rank, mean of the ranks
    losses: list[float]
    memory: Memory  # of the rank that took most

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def bench_peers(settings: Settings) -> None:
    """Measures all ways in turn and prints the table. UserError if the losses differ or a rank fails."""
    check_settings(settings)
    disturbance = Disturbance()
    results = measure(settings)
    where = machine(disturbance)
    check_losses(results)
    show(settings, results, where=where)


def check_settings(settings: Settings) -> None:
    """UserError that names the option that is out of its bounds."""
    for name, (least, most) in BOUNDS.items():
        value = getattr(settings, name)
        if not least <= value <= most:
            option = name.replace("_", "-")
            raise UserError(f"--{option} is {value}, expected {least:,} to {most:,}; give another number.")
    if settings.hidden % 64:
        raise UserError(f"--hidden is {settings.hidden}, expected a multiple of 64, the width of a head; give another.")


def measure(settings: Settings) -> dict[str, Result]:
    """One warm-up round of each way, then all rounds in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in BUILDERS}
    cpu_seconds: dict[str, list[float]] = {name: [] for name in BUILDERS}
    losses: dict[str, list[float]] = {name: [] for name in BUILDERS}
    with started(settings.run()) as ranks:
        for number in range(settings.rounds + 1):
            for name in BUILDERS:
                answers: list[Round] = ask(name, ranks[name], settings.steps)
                losses[name] += answers[0].losses
                if number > 0:
                    seconds[name].append(max(answer.seconds for answer in answers))
                    cpu_seconds[name].append(statistics.mean(answer.cpu_seconds for answer in answers))
            say(f"round {number} of {settings.rounds}" if number > 0 else "warmed up")
        memory = {name: max(ask(name, ranks[name], 0), key=lambda m: m.peak) for name in BUILDERS}
    return {name: Result(seconds[name], cpu_seconds[name], losses[name], memory[name]) for name in BUILDERS}


@contextmanager
def started(run: Run) -> Iterator[dict[str, list[Connection]]]:
    """The ranks of all ways, by name; killed when the block is left."""
    os.environ.update(ENVIRONMENT | os.environ)  # what the launcher gives its ranks, for all ways alike
    context = multiprocessing.get_context("spawn")
    ranks: dict[str, list[Connection]] = {name: [] for name in BUILDERS}
    processes = []
    with tempfile.TemporaryDirectory(prefix="bert-mlperf-bench-") as folder:
        try:
            for number, name in enumerate(BUILDERS):
                for rank in range(WORLD_SIZE):
                    here, there = context.Pipe()
                    arguments = (name, run, rank, WORLD_SIZE, f"{folder}/{number}", there)
                    process = context.Process(target=serve, args=arguments, daemon=True)
                    process.start()
                    there.close()
                    processes.append(process)
                    ranks[name].append(here)
            yield ranks
        finally:
            for process in processes:
                process.kill()
                process.join()


def ask(name: str, connections: list[Connection], steps: int) -> list[Any]:
    """The answers of all ranks. UserError if one fails."""
    answers = []
    for rank, connection in enumerate(connections):
        answer: Any = TimeoutError(f"no answer within {TIMEOUT_S:.0f} s")
        try:
            if rank == 0:
                for other in connections:
                    other.send(steps)
            if connection.poll(TIMEOUT_S):
                answer = connection.recv()
        except (EOFError, BrokenPipeError):
            answer = RuntimeError("the process was killed")
        if isinstance(answer, BaseException):
            raise UserError(f"rank {rank} of {name} failed ({type(answer).__name__}: {answer}).") from answer
        answers.append(answer)
    return answers


def check_losses(results: Mapping[str, Result]) -> None:
    """UserError if a way's losses are not ours: then it does not do the same work."""
    for name, result in results.items():
        difference = largest_difference(result, results[OURS])
        if name != COMPUTE and not difference <= LOSS_TOLERANCE:
            raise UserError(
                f"the losses of {name} are {difference:.1e} (relative) from ours, expected at most "
                f"{LOSS_TOLERANCE:.0e}: they do not do the same work, so nothing is compared."
            )


def largest_difference(one: Result, other: Result) -> float:
    """Of the losses of all steps, relative; NaN if one is NaN."""
    return float(np.max([abs(a / b - 1) for a, b in zip(one.losses, other.losses, strict=True)]))


def show(settings: Settings, results: Mapping[str, Result], *, where: str) -> None:
    console = wide_console()
    table = Table(title=f"{WORLD_SIZE} ranks, 1 thread each, gloo, fp32, seconds per step")
    for heading in ("", "median", "least", "most", "CPU", "ours / this", "peak MB", "last loss"):
        table.add_column(heading, justify="left" if heading == "" else "right")
    for name, result in results.items():
        ratio = f"{statistics.median(ratios(results, name)):.3f}"
        table.add_row(
            name,
            *(f"{value:.3f}" for value in (result.median, min(result.seconds), max(result.seconds))),
            f"{statistics.median(result.cpu_seconds):.3f}",
            "" if name == COMPUTE else ratio,
            f"{result.memory.peak / 1e6:.0f}",
            "" if name == COMPUTE else f"{result.losses[-1]:.6f}",
        )
    console.print(table)
    rival = min(RIVALS, key=lambda name: results[name].median)
    share = 1 - results[COMPUTE].median / results[rival].median
    parameters = settings.run().model.num_parameters
    difference = max(largest_difference(result, results[OURS]) for n, result in results.items() if n != COMPUTE)
    console.print(
        f"{settings.layers} layers x {settings.hidden}, vocabulary {settings.vocabulary:,}: {parameters / 1e6:.1f} M "
        f"parameters; {settings.samples} samples per rank and step, MLPerf-like lengths up to {settings.max_length}\n"
        f"communication and update are {share:.0%} of the step of {rival}, the faster peer; ours takes "
        f"{statistics.median(ratios(results, rival)):.3f} of its time\n"
        f"{settings.rounds} rounds of {settings.steps} steps in turn after one to warm up; ratios are medians over "
        f"rounds; losses of {(settings.rounds + 1) * settings.steps} steps agree within {difference:.0e}, first and "
        f"last differ by {results[OURS].losses[0] - results[OURS].losses[-1]:.3f}\n"
        f"peak MB: VmHWM of the larger rank, of which {results[OURS].memory.before / 1e6:.0f} MB are libraries before "
        f"the model is built; CPU: seconds of all threads of a rank per step\n{where}"
    )


def ratios(results: Mapping[str, Result], name: str) -> list[float]:
    """Our seconds over those of `name`, round by round."""
    return [ours / peer for ours, peer in zip(results[OURS].seconds, results[name].seconds, strict=True)]
