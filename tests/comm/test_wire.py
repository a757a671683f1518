"""Slices of a bucket: on the wire every part has its own elements, zero where there is no gradient."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_mlperf.comm.wire import slices
from bert_mlperf.optim.layout import ALIGNMENT
from tests.optim.layouts import layouts


@settings(deadline=None)
@given(layouts(), st.integers(1, 5000), st.data())
def test_slices_carry_each_part_once_and_zeros_for_what_is_missing(case, wire_size, data):
    layout, shapes, *_ = case
    missing = data.draw(st.sets(st.sampled_from(sorted(shapes))))
    flat, gradients = torch.zeros(layout.size), {}
    for slot in layout.slots.values():
        if slot.name not in missing:
            flat[slot.start : slot.end] = torch.arange(slot.start, slot.end) + 1.0
            gradients[slot.name] = flat[slot.start : slot.end].clone()
    for bucket in layout.buckets:
        at, part_size = 0, bucket.size // layout.num_shards
        for piece in slices(layout, bucket, wire_size):
            assert piece.start == at < piece.end and (piece.end - at) % ALIGNMENT == 0
            assert (piece.end - at) * layout.num_shards <= max(wire_size, ALIGNMENT * layout.num_shards)
            wire = torch.full(((piece.end - at) * layout.num_shards,), float("nan"))
            piece.fill(wire, gradients)
            for shard, got in enumerate(wire.view(layout.num_shards, -1)):
                first = layout.part(bucket, shard).start
                assert torch.equal(got, flat[first + at : first + piece.end])
            at = piece.end
        assert at == part_size


@settings(deadline=None)
@given(layouts())
def test_a_large_wire_takes_a_bucket_at_once(case):
    layout, *_ = case
    for bucket in layout.buckets:
        (whole,) = slices(layout, bucket, layout.size)
        assert (whole.start, whole.end) == (0, bucket.size // layout.num_shards)
