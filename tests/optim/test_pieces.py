"""Pieces of a shard: every tensor's elements once, wherever the weights lie; shards with nothing in them."""

import pytest
import torch
from hypothesis import given, settings
from torch import nn

from bert_mlperf.optim.flat import FlatBuffers
from bert_mlperf.optim.layout import TensorRange, make_layout
from bert_mlperf.optim.sharded_lamb import Reduced, ShardedLamb, pieces_of
from tests.optim.layouts import layouts
from tests.train.small import small_run


@settings(deadline=None, max_examples=50)
@given(layouts())
def test_pieces_are_those_of_the_tensors_in_gradient_weights_and_buffer(case):
    layout, _, _, decayed, _ = case
    ranges = [TensorRange(s.name, s.start, s.end, s.name in decayed) for s in layout.slots.values()]
    seen = torch.full((layout.size,), -1)  # in the buffer, by all shards together
    for shard in range(layout.num_shards):
        of_buffer = torch.cat([torch.arange(part.start, part.end) for part in layout.parts(shard)])
        for in_buffer in (True, False):
            for piece in pieces_of(layout, ranges, shard=shard, in_buffer=in_buffer):
                here = slice(piece.shard_start, piece.shard_start + piece.length)
                there = torch.arange(piece.buffer_start, piece.buffer_start + piece.length)
                assert piece.length > 0 and torch.equal(of_buffer[here], there)
                assert piece.weight_start == (piece.buffer_start if in_buffer else piece.shard_start)
                if in_buffer:
                    assert (seen[there] == -1).all()
                    seen[there] = piece.tensor
    wanted = torch.full((layout.size,), -1)
    for number, r in enumerate(ranges):
        wanted[r.start : r.end] = number
    assert torch.equal(seen, wanted)


class Two(nn.Module):
    """A matrix of 64 numbers and a bias of 3, all 1."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.b = nn.Parameter(torch.ones(64)), nn.Parameter(torch.ones(3))


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("shard", range(4))
def test_a_shard_without_anything_adapted_is_updated(shard, precision):
    """64 decayed numbers lie in shard 0 of 4, a bias of 3 in shard 1, nothing in the others."""
    layout = make_layout({"w": (64,), "b": (3,)}, units=[["w", "b"]], decayed=["w"], num_shards=4)
    ranges = [TensorRange(s.name, s.start, s.end, s.name == "w") for s in layout.slots.values()]
    flat = FlatBuffers(Two(), layout, shard=shard, precision=precision)
    recipe = small_run().recipe.model_copy(update={"base_learning_rate": 0.1, "warmup_steps": 0})
    lamb = ShardedLamb(flat, ranges, recipe, sum_over_shards=lambda values: None)
    lamb.step(Reduced.of(torch.full((layout.shard_size,), 0.01)))
    moved = 64 if shard == 0 else 3 if shard == 1 else 0
    (part,) = layout.parts(shard)
    assert int((flat.weights[part.start : part.start + moved] != 1).sum()) == moved
    assert torch.equal(flat.weights[part.start : part.end], flat.shard_weights.to(flat.weights.dtype))
    elsewhere = torch.cat([flat.weights[: part.start], flat.weights[part.start + moved :]])
    assert set(elsewhere.tolist()) <= {0.0, 1.0}, "other shards and padding are left alone"
