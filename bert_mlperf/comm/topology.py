"""Which ranks hold one copy of the optimizer state together, and which hold the same part of it.

    shard group      consecutive ranks; each holds another 1/S of the state (default: the ranks of a node)
    replica group    the ranks with the same part, one of each shard group

With 2 nodes of 4 ranks and shard groups of 4: {0 1 2 3} {4 5 6 7}, and {0 4} {1 5} {2 6} {3 7}.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from bert_mlperf.comm.shared_memory import SharedSlots, open_shared_slots
from bert_mlperf.comm.sharp import SharpRequest
from bert_mlperf.errors import UserError


@dataclass(frozen=True)
class Topology:
    """The place of one rank in shard and replica groups. UserError if the groups do not divide the ranks."""

    rank: int
    world_size: int
    shard_group_size: int

    def __post_init__(self) -> None:
        size = self.shard_group_size
        if not (1 <= size <= self.world_size) or self.world_size % size:
            divisors = [n for n in range(1, self.world_size + 1) if self.world_size % n == 0]
            raise UserError(
                f"run.shard_group is {size} ranks, which does not divide the {self.world_size} ranks; give one of "
                f"{', '.join(map(str, divisors))}, or node or world."
            )

    @property
    def shard(self) -> int:
        """Which part of the state this rank holds, 0 to shard_group_size - 1."""
        return self.rank % self.shard_group_size

    @property
    def num_replicas(self) -> int:
        return self.world_size // self.shard_group_size

    def shard_groups(self) -> list[list[int]]:
        size = self.shard_group_size
        return [list(range(first, first + size)) for first in range(0, self.world_size, size)]

    def replica_groups(self) -> list[list[int]]:
        return [list(range(shard, self.world_size, self.shard_group_size)) for shard in range(self.shard_group_size)]


@dataclass(frozen=True)
class Groups:
    """Communicators of one rank, None where a group has one member, and the memory that the shard group shares where it
    can. They belong to one lane of work: another lane at the same time needs its own."""

    world: dist.ProcessGroup | None
    shard: dist.ProcessGroup | None
    replica: dist.ProcessGroup | None
    slots: SharedSlots | None = None

    def communicators(self) -> dict[str, dist.ProcessGroup | None]:
        return {"world": self.world, "shard": self.shard, "replica": self.replica}


def open_groups(
    topology: Topology, *, timeout_s: float, sharp: SharpRequest | None = None, shares_memory: bool = True
) -> Groups:
    """New communicators, whose collectives raise after `timeout_s` seconds; every rank calls this, as often as all
    others, and makes all of them in one order. The one that `sharp` names asks for SHARP, the others do not. A shard
    group of all ranks is the world group. With `shares_memory` the shard group gets memory to hand over buckets in."""
    kinds = {
        "world": [list(range(topology.world_size))],
        "shard": topology.shard_groups(),
        "replica": topology.replica_groups(),
    }
    opened: dict[str, dist.ProcessGroup | None] = {}
    for kind, groups in kinds.items():
        if kind == "shard" and topology.num_replicas == 1:
            opened[kind] = opened["world"]
        elif sharp is not None and sharp.kind == kind:
            with sharp.applied(timeout_s=timeout_s) as options:
                opened[kind] = _own_group(groups, topology.rank, timeout_s, options)
                sharp.first_use(opened[kind])
        else:
            opened[kind] = _own_group(groups, topology.rank, timeout_s)
    return Groups(**opened, slots=open_shared_slots(opened["shard"]) if shares_memory else None)


def step_groups(topology: Topology, *, timeout_s: float) -> Groups:
    """The communicators of the step itself, which is no lane: the default group where that is the shard group."""
    if topology.num_replicas == 1:
        everyone = dist.group.WORLD if topology.world_size > 1 else None
        return Groups(world=everyone, shard=everyone, replica=None)
    return open_groups(topology, timeout_s=timeout_s, shares_memory=False)


def _own_group(groups: list[list[int]], rank: int, timeout_s: float, options: Any = None) -> dist.ProcessGroup | None:
    own = None
    for ranks in groups:
        if len(ranks) > 1:
            group = dist.new_group(ranks, timeout=timedelta(seconds=timeout_s), pg_options=options)
            own = group if rank in ranks else own
    return own
