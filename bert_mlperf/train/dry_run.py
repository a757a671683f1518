"""What one rank of a layout would hold and send, without the other ranks and without devices: `bert-mlperf plan`.

The state is built as in a run, by the same code, but on the meta device (tensors without storage) and with torch's fake
process group, in which every rank has all groups and nothing is sent.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from bert_mlperf.comm.control import Control
from bert_mlperf.comm.reduction import STRATEGIES, WIRE_DTYPES
from bert_mlperf.comm.shared_memory import IN_FLIGHT, SLOT, TURNS
from bert_mlperf.comm.topology import Topology, open_groups
from bert_mlperf.comm.wire import SLICE
from bert_mlperf.config.sharding import ShardingPlan, sharding_plan
from bert_mlperf.config.system import Run
from bert_mlperf.errors import UserError
from bert_mlperf.model.bert import BertForPreTraining
from bert_mlperf.optim.layout import ALIGNMENT, FlatLayout
from bert_mlperf.train.setup import shard_state
from bert_mlperf.train.step import TrainState

MOST_RANKS = 65_536
META = torch.device("meta")


@dataclass(frozen=True)
class Traffic:
    """Bytes that a rank sends per step, by ring algorithms; the few bytes of norms and losses are left out."""

    reduce_scatter: int
    all_reduce: int
    gather: int

    @property
    def total(self) -> int:
        return self.reduce_scatter + self.all_reduce + self.gather


@dataclass(frozen=True)
class Memory:
    """Bytes of a rank; activations and what a backend keeps for itself are left out."""

    weights: int  # all of them, in the compute dtype
    gradients: int  # of all parameters, as backward makes them; buckets that are on the wire let go of theirs
    accumulated: int  # fp32 sum over micro-batches
    state: int  # fp32 weights and both moments of the shard
    reduced: int  # fp32 gradient of the shard
    buffers: int  # what is on the wire, received, and handed out

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.accumulated + self.state + self.reduced + self.buffers


@dataclass(frozen=True)
class Border:
    """An end of a shard: `offset` elements into a tensor of the reference."""

    tensor: str
    offset: int


@dataclass(frozen=True)
class DryRun:
    """One rank under one strategy."""

    plan: ShardingPlan
    topology: Topology
    groups: dict[str, list[int]]  # world, shard, replica: the ranks with whom this rank is in a communicator
    state: TrainState
    first: Border
    last: Border
    num_pieces: int  # of tensors, in the shard
    num_cut: int  # tensors of which the shard holds a part
    traffic: Traffic
    memory: Memory


def dry_runs(run: Run, *, nodes: int, rank: int) -> dict[str, DryRun | str]:
    """By strategy; a sentence where a strategy cannot be. UserError if there is no such rank."""
    world_size = nodes * run.ranks_per_node
    if not 1 <= world_size <= MOST_RANKS:
        raise UserError(f"--nodes {nodes} makes {world_size} ranks, expected 1 to {MOST_RANKS:,}; give another number.")
    if not 0 <= rank < world_size:
        raise UserError(f"--rank is {rank}, expected 0 to {world_size - 1} for {world_size} ranks; give one of these.")
    found: dict[str, DryRun | str] = {}
    for strategy in STRATEGIES:
        shard_group = "auto" if strategy == "flat" else run.shard_group
        chosen = run.model_copy(update={"reduction": strategy, "shard_group": shard_group})
        try:
            found[strategy] = dry_run(chosen, rank=rank, world_size=world_size)
        except UserError as error:
            found[strategy] = str(error)
    return found


def dry_run(run: Run, *, rank: int, world_size: int) -> DryRun:
    """Rank `rank` of `world_size` under `run.reduction`. UserError if they do not fit."""
    plan = sharding_plan(run, world_size=world_size)
    topology = Topology(rank, world_size, plan.shard_group_size)
    with fake_ranks(rank, world_size):
        groups = group_ranks(topology)
        with META:
            model = BertForPreTraining(run.model)
        state = shard_state(model, run, plan, Control(rank=rank, world_size=world_size), META)
    held = sorted(
        (piece.shard_start, piece, tensor)
        for tensor in state.optimizer.ranges
        for piece in state.flat.layout.pieces(tensor.start, tensor.end, topology.shard)
    )
    (_, first, first_tensor), (_, last, last_tensor) = held[0], held[-1]
    return DryRun(
        plan,
        topology,
        groups,
        state,
        first=Border(first_tensor.name, first.start - first_tensor.start),
        last=Border(last_tensor.name, last.end - last_tensor.start),
        num_pieces=len(held),
        num_cut=sum((piece.start, piece.end) != (tensor.start, tensor.end) for _, piece, tensor in held),
        traffic=traffic(plan, topology, state),
        memory=memory(
            plan,
            topology,
            state,
            backend="gloo" if run.device == "cpu" else "nccl",
            ranks_per_node=run.ranks_per_node,
        ),
    )


@contextmanager
def fake_ranks(rank: int, world_size: int) -> Iterator[None]:
    """A default process group in which this process is one rank of many."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def group_ranks(topology: Topology) -> dict[str, list[int]]:
    """Ranks of the communicators of one lane, as they were opened; a group of one rank has none."""
    groups = open_groups(topology, timeout_s=60).communicators()
    return {
        kind: [topology.rank] if group is None else dist.get_process_group_ranks(group)
        for kind, group in groups.items()
    }


