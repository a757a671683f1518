"""Ranks of one host hand each other parts in shared memory: to the bit what sockets give, and only where it can be."""

import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from bert_mlperf.comm import shared_memory
from bert_mlperf.comm.control import Control
from bert_mlperf.comm.reduction import InFlight, Reduction
from bert_mlperf.comm.shared_memory import IN_FLIGHT, SLOT, TURNS
from bert_mlperf.comm.topology import Topology, open_groups, step_groups
from tests.dist.ranks import run_ranks

SIZES = [1, 3, 64, 1000, SLOT // 16]  # elements of a part


def reduced_and_gathered(reduction: Reduction, rank: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """Parts after reductions of buckets of all sizes, and buckets gathered from them, larger than a slot too."""
    found, shards = [], reduction.topology.shard_group_size
    for number, size in enumerate([*SIZES, *SIZES]):
        generator = torch.Generator().manual_seed(100 * number + rank)
        part = torch.empty(size)
        wire = reduction.wire(part, dtype)
        wire.copy_(torch.randn(size * shards, generator=generator))
        reduction.start(wire, part)()
        found.append(part.clone())
    for size in (*SIZES, SLOT // 4 - 1, SLOT // 4 + 1, SLOT):
        part = torch.randn(size, generator=torch.Generator().manual_seed(rank)).to(dtype)
        bucket = torch.zeros(size * shards, dtype=dtype)
        reduction.gather(part, bucket)
        found.append(bucket)
    return found


def both_ways(control: Control, strategy: str, shards: int, dtype: torch.dtype) -> tuple[bool, list[bool]]:
    """Was memory shared, and was each result bit-equal to what sockets give."""
    topology = Topology(control.rank, control.world_size, shards)
    groups = open_groups(topology, timeout_s=30)
    results = [
        reduced_and_gathered(Reduction(topology, g, strategy=strategy), control.rank, dtype)
        for g in (groups, replace(groups, slots=None))
    ]
    return groups.slots is not None, [torch.equal(a, b) for a, b in zip(*results, strict=True)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "world, strategy, shards",
    [(2, "flat", 2), (3, "flat", 3), (4, "flat", 4), (4, "hierarchical", 2), (4, "node", 2)],
)
def test_the_same_bits_as_through_sockets(world, strategy, shards, dtype):
    for is_shared, equal in run_ranks(world, both_ways, strategy, shards, dtype):
        assert is_shared and all(equal)


def slow_reader(control: Control, turns: int) -> list[bool]:
    """Whether what this rank reads of each turn is whole and of that turn, with as many turns begun as may be, while
    rank 1 reads late and rank 0 fills as soon as it may."""
    slots, read = open_groups(Topology(control.rank, 2, 2), timeout_s=30).slots, []
    assert slots is not None

    def take(turn: int, filled: Callable[[], list[torch.Tensor]]) -> None:
        first, second = filled()
        if control.rank == 1:
            time.sleep(0.02)
        read.append(bool((first == 10 * turn).all() and (second == 10 * turn + 1).all()))

    in_flight = InFlight()
    for turn in range(turns):
        slots.own(1000, torch.float32).fill_(10.0 * turn + control.rank)
        in_flight.add(partial(take, turn, slots.start(1000, torch.float32)))
    in_flight.finish()
    return read


def test_a_slot_is_not_filled_again_before_all_have_read_it():
    assert run_ranks(2, slow_reader, 4 * TURNS) == 2 * [4 * TURNS * [True]]


def too_few_turns(control: Control) -> list[bool]:
    with patch.object(shared_memory, "TURNS", IN_FLIGHT):
        return slow_reader(control, 4 * TURNS)


def test_with_fewer_turns_a_slow_reader_reads_what_is_too_new():
    assert not all(run_ranks(2, too_few_turns)[1])


def shared_if(control: Control, fault: str) -> tuple[bool, bool]:
    """Is memory shared if rank 1 has a fault, and is the sum right all the same."""
    faults = {
        "another host": patch.object(shared_memory, "_host", lambda: "elsewhere"),
        "no memfd": patch.object(os, "memfd_create", side_effect=OSError),
        "no room": patch.object(os, "posix_fallocate", side_effect=OSError(28, "No space left on device")),
        "no proc": patch.object(os, "readlink", side_effect=FileNotFoundError),
        "may not open": patch.object(os, "open", side_effect=PermissionError),
        "another process": patch.object(os, "getpid", lambda: os.getppid()),
    }
    topology = Topology(control.rank, 2, 2)
    if control.rank == 1:
        with faults[fault]:
            groups = open_groups(topology, timeout_s=30)
    else:
        groups = open_groups(topology, timeout_s=30)
    part = torch.empty(64)
    reduction = Reduction(topology, groups, strategy="flat")
    wire = reduction.wire(part, torch.float32)
    reduction.start(wire.fill_(control.rank + 1.0), part)()
    return groups.slots is not None, bool((part == 3).all())


@pytest.mark.parametrize("fault", ["another host", "no memfd", "no room", "no proc", "may not open", "another process"])
def test_ranks_that_cannot_share_memory_use_sockets(fault):
    assert run_ranks(2, shared_if, fault) == 2 * [(False, True)]


def slots_of_the_step(control: Control) -> bool:
    return step_groups(Topology(control.rank, control.world_size, 2), timeout_s=30).slots is None


def test_the_step_itself_hands_over_nothing_and_has_no_slots():
    assert run_ranks(4, slots_of_the_step) == 4 * [True]


def memory_files() -> int:
    """How many of the files that this process has open are shared memory."""
    links = [os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return sum("memfd:bert_mlperf" in link for link in links)


def files_open(control: Control) -> tuple[int, int]:
    """Files of three groups of slots, and what is left of them."""
    slots = [shared_memory.open_shared_slots(dist.group.WORLD) for _ in range(3)]
    assert all(slots)
    held = memory_files()
    slots.clear()
    return held, memory_files()


def test_no_file_is_left():
    assert run_ranks(2, files_open) == 2 * [(3 * 2, 0)]  # a mapping of each rank's memory


def test_devices_that_do_not_need_it_share_nothing(monkeypatch):
    monkeypatch.setattr(dist, "get_backend", lambda group: "nccl")
    assert shared_memory.open_shared_slots(object()) is None
    assert shared_memory.open_shared_slots(None) is None
