"""Reduction of gradients under backward, and of gathering of weights under the next forward.

    backward    layer L-1 ... layer 0, embeddings         a bucket is reduced as soon as all its gradients are there
    update      each rank its shard, when all buckets are reduced
    forward     embeddings, layer 0 ... layer L-1          each waits for the bucket that holds its weights, no other

The order is fixed: buckets are reduced in the order of the layout (last layers first) and gathered in the opposite one,
on every rank, whichever gradient is complete first. Each bucket is reduced once and gathered once per step.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from bert_mlperf.comm.lanes import Lane, Pending
from bert_mlperf.comm.reduction import Finish, InFlight, Reduction
from bert_mlperf.comm.wire import slices_of_buckets
from bert_mlperf.optim.flat import FlatBuffers
from bert_mlperf.optim.layout import TensorRange
from bert_mlperf.optim.sharded_lamb import Reduced


class GradientReduction:
    """Reduces the gradients of `flat`, bucket by bucket, into this rank's fp32 parts of the buckets."""

    def __init__(self, flat: FlatBuffers, reduction: Reduction, lane: Lane, *, wire_dtype: torch.dtype) -> None:
        self._flat, self._reduction, self._lane = flat, reduction, lane
        self._bucket_of = {name: i for i, b in enumerate(flat.layout.buckets) for name in b.parameters}
        self._slices = slices_of_buckets(flat.layout, flat.weights.device)
        self._wire_dtype = wire_dtype
        self._missing: list[set[str]] = []
        self._pending: list[Pending] = []
        self._shard = torch.empty(flat.layout.shard_size, dtype=torch.float32, device=flat.weights.device)
        self._parts = [self._shard[part.shard_start : part.shard_end] for part in flat.layout.parts(flat.shard)]
        self._in_flight = InFlight()  # slices on their way
        self._squares: list[Tensor] = []  # of each slice
        self._sums: list[tuple[str, Tensor]] = []
        self._is_open = False

    def watch(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """From now on every parameter tells when its gradient is complete."""
        for name, parameter in parameters.items():
            parameter.register_post_accumulate_grad_hook(partial(self._complete, name))

    def open(self) -> None:
        """Called before the last backward of a step: the gradients that it completes may be reduced."""
        assert not self._is_open and not self._pending, "the step before was not finished"
        self._missing = [set(bucket.parameters) for bucket in self._flat.layout.buckets]
        self._sums, self._squares = [], []
        self._is_open = True

    def finish(self) -> Reduced:
        """The sum over all ranks; what it holds may be overwritten until the next `open`. Buckets with parameters that
        got no gradient are reduced now (theirs are zero)."""
        assert self._is_open
        self._submit(lambda missing: True)
        self._is_open = False
        for pending in self._pending:
            pending.wait()
        assert len(self._pending) == len(self._flat.layout.buckets), "every bucket is reduced once"
        self._pending = []
        return Reduced(self._shard, torch.stack(self._squares).sum())

    def not_finite(self, ranges: Sequence[TensorRange]) -> list[str]:
        """Names of the tensors in whose parameters this rank's own gradient held Inf or NaN in the last step."""
        bad = {name for name, value in self._sums if not value.isfinite()}
        slots = [self._flat.layout.slots[name] for name in bad]
        return [r.name for r in ranges if any(slot.start <= r.start < slot.end for slot in slots)]

    def _complete(self, name: str, _: Tensor) -> None:
        if self._is_open:
            missing = self._missing[self._bucket_of[name]]
            assert name in missing, f"the gradient of {name} is complete twice"
            missing.remove(name)
            self._submit(lambda missing: not missing)

    def _submit(self, is_ready: Callable[[set[str]], bool]) -> None:
        """Hands in the buckets that are next in the order, as far as they are ready."""
        buckets = self._flat.layout.buckets
        while len(self._pending) < len(buckets) and is_ready(self._missing[len(self._pending)]):
            number = len(self._pending)
            work = partial(self._reduce, number)
            self._pending.append(self._lane.submit(work, name=f"reduce {number}"))

    def _reduce(self, number: int) -> None:
        """Puts slice after slice on the wire: the next one is filled while others are on their way, also those of the
        next buckets if there is overlap."""
        gradients = self._flat.take_gradients(self._flat.layout.buckets[number])
        for piece in self._slices[number]:
            target = self._parts[number][piece.start : piece.end]
            wire = self._reduction.wire(target, self._wire_dtype)
            self._sums += piece.fill(wire, gradients)
            self._in_flight.add(partial(self._finish, self._reduction.start(wire, target)))
        if not self._lane.overlaps or number == len(self._slices) - 1:
            self._in_flight.finish()

    def _finish(self, finish: Finish) -> None:
        self._squares.append(finish())


class WeightGather:
    """Hands the new weights of all shards to everyone, in the order of forward."""

    def __init__(self, flat: FlatBuffers, reduction: Reduction, lane: Lane) -> None:
        self._flat, self._reduction, self._lane = flat, reduction, lane
        self._pending: dict[int, Pending] = {}

    def watch(self, units: Mapping[nn.Module, list[str]]) -> None:
        """From now on each module (with the names of the parameters that it reads) waits for its weights before its
        forward."""
        bucket_of = {name: i for i, b in enumerate(self._flat.layout.buckets) for name in b.parameters}
        for module, names in units.items():
            module.register_forward_pre_hook(partial(self._wait_for, sorted({bucket_of[name] for name in names})))

    def start(self) -> None:
        """Begins to hand out the weights as the optimizer has left them in this rank's parts of the buffer."""
        assert not self._pending, "the weights of the step before were not all used"
        for number in reversed(range(len(self._flat.layout.buckets))):
            self._pending[number] = self._lane.submit(partial(self._gather, number), name=f"gather {number}")

    def wait(self) -> None:
        """Afterwards all weights are there."""
        for number in list(self._pending):
            self._pending.pop(number).wait()

    def in_fp32(self) -> dict[str, Tensor]:
        """The fp32 weights of all shards by parameter name, on every rank; all ranks call this."""
        self.wait()
        full = torch.empty(self._flat.layout.size, dtype=torch.float32, device=self._flat.weights.device)
        for bucket, part in zip(self._flat.layout.buckets, self._flat.shard_parts, strict=True):
            self._reduction.gather(part, full[bucket.start : bucket.end])
        return self._flat.split(full)

    def _wait_for(self, buckets: list[int], *_: object) -> None:
        for number in buckets:
            if number in self._pending:
                self._pending.pop(number).wait()

    def _gather(self, number: int) -> None:
        bucket, weights = self._flat.layout.buckets[number], self._flat.weights
        own = self._flat.layout.part(bucket, self._flat.shard)
        self._reduction.gather(weights[own.start : own.end], weights[bucket.start : bucket.end])
