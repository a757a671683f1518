"""What a system file resolves to, where each value comes from, and what is installed here."""

import os
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bert_mlperf.config.sharding import sharding_plan
from bert_mlperf.config.sharp import sharp_here
from bert_mlperf.config.system import ResolvedSystem, load_system
from bert_mlperf.errors import UserError

PACKAGE = "bert-mlperf"
PIPE_WIDTH = 160  # columns where the output is no terminal
NOT_INSTALLED = "not installed"
REPOSITORY = Path(__file__).resolve().parents[2]


def versions() -> dict[str, str]:
    """Python and every package that this project may use, by name; "not installed" for an absent extra."""
    names = [re.split(r"[^\w.-]", requirement, maxsplit=1)[0] for requirement in metadata.requires(PACKAGE) or []]
    return {"python": platform.python_version()} | {name: _version(name) for name in [PACKAGE, *names]}


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return NOT_INSTALLED


def git_revision() -> str:
    """Commit of the checkout this package runs from, "+changes" if files differ from it; "unknown" outside of git."""
    if not (REPOSITORY / ".git").exists():
        return "unknown"
    revision = _git("rev-parse", "HEAD")
    return f"{revision}+changes" if revision != "unknown" and _git("status", "--porcelain") else revision


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(REPOSITORY), *arguments], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def environment() -> dict[str, str]:
    """This host and this checkout, as they are saved beside a log."""
    return {
        "git_revision": git_revision(),
        "platform": platform.platform(),
        "cpus": str(len(os.sched_getaffinity(0))),
        **versions(),
    }


def device() -> str:
    """What PyTorch would train on where `run.device` is auto. Imports torch, which takes seconds."""
    try:
        import torch
    except (ImportError, OSError) as error:
        return f"none: PyTorch cannot be imported ({error})"
    if not torch.cuda.is_available():
        return f"cpu ({torch.get_num_threads()} threads)"
    return f"{torch.cuda.device_count()} x cuda ({torch.cuda.get_device_name(0)})"


def doctor(resolved: ResolvedSystem, *, console: Console | None = None) -> None:
    """Print the resolved system with its sources, what follows from it, its warnings, and the installation."""
    console = console or Console(width=None if sys.stdout.isatty() else PIPE_WIDTH)
    console.print(_table(f"system {resolved.name} ({resolved.path})", ("key", "value", "from"), _values(resolved)))
    console.print(_table("what follows", ("key", "value"), _consequences(resolved)))
    rows = [*environment().items(), ("device", device())]
    console.print(_table("installed here", ("name", "version"), rows))
    for warning in resolved.warnings:
        console.print(f"warning: {warning}", style="yellow", markup=False)


def main_doctor(system: str | Path, overrides: Sequence[str] = ()) -> int:
    """`bert-mlperf doctor --system FILE [--set key=value ...]`: prints, returns the exit code 0. UserError as usual."""
    doctor(load_system(system, list(overrides)))
    return 0


def _values(resolved: ResolvedSystem) -> list[tuple[str, ...]]:
    """Key, value and source of every leaf of the system."""
    dump = resolved.system.model_dump(by_alias=True)
    rows: list[tuple[str, ...]] = []
    for key, source in resolved.sources.items():
        value = dump
        for part in key.split("."):
            value = value[part]
        if key == "run.model":  # a name; its shape follows from it
            value = value["name"]
        rows.append((key, "-" if value in ("", None) else str(value), source))
    return rows


def _consequences(resolved: ResolvedSystem) -> list[tuple[str, ...]]:
    run, points = resolved.run, resolved.evaluation_points
    return [
        ("ranks", f"{resolved.world_size} ({resolved.number_of_nodes} nodes x {run.ranks_per_node})"),
        ("threads per rank", str(resolved.threads_per_rank)),
        ("model", f"{run.model.name}: {run.model.num_parameters:,} parameters in {run.model.num_hidden_layers} layers"),
        ("evaluation", f"{len(points)} times at most: first after {points[0]:,}, last after {points[-1]:,} samples"),
        ("interval", f"{resolved.eval_interval_samples:,} samples between evaluations"),
        (
            "steps",
            f"{points[-1] // run.recipe.global_batch_size:,} at most, the learning rate ends at "
            f"{run.recipe.training_steps:,}",
        ),
        *_reduction(resolved),
    ]


def _reduction(resolved: ResolvedSystem) -> list[tuple[str, ...]]:
    run, world_size = resolved.run, resolved.world_size
    try:
        plan = sharding_plan(run, world_size=world_size)
    except UserError as error:
        return [("reduction", f"cannot be: {error}")]
    groups = f"shard groups of {plan.shard_group_size} ranks, {plan.wire} on the wire"
    return [("reduction", f"{plan.strategy}, {groups}"), ("sharp", str(sharp_here(run, world_size=world_size)))]


def _table(title: str, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for name in columns:
        table.add_column(name, overflow="fold", no_wrap=name == "key")
    for row in rows:
        table.add_row(*row)
    return table
