"""Memory that all ranks of a group on one host see: on the CPU they hand each other parts through it, not in sockets.

    slots of rank 0    turn 0 | turn 1 | ... | turn 5        written by rank 0, read by all
    slots of rank 1    turn 0 | turn 1 | ... | turn 5        ...

Each rank fills its slot of the turn; when all have, everyone reads all of them, while slots of the next turns are
filled. Nobody waits for readers: who fills for turn t has read turn t - 3, so all others had begun it, and before that
read turn t - 6, whose slots these are.

The memory has no name and ends with the processes: each rank makes its own (memfd) and opens the others' through
/proc. Ranks in different network namespaces are on different hosts, as in `bench comm`.
"""

import mmap
import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

SLOT = 4 * 2**20  # bytes
IN_FLIGHT = 3  # turns that are begun and not yet read
TURNS = 2 * IN_FLIGHT
_HEAD = mmap.PAGESIZE  # the token, before the slots


@dataclass(frozen=True)
class _Offer:
    """What a rank tells the others of its memory: its host, where it is to be found, and what it begins with."""

    host: str
    path: str
    token: bytes


class SharedSlots:
    """The slots of all ranks of a group; `own` is this rank's number in it."""

    def __init__(self, memories: Sequence[mmap.mmap], own: int, group: dist.ProcessGroup) -> None:
        self._own, self._group = own, group
        self._slots = [
            [torch.frombuffer(m, dtype=torch.uint8, count=SLOT, offset=_HEAD + turn * SLOT) for m in memories]
            for turn in range(TURNS)
        ]
        self._turn = 0

    def own(self, numel: int, dtype: torch.dtype) -> Tensor:
        """This rank's slot of the turn, [numel], for this rank to fill; at most SLOT bytes."""
        assert numel * dtype.itemsize <= SLOT
        return _as(self._slots[self._turn][self._own], numel, dtype)

    def start(self, numel: int, dtype: torch.dtype) -> Callable[[], list[Tensor]]:
        """Tells the others that this rank has filled its slot, and goes on to the next. What it returns waits until all
        have: their slots [numel], by rank. At most IN_FLIGHT are begun and not yet read."""
        slots = self._slots[self._turn]
        self._turn = (self._turn + 1) % TURNS
        work = dist.all_reduce(torch.zeros(1, dtype=torch.int32), group=self._group, async_op=True)

        def filled() -> list[Tensor]:
            work.wait()
            return [_as(slot, numel, dtype) for slot in slots]

        return filled


def open_shared_slots(group: dist.ProcessGroup | None) -> SharedSlots | None:
    """Slots for the ranks of `group`, all of which call this; None if they cannot share memory, and on devices that do
    not need it."""
    if group is None or dist.get_backend(group) != "gloo":
        return None
    memory, offer, descriptor = _make()
    offers: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(offers, offer, group=group)
    own = dist.get_rank(group)
    try:
        opened = [memory if rank == own else _open(other, offer.host) for rank, other in enumerate(offers)]
        found = [m for m in opened if m is not None]
        everyone_found_all = torch.tensor([len(found) == len(offers)], dtype=torch.int32)
        dist.all_reduce(everyone_found_all, op=dist.ReduceOp.MIN, group=group)  # all have opened all, or given up
    finally:
        if descriptor is not None:
            os.close(descriptor)
    return SharedSlots(found, own, group) if everyone_found_all.item() else None


def _make() -> tuple[mmap.mmap | None, _Offer, int | None]:
    """This rank's memory (None where it cannot be), what it offers, and the descriptor that keeps the offer open."""
    token = secrets.token_bytes(16)
    descriptor = None
    try:
        descriptor = os.memfd_create("bert_mlperf")
        os.posix_fallocate(descriptor, 0, _HEAD + TURNS * SLOT)
        memory, host = mmap.mmap(descriptor, _HEAD + TURNS * SLOT), _host()
    except (AttributeError, OSError):  # no Linux, no room, or no /proc
        return None, _Offer("", "", token), descriptor
    memory[: len(token)] = token
    return memory, _Offer(host, f"/proc/{os.getpid()}/fd/{descriptor}", token), descriptor


def _open(offer: _Offer, host: str) -> mmap.mmap | None:
    """Another rank's memory; None if it is on another host or cannot be opened here."""
    if not offer.path or offer.host != host:
        return None
    try:
        descriptor = os.open(offer.path, os.O_RDWR)
        try:
            memory = mmap.mmap(descriptor, _HEAD + TURNS * SLOT)
        finally:
            os.close(descriptor)
    except (OSError, ValueError):
        return None
    return memory if memory[: len(offer.token)] == offer.token else None


def _host() -> str:
    """The same text for all processes of this host, no other's."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot} {os.readlink('/proc/self/ns/net')}"


def _as(slot: Tensor, numel: int, dtype: torch.dtype) -> Tensor:
    return slot[: numel * dtype.itemsize].view(dtype)
