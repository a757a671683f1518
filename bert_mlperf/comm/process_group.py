"""Which rank this is, and the default process group: nccl where CUDA is, gloo elsewhere."""

import os
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class RankInfo:
    """Place of this process among all, from the environment that torchrun sets (a single process has none)."""

    rank: int
    local_rank: int
    world_size: int

    @classmethod
    def from_environment(cls) -> "RankInfo":
        return cls(
            rank=int(os.environ.get("RANK", 0)),
            local_rank=int(os.environ.get("LOCAL_RANK", 0)),
            world_size=int(os.environ.get("WORLD_SIZE", 1)),
        )


def open_process_group(info: RankInfo, device: torch.device, *, timeout_s: float) -> None:
    """Joins the default group; a collective that waits longer than `timeout_s` seconds raises. No-op for one rank."""
    if info.world_size == 1:
        return
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, rank=info.rank, world_size=info.world_size, timeout=timedelta(seconds=timeout_s))


def close_process_group() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
