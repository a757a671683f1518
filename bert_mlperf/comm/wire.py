"""Which gradients lie where on the wire: a bucket goes in slices, each with the same stretch of all its parts.

bucket        part 0 = [a0 a1 a2] | part 1 = [b0 b1 b2] | ...
on the wire   a0 b0 ..., then a1 b1 ..., then a2 b2 ...
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from bert_mlperf.optim.layout import ALIGNMENT, Bucket, FlatLayout

SLICE = 2**20  # elements that are on the wire at a time on the CPU: they stay in its cache


@dataclass(frozen=True)
class Slice:
    """Elements [start, end) of all S parts of a bucket, which are on the wire together, one part behind the other."""

    start: int
    end: int
    copies: tuple[tuple[str, int, int, int], ...]  # elements [begin, end) of a parameter, where they go on the wire
    gaps: tuple[tuple[int, int], ...]  # padding on the wire

    def fill(self, wire: Tensor, gradients: Mapping[str, Tensor]) -> list[tuple[str, Tensor]]:
        """Puts the flat `gradients` of the bucket's parameters on the wire, zero where there are none. Returns sums of
        all that was copied, by parameter: a sum is finite only if all of it is."""
        sums = []
        for name, begin, end, at in self.copies:
            if name in gradients:
                gradient = gradients[name][begin:end]
                wire[at : at + end - begin].copy_(gradient)
                sums.append((name, gradient.sum(dtype=torch.float32)))
            else:
                wire[at : at + end - begin].zero_()
        for begin, end in self.gaps:
            wire[begin:end].zero_()
        return sums


def slices_of_buckets(layout: FlatLayout, device: torch.device) -> list[list[Slice]]:
    """The slices of each bucket: on the CPU as small as its cache wants them, elsewhere whole buckets."""
    wire_size = SLICE if device.type == "cpu" else layout.size
    return [slices(layout, bucket, wire_size) for bucket in layout.buckets]


def slices(layout: FlatLayout, bucket: Bucket, wire_size: int) -> list[Slice]:
    """A bucket in slices of at most `wire_size` elements on the wire (at least ALIGNMENT of each part)."""
    part_size, made = bucket.size // layout.num_shards, []
    step = max(wire_size // layout.num_shards // ALIGNMENT, 1) * ALIGNMENT
    for start in range(0, part_size, step):
        end, copies, gaps = min(start + step, part_size), [], []
        for shard in range(layout.num_shards):
            first = layout.part(bucket, shard).start + start  # of the buffer
            at, filled = shard * (end - start), 0
            for slot in sorted((layout.slots[name] for name in bucket.parameters), key=lambda slot: slot.start):
                low, high = max(slot.start, first) - first, min(slot.end, first + end - start) - first
                if low < high:
                    copies.append((slot.name, first + low - slot.start, first + high - slot.start, at + low))
                    gaps.append((at + filled, at + low))
                    filled = high
            gaps.append((at + filled, at + end - start))
        made.append(Slice(start, end, tuple(copies), tuple(gap for gap in gaps if gap[0] < gap[1])))
    return made
