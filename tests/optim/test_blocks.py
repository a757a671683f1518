"""Blocks of a shard: every element in one of them, every tensor's elements named once."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_mlperf.optim.lamb import num_rows
from bert_mlperf.optim.layout import TensorRange, make_layout
from bert_mlperf.optim.sharded_lamb import Reduced, ShardedLamb, blocks_of, row_counts
from tests.optim.layouts import layouts
from tests.train.small import small_run


@settings(deadline=None, max_examples=50)
@given(layouts(), st.sampled_from([50, 64, 100, 1000, 2**16]))
def test_blocks_are_the_shard_and_their_pieces_those_of_the_layout(case, size):
    layout, _, _, decayed, _ = case
    ranges = [TensorRange(s.name, s.start, s.end, s.name in decayed) for s in layout.slots.values()]
    for shard in range(layout.num_shards):
        parts = layout.parts(shard)
        owner, seen = torch.full((layout.shard_size,), -1), torch.zeros(layout.shard_size, dtype=torch.int64)
        rows, blocks = 0, blocks_of(layout, ranges, shard=shard, size=size)
        for block in blocks:
            length = block.here.stop - block.here.start
            assert 0 < length <= size and length == block.there.stop - block.there.start
            assert block.here.start - block.there.start == parts[block.bucket].shard_start
            assert block.here.stop <= parts[block.bucket].shard_end
            seen[block.here] += 1
            for piece in block.pieces:
                assert 0 <= piece.elements.start < piece.elements.stop <= length
                here = owner[block.here][piece.elements]
                assert (here == -1).all()
                here.fill_(piece.number)
                assert piece.rows.start == rows
                rows += num_rows(here.numel()) if ranges[piece.number].adapted else 0
                assert piece.rows.stop == rows
        assert (seen == 1).all()
        of_rows = [p.number for block in blocks for p in block.pieces for _ in range(p.rows.start, p.rows.stop)]
        counts = row_counts(blocks)
        assert [n for n, count in counts.items() for _ in range(count)] == of_rows, "rows of a tensor are in one run"
        wanted = torch.full((layout.shard_size,), -1)
        for number, r in enumerate(ranges):
            for piece in layout.pieces(r.start, r.end, shard):
                wanted[piece.shard_start : piece.shard_end] = number
        assert torch.equal(owner, wanted)


@pytest.mark.parametrize("shard", range(4))
def test_a_shard_without_anything_adapted_is_updated(shard):
    """64 decayed numbers lie in shard 0 of 4, a bias of 3 in shard 1, nothing in the others."""
    layout = make_layout({"w": (64,), "b": (3,)}, units=[["w", "b"]], decayed=["w"], num_shards=4)
    ranges = [TensorRange(s.name, s.start, s.end, s.name == "w") for s in layout.slots.values()]
    part = torch.ones(layout.shard_size)
    lamb = ShardedLamb(
        layout, ranges, small_run().recipe, shard=shard, weights=[part], sum_over_shards=lambda values: None
    )
    lamb.step(Reduced.of([torch.full((layout.shard_size,), 0.01)]))
    moved = int((part != 1).sum())
    assert moved == {0: 64, 1: 3}.get(shard, 0)
