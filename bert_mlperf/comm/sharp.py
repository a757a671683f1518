"""Asking for SHARP (CollNet) on the communicator that adds up between nodes, and on no other.

Switches have few resources for it: a communicator that asks without need takes them from the one that counts, and an
algorithm forced for all (NCCL_ALGO) leaves other collectives without any. So the request goes into the communicator's
own config, or, where torch has no such field, into the environment while that communicator is created. NCCL reads
NCCL_COLLNET_ENABLE anew for each communicator and creates one at its first use: both lie inside the block. Where the
switch refuses, NCCL itself falls back to rings and trees. Never run with NCCL.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist

from bert_mlperf.comm.control import Control

REQUESTING = {"NCCL_COLLNET_ENABLE": "1"}
CHECK_SIZE = 2**20  # elements: 4 MiB, so that NCCL takes the way that large buffers take


@dataclass(frozen=True)
class SharpRequest:
    """Which communicator of a rank asks for SHARP, and how."""

    kind: Literal["world", "replica"]  # field of topology.Groups
    way: Literal["config", "environment"]
    device: torch.device

    @contextmanager
    def applied(self, *, timeout_s: float) -> Iterator[Any]:
        """Inside, the communicator is created (with the options that this yields, or None) and first used."""
        if self.way == "config":
            options: Any = dist.ProcessGroupNCCL.Options()
            options.config.collnet_enable = 1
            options._timeout = timedelta(seconds=timeout_s)  # new_group warns if it differs from its own
            yield options
        else:
            with environment(REQUESTING):
                yield None

    def first_use(self, group: dist.ProcessGroup | None) -> None:
        """Creates NCCL's communicator by a sum, which is checked: reductions in a switch have been wrong."""
        if group is None:
            return
        ones = torch.ones(CHECK_SIZE, device=self.device)
        dist.all_reduce(ones, group=group)
        low, high = ones.min().item(), ones.max().item()
        if (low, high) != (group.size(), group.size()):
            raise RuntimeError(
                f"the all-reduce between nodes is wrong: ones of {group.size()} ranks gave {low} to {high}; run with "
                "run.sharp off and have the fabric checked"
            )


@contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    """Sets variables and puts back what was there before, also after an exception."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def ranks_that_refuse(refuses: bool, control: Control, device: torch.device) -> list[int]:
    """The ranks that pass True, the same list on every rank: a communicator asks for SHARP on all of them or none."""
    flags = torch.zeros(control.world_size, dtype=torch.int64, device=device)
    flags[control.rank] = refuses
    control.sum(flags)
    return flags.nonzero().flatten().tolist()
