"""How gradients are summed over the ranks and new weights handed out: the strategies behind `run.reduction`.

Legend: W ranks, S ranks of a shard group, R = W / S replicas, P elements of a bucket in bytes on the wire.

    flat          reduce-scatter over all ranks (S = W); gather over all ranks
    node          all-reduce over all ranks, each keeps its part; gather inside the shard group
    hierarchical  reduce-scatter inside the shard group, all-reduce of the part over the replicas; gather inside

Sums only: gradients arrive divided by counts of the global batch. What is sent has the wire dtype, what is added up
here is fp32 in the order of the ranks. gloo's own reduce-scatter sends as much as its all-reduce; sending each rank its
part and adding them up here sends half of that. Its gather copies more than it sends, so parts are sent there too; or,
between ranks of one host, not sent at all (comm/shared_memory.py).
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from bert_mlperf.comm.shared_memory import IN_FLIGHT, SLOT, SharedSlots
from bert_mlperf.comm.topology import Groups, Topology
from bert_mlperf.kernels.registry import Kernels, select

STRATEGIES = ("flat", "node", "hierarchical")
WIRE_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

HANDED_OUT = SLOT // 4  # less than a slot: every rank reads all of the slots of all others, and reading maps them

# torch 2.13 renamed them and warns of the old names
_all_gather_single = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_reduce_scatter_single = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


Finish = Callable[[], Tensor]  # waits until a sum is there; its squared norm (float64, 0-dimensional)


class InFlight:
    """What was started and is not finished: at most IN_FLIGHT at a time, finished in the order of the starts."""

    def __init__(self) -> None:
        self._started: deque[Callable[[], object]] = deque()

    def add(self, finish: Callable[[], object]) -> None:
        """Notes one more, and finishes the first so that the next may be started."""
        self._started.append(finish)
        if len(self._started) == IN_FLIGHT:
            self._started.popleft()()

    def finish(self) -> None:
        while self._started:
            self._started.popleft()()


class Reduction:
    """One strategy on the communicators of one lane. With one rank nothing is sent."""

    def __init__(self, topology: Topology, groups: Groups, *, strategy: str, kernels: Kernels | None = None) -> None:
        """Without `kernels` they are chosen by the device of what is added up."""
        assert strategy in STRATEGIES
        assert strategy != "flat" or topology.num_replicas == 1, "flat shards over all ranks"
        self.topology = topology
        self.strategy = strategy
        self._groups = groups
        self._kernels = kernels
        self._kept: dict[tuple[str, int], Tensor] = {}  # for new memory is slow
        self._turn = 0  # which of IN_FLIGHT: one is filled while the others are on their way

    def wire(self, part: Tensor, dtype: torch.dtype) -> Tensor:
        """Memory (whatever it holds) of the bucket that `start` sums into `part`: [part.numel() * S] of `dtype`, valid
        until IN_FLIGHT further calls. One shard in fp32 is its part."""
        if self.topology.shard_group_size == 1 and dtype == part.dtype:
            return part
        numel = part.numel() * self.topology.shard_group_size
        self._turn = (self._turn + 1) % IN_FLIGHT
        if self._groups.slots is not None and self.strategy != "node":
            return self._groups.slots.own(numel, dtype)
        return self._room("wire", numel, dtype, part.device)

    def start(self, bucket: Tensor, part: Tensor) -> Finish:
        """Begins to sum all ranks' `bucket` (wire dtype [size], from `wire`, maybe overwritten) into `part` (fp32
        [size / S], this rank's); what it returns waits until the sum is there. IN_FLIGHT may be begun at a time."""
        if self.strategy == "node":
            own = bucket.view(self.topology.shard_group_size, -1)[self.topology.shard]
            return self._then_add_up(_all_reduce(bucket, self._groups.world), [own], part)
        if self.topology.num_replicas == 1:
            return self._reduce_scatter(bucket, part)
        is_wire = part.dtype == bucket.dtype
        wire = part if is_wire else self._room("replicas", part.numel(), bucket.dtype, part.device)
        self._reduce_scatter(bucket, wire)()
        return self._then_add_up(_all_reduce(wire, self._groups.replica), [wire], part)

    def gather(self, part: Tensor, bucket: Tensor) -> None:
        """`bucket` [size] becomes the parts of all ranks of the shard group, `part` [size / S] this rank's one."""
        group = self._groups.shard
        parts, own = bucket.view(self.topology.shard_group_size, -1), self.topology.shard
        if group is not None and dist.get_backend(group) == "nccl":
            _all_gather_single(bucket, part, group=group)
            return
        if self._groups.slots is not None:
            _hand_out(part, parts, own, self._groups.slots)
        elif group is not None:
            _exchange({rank: part for rank in range(len(parts))}, dict(enumerate(parts)), own, group)()
        _copy(parts[own], part)

    def sum_over_shards(self, values: Tensor) -> None:
        """Replaces `values` by their sum over the shard group."""
        _all_reduce(values, self._groups.shard)()

    def _reduce_scatter(self, bucket: Tensor, part: Tensor) -> Finish:
        """Into `part`, fp32 or of the bucket's dtype."""
        group, slots, own = self._groups.shard, self._groups.slots, self.topology.shard
        sent = bucket.view(-1, part.numel())
        if group is None:
            return partial(self._add_up, [bucket], part)
        if dist.get_backend(group) == "nccl":
            summed = torch.empty_like(bucket[: part.numel()])
            _reduce_scatter_single(summed, bucket, op=dist.ReduceOp.SUM, group=group)
            return partial(self._add_up, [summed], part)
        if slots is not None:
            filled = slots.start(bucket.numel(), bucket.dtype)
            return lambda: self._add_up([slot.view_as(sent)[own] for slot in filled()], part)
        received = dict(enumerate(self._room("received", bucket.numel(), bucket.dtype, bucket.device).view_as(sent)))
        arrived = _exchange(dict(enumerate(sent)), received, own, group)
        received[own] = sent[own]
        return self._then_add_up(arrived, [received[rank] for rank in range(len(sent))], part)

    def _then_add_up(self, arrived: Callable[[], None], parts: Sequence[Tensor], part: Tensor) -> Finish:
        """Waits until the parts are there, and adds them up."""

        def finish() -> Tensor:
            arrived()
            return self._add_up(parts, part)

        return finish

    def _add_up(self, parts: Sequence[Tensor], part: Tensor) -> Tensor:
        """`part` becomes the sum of the parts, in their order (one may be `part` itself); its squared norm."""
        if self._kernels is None:
            self._kernels = select(part.device)
        return self._kernels.grad_norm_cast(parts, part)

    def _room(self, use: str, numel: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Memory of the turn, [numel], whatever it holds: the same for all calls of one use."""
        key = (use, self._turn)
        kept = self._kept.get(key)
        if kept is None or kept.dtype != dtype or kept.numel() < numel:
            kept = self._kept[key] = torch.empty(numel, dtype=dtype, device=device)
        return kept[:numel]


def _wait_for(works: Sequence[dist.Work | None]) -> None:
    for work in works:
        if work is not None:
            work.wait()


def _copy(target: Tensor, source: Tensor) -> None:
    """What is handed out may lie where it belongs."""
    if target.data_ptr() != source.data_ptr():
        target.copy_(source)


def _all_reduce(values: Tensor, group: dist.ProcessGroup | None) -> Callable[[], None]:
    works = [] if group is None else [dist.all_reduce(values, op=dist.ReduceOp.SUM, group=group, async_op=True)]
    return partial(_wait_for, works)


def _exchange(
    sent: Mapping[int, Tensor], received: Mapping[int, Tensor], own: int, group: dist.ProcessGroup
) -> Callable[[], None]:
    """Sends every other rank of the group its tensor and receives one of it; nothing goes to `own`, this rank."""
    others = [rank for rank in sent if rank != own]
    works = [dist.irecv(received[rank], group=group, group_src=rank) for rank in others]
    works += [dist.isend(sent[rank], group=group, group_dst=rank) for rank in others]
    return partial(_wait_for, works)


def _hand_out(part: Tensor, parts: Tensor, own: int, slots: SharedSlots) -> None:
    """`parts` [S, size / S] becomes the `part` of every rank but this one, HANDED_OUT bytes at a time: the next ones
    are put into slots before the last ones are read."""
    most, in_flight = HANDED_OUT // part.itemsize, InFlight()
    for start in range(0, part.numel(), most):
        piece = part[start : start + most]
        slots.own(piece.numel(), part.dtype).copy_(piece)
        here = parts[:, start : start + most]
        in_flight.add(partial(_take_parts, here, own, slots.start(piece.numel(), part.dtype)))
    in_flight.finish()


def _take_parts(parts: Tensor, own: int, filled: Callable[[], list[Tensor]]) -> None:
    for rank, slot in enumerate(filled()):
        if rank != own:
            parts[rank].copy_(slot)
