"""What a benchmark ran on, in a line, and where its tables go."""

import os
import sys
from pathlib import Path

import torch
from rich.console import Console

PIPE_WIDTH = 120  # columns where the output is no terminal


def machine() -> str:
    """Processor, cores, load of the last minute (the benchmark's own included) and torch."""
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    return f"{cpu_name()}, {cores} cores, load {load:.1f}, torch {torch.__version__}"


def cpu_name() -> str:
    """The name of the processor, as the kernel gives it."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "an unnamed CPU")


def wide_console() -> Console:
    """Where tables are printed, wide enough for them in a file too."""
    return Console(highlight=False) if Console().is_terminal else Console(highlight=False, width=PIPE_WIDTH)


def say(text: str) -> None:
    """Progress, on stderr."""
    print(f"bench    {text}", file=sys.stderr, flush=True)
