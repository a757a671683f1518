"""A training step of BERT on this CPU beside Hugging Face's: `bert-mlperf bench step`.

Each side has a process of its own, one after the other, so that memory is its own. Both get the same batches.
"""

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from bert_mlperf.bench.machine import Disturbance, machine, say, wide_console
from bert_mlperf.bench.step_side import FULL, MLPERF_LIKE, OURS, PEER
from bert_mlperf.config.model import NAMED_MODELS
from bert_mlperf.errors import UserError
from bert_mlperf.ranks import ENVIRONMENT

MOST = {"samples": 1024, "steps": 1000, "threads": 1024}


@dataclass(frozen=True)
class Settings:
    """What is measured; counts."""

    model: str = "bert-large"
    samples: int = 4  # of a step
    steps: int = 3
    threads: int = 0  # 0: all cores


def bench_step(settings: Settings) -> None:
    """Measures both sides and prints the table. UserError if a side cannot be run."""
    settings = checked(settings)
    disturbance = Disturbance()
    found = {side: run_side(side, settings) for side in (OURS, PEER)}
    show(settings, found, where=machine(disturbance))


def checked(settings: Settings) -> Settings:
    """The settings with every number decided. UserError names the option that is out of its bounds."""
    if settings.model not in NAMED_MODELS:
        raise UserError(f"--model is {settings.model!r}, expected one of {', '.join(NAMED_MODELS)}; give one of these.")
    threads = settings.threads or len(os.sched_getaffinity(0))
    settings = Settings(settings.model, settings.samples, settings.steps, threads)
    for name, most in MOST.items():
        if not 1 <= getattr(settings, name) <= most:
            raise UserError(f"--{name} is {getattr(settings, name)}, expected 1 to {most:,}; give another number.")
    if importlib.util.find_spec("transformers") is None:
        raise UserError(
            "the peer of this benchmark, Hugging Face transformers, is not installed; install it with "
            "pip install -c constraints.txt -e '.[peers]'."
        )
    return settings


def run_side(side: str, settings: Settings) -> dict[str, Any]:
    """What `step_side` measured in a process of its own."""
    say(f"{side}: {settings.model}, {settings.samples} samples a step, {settings.threads} threads")
    with tempfile.TemporaryDirectory(prefix="bert-mlperf-bench-") as folder:
        job, result = Path(folder, "job"), Path(folder, "result")
        job.write_text(json.dumps({"side": side, **vars(settings)}))
        command = [sys.executable, "-m", "bert_mlperf.bench.step_side", str(job), str(result)]
        done = subprocess.run(command, env=ENVIRONMENT | os.environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode != 0:
            lines = done.stdout.decode(errors="replace").strip().splitlines() or ["it said nothing"]
            raise UserError(f"{side} failed with exit code {done.returncode}: {lines[-1]}.")
        return json.loads(result.read_text())


def samples_per_second(found: Mapping[str, Any], kind: str, samples: int) -> float:
    """Over all steps of a kind."""
    return samples / statistics.mean(found[kind]["seconds"])


def show(settings: Settings, found: Mapping[str, Mapping[str, Any]], *, where: str) -> None:
    """The table and what it was made with."""
    console = wide_console()
    table = Table(
        title=f"{settings.model}, {settings.samples} samples a step, bf16, dropout, {settings.threads} threads"
    )
    for heading in (
        "lengths",
        "",
        "s per step",
        "samples/s",
        "ours / peer",
        "peak GiB",
        "matrix GFLOP/s",
        "of peak",
        "time in them",
    ):
        table.add_column(heading, justify="left" if heading in ("lengths", "") else "right")
    for kind in (FULL, MLPERF_LIKE):
        speeds = {side: samples_per_second(found[side], kind, settings.samples) for side in found}
        for side, values in found.items():
            part = values[kind]
            table.add_row(
                kind,
                side,
                f"{statistics.mean(part['seconds']):.2f} ({min(part['seconds']):.2f}-{max(part['seconds']):.2f})",
                f"{speeds[side]:.3f}",
                f"{speeds[OURS] / speeds[PEER]:.2f}" if side == OURS else "",
                f"{part['peak'] / 2**30:.2f}",
                f"{part['matrix_speed'] / 1e9:.0f}",
                f"{part['matrix_speed'] / values['peak_speed']:.0%}",
                f"{part['matrix_share']:.0%}",
            )
    console.print(table)
    tokens = found[OURS][MLPERF_LIKE]["tokens"]
    console.print(
        f"{settings.steps} steps of each after one to warm up, one side after the other; MLPerf-like samples have "
        f"{sum(tokens) / len(tokens) / settings.samples:.0f} tokens on average, the peer pads them to 512\n"
        "ours: unpadded, LAMB, native kernels; peer: BertForPreTraining, SDPA, bf16 autocast, fused AdamW\n"
        "matrix GFLOP/s: inside aten::mm, addmm and bmm (torch's profiler); peak: a product of 4096 x 4096 matrices in "
        f"bf16, {found[OURS]['peak_speed'] / 1e9:.0f} GFLOP/s here\n{where}"
    )