def traffic(plan: ShardingPlan, topology: Topology, state: TrainState) -> Traffic:
    """A ring of n sends (n-1)/n of a buffer for a reduce-scatter or a gather, and twice that for an all-reduce."""

    def share(ranks: int, size: float) -> float:
        return (ranks - 1) / ranks * size

    ranks, shards, replicas = topology.world_size, topology.shard_group_size, topology.num_replicas
    gradients = state.flat.layout.size * WIRE_DTYPES[plan.wire].itemsize
    if plan.strategy == "node":
        reduce_scatter, all_reduce = 0.0, 2 * share(ranks, gradients)
    else:
        reduce_scatter, all_reduce = share(shards, gradients), 2 * share(replicas, gradients / shards)
    return Traffic(round(reduce_scatter), round(all_reduce), round(share(shards, state.flat.weights.nbytes)))


def memory(plan: ShardingPlan, topology: Topology, state: TrainState, *, backend: str, ranks_per_node: int) -> Memory:
    """Sizes of the tensors that the state holds, each counted once, and of the largest that a bucket needs."""
    flat, optimizer = state.flat, state.optimizer
    counted: set[int] = set()

    def size(*tensors: Tensor | None) -> int:
        new = [tensor for tensor in tensors if tensor is not None and id(tensor) not in counted]
        counted.update(map(id, new))
        return sum(tensor.nbytes for tensor in new)

    layout = flat.layout
    masters = [] if flat.weights.dtype == torch.float32 else flat.shard_parts  # in fp32 they are among the weights
    numbers = sum(slot.end - slot.start for slot in layout.slots.values())
    return Memory(
        weights=size(flat.weights),
        gradients=numbers * flat.weights.itemsize,
        accumulated=size(flat.accumulated),
        state=size(*masters, optimizer.first_moment, optimizer.second_moment),
        reduced=layout.shard_size * torch.float32.itemsize,
        buffers=largest_buffers(plan, topology, layout, backend=backend, ranks_per_node=ranks_per_node),
    )


def largest_buffers(
    plan: ShardingPlan,
    topology: Topology,
    layout: FlatLayout,
    *,
    backend: str,
    ranks_per_node: int,
) -> int:
    """What reducing the largest bucket needs beside the state, in bytes (see comm/reduction.py)."""
    wire, shards = WIRE_DTYPES[plan.wire], topology.shard_group_size
    bucket = max(bucket.size for bucket in layout.buckets)
    on_wire = bucket if backend == "nccl" else min(bucket, max(SLICE // shards // ALIGNMENT, 1) * ALIGNMENT * shards)
    wires = 0 if shards == 1 and wire == torch.float32 else IN_FLIGHT * on_wire * wire.itemsize
    is_scattered = plan.strategy != "node" and shards > 1
    of_replicas = plan.strategy == "hierarchical" and topology.num_replicas > 1 and wire != torch.float32
    parts = IN_FLIGHT * (on_wire // shards) * wire.itemsize if of_replicas else 0
    if backend == "nccl":
        return wires + parts + (on_wire // shards * wire.itemsize if is_scattered else 0)
    if shards > 1 and ranks_per_node % shards == 0:  # slots of both lanes
        return 2 * TURNS * SLOT + parts + (0 if is_scattered else wires)
    return wires + parts + (wires if is_scattered else 0)
