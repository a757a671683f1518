"""What the data side sends between ranks: samples (run.read: exchange) and pieces of files (run.cache: node)."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

CPU = torch.device("cpu")


@dataclass
class AllToAll:
    """Bytes from every rank to every other: the first time over the default group, which is the accelerator's and fast,
    and afterwards over a group of the CPU, so that nothing waits behind gradients."""

    world_size: int
    device: torch.device  # of the default group
    timeout_s: float
    first: bool = True

    def __post_init__(self) -> None:
        self._group = None
        if self.world_size > 1:
            self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=self.timeout_s))
            for _ in range(2):  # over each group once, so that both are connected before the clock starts
                self(self.world_size * [np.zeros(1, np.uint8)], self.world_size * [1])
            self.first = True

    def __call__(self, outgoing: Sequence[np.ndarray], sizes: Sequence[int]) -> Sequence[np.ndarray]:
        """`outgoing[r]` (uint8) goes to rank r; returns uint8 [sizes[r]] from each rank r. RuntimeError if a rank is
        lost."""
        if self.world_size == 1:
            return outgoing
        device, group = (self.device, None) if self.first else (CPU, self._group)
        self.first = False
        received = torch.empty(sum(sizes), dtype=torch.uint8, device=device)
        sent = torch.from_numpy(np.concatenate(outgoing)).to(device)
        dist.all_to_all_single(received, sent, list(sizes), [len(part) for part in outgoing], group=group)
        return [part.cpu().numpy() for part in received.split(list(sizes))]


class NodeShare:
    """All-gather among the ranks with one local rank, one of each node."""

    def __init__(
        self, *, rank: int, world_size: int, ranks_per_node: int, device: torch.device, timeout_s: float
    ) -> None:
        self.device = device
        self._nodes = world_size // ranks_per_node
        self._group = None
        if self._nodes > 1:
            groups = [
                dist.new_group(range(first, world_size, ranks_per_node), timeout=timedelta(seconds=timeout_s))
                for first in range(ranks_per_node)
            ]
            self._group = groups[rank % ranks_per_node]
            self(np.zeros(1, np.uint8))  # connected before the clock starts

    def __call__(self, chunk_C: np.ndarray) -> np.ndarray:
        """uint8 [nodes, C] of `chunk_C`, uint8 [C], as each node has it; C is the same on all."""
        if self._nodes == 1:
            return chunk_C[None]
        chunk = torch.from_numpy(chunk_C).to(self.device)
        gathered: list[Tensor] = [torch.empty_like(chunk) for _ in range(self._nodes)]
        dist.all_gather(gathered, chunk, group=self._group)
        return torch.stack(gathered).cpu().numpy()
