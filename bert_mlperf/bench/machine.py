"""What a benchmark ran on, in a line, and where its tables go."""

import os
import sys
import time
from pathlib import Path

import torch
from rich.console import Console

PIPE_WIDTH = 120  # columns where the output is no terminal


class Disturbance:
    """How much of the cores other processes have taken since this was made."""

    def __init__(self) -> None:
        self._start, self._others = time.perf_counter(), self._others_so_far()

    def share(self) -> float:
        """0 to 1, of all cores."""
        seconds = (time.perf_counter() - self._start) * (os.cpu_count() or 1)
        return min(1.0, max(0.0, (self._others_so_far() - self._others) / seconds))

    @staticmethod
    def _others_so_far() -> float:
        """CPU seconds of all processes but this one and its children that have ended."""
        user, nice, system = map(int, Path("/proc/stat").read_text(encoding="ascii").split(maxsplit=4)[1:4])
        return (user + nice + system) / os.sysconf("SC_CLK_TCK") - sum(os.times()[:4])


def machine(disturbance: Disturbance) -> str:
    """Processor, cores, torch, and what else went on."""
    cores = len(os.sched_getaffinity(0))
    others = f"other processes took {100 * disturbance.share():.0f}% of them"
    return f"{cpu_name()}, {cores} cores ({others}), torch {torch.__version__}"


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
