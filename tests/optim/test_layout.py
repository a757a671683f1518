"""Flat layouts: every element has one owner, shards are equal, buckets close where they should."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_mlperf.config.model import NAMED_MODELS, ModelConfig
from bert_mlperf.model.bert import BertForPreTraining
from bert_mlperf.model.tensors import tensor_specs
from bert_mlperf.optim.layout import ALIGNMENT, Bucket, FlatLayout, TensorRange, make_layout
from bert_mlperf.train.setup import tensor_range
from tests.optim.layouts import layouts
from tests.train.small import small_model


def numel(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel()


def shard_of(layout: FlatLayout, flat: torch.Tensor, shard: int) -> torch.Tensor:
    """The shard's elements by `parts` alone; -1 where none says what belongs."""
    values = torch.full((layout.shard_size,), -1)
    for part in layout.parts(shard):
        values[part.shard_start : part.shard_end] = flat[part.start : part.end]
    return values


@settings(deadline=None)
@given(layouts())
def test_every_element_of_every_parameter_is_in_one_piece_of_one_shard(case):
    layout, shapes, *_ = case
    assert layout.slots.keys() == shapes.keys()
    flat, owners = torch.arange(layout.size), torch.zeros(layout.size, dtype=torch.int64)
    places = torch.zeros(layout.num_shards, layout.shard_size, dtype=torch.int64)
    for shard in range(layout.num_shards):
        values = shard_of(layout, flat, shard)
        for slot in layout.slots.values():
            pieces = layout.pieces(slot.start, slot.end, shard)
            assert all(a.end <= b.start and a.shard_end <= b.shard_start for a, b in pairwise(pieces))
            for piece in pieces:
                assert piece.start < piece.end
                owners[piece.start : piece.end] += 1
                places[shard, piece.shard_start : piece.shard_end] += 1
                here = values[piece.shard_start : piece.shard_end]
                assert torch.equal(here, flat[piece.start : piece.end]), "pieces and parts disagree"
    wanted = torch.zeros_like(owners)
    for name, slot in layout.slots.items():
        assert slot.shape == shapes[name] and slot.end - slot.start == numel(shapes[name])
        wanted[slot.start : slot.end] += 1
    assert torch.equal(owners, wanted) and wanted.max() <= 1
    assert places.max() <= 1 and places.sum() == sum(map(numel, shapes.values()))


@settings(deadline=None)
@given(layouts())
def test_shards_are_equal_and_together_the_whole_buffer(case):
    layout, *_ = case
    flat = torch.arange(layout.size)
    shards = [shard_of(layout, flat, shard) for shard in range(layout.num_shards)]
    assert torch.equal(torch.cat(shards).sort().values, flat)
    for bucket in layout.buckets:
        parts = [layout.part(bucket, shard) for shard in range(layout.num_shards)]
        assert len({part.end - part.start for part in parts}) == 1
        assert [p.start for p in parts] + [bucket.end] == [bucket.start] + [p.end for p in parts]
        assert len({part.shard_start for part in parts}) == 1


@settings(deadline=None)
@given(layouts())
def test_everything_begins_aligned(case):
    layout, *_ = case
    starts = [slot.start for slot in layout.slots.values()]
    starts += [part.start for shard in range(layout.num_shards) for part in layout.parts(shard)]
    starts += [part.shard_start for part in layout.parts(0)]
    assert all(start % ALIGNMENT == 0 for start in starts)
    assert layout.shard_size % ALIGNMENT == 0


@settings(deadline=None)
@given(layouts())
def test_buckets_hold_whole_units_in_order_and_close_when_they_are_full(case):
    layout, shapes, units, _, bucket_size = case
    left = [set(unit) for unit in units if unit]
    for number, bucket in enumerate(layout.buckets):
        names, held, before_last = set(bucket.parameters), 0, 0
        while left and left[0] <= names:
            unit = left.pop(0)
            names -= unit
            before_last, held = held, held + sum(numel(shapes[name]) for name in unit)
        assert not names, "a unit is cut"
        if bucket_size is not None:
            assert before_last < bucket_size, "closed too late"
            assert held >= bucket_size or number == len(layout.buckets) - 1, "closed too early"
    assert not left
    assert bucket_size is not None or len(layout.buckets) == 1


@settings(deadline=None)
@given(layouts())
def test_a_bucket_holds_its_parameters_decayed_ones_first_and_little_padding(case):
    layout, _, _, decayed, _ = case
    end = 0
    for bucket in layout.buckets:
        assert bucket.start == end
        at = bucket.start
        for name in bucket.parameters:
            slot = layout.slots[name]
            assert at <= slot.start < at + ALIGNMENT and slot.end <= bucket.end
            at = slot.end
        order = [name in decayed for name in bucket.parameters]
        assert order == sorted(order, reverse=True)
        assert bucket.end - at < ALIGNMENT * (layout.num_shards + 1)
        end = bucket.end
    assert end == layout.size == layout.shard_size * layout.num_shards


def test_a_single_element_in_more_shards_than_elements():
    layout = make_layout({"x": ()}, units=[["x"]], decayed=[], num_shards=5)
    assert (layout.size, layout.shard_size) == (5 * ALIGNMENT, ALIGNMENT)
    owned = [layout.pieces(layout.slots["x"].start, layout.slots["x"].end, shard) for shard in range(5)]
    assert [len(pieces) for pieces in owned] == [1, 0, 0, 0, 0]


def test_only_empty_parameters_still_make_shards():
    layout = make_layout({"x": (0, 3), "y": (0,)}, units=[["x"], ["y"]], decayed=["x"], num_shards=2, bucket_size=1)
    assert len(layout.buckets) == 1 and layout.size == 2 * ALIGNMENT
    assert layout.pieces(0, 0, 0) == []


@pytest.mark.parametrize("units", [[["a"]], [["a", "b"], ["b"]], [["a", "b", "c"]]], ids=["none", "two", "unknown"])
def test_a_parameter_that_is_not_in_exactly_one_unit_is_refused(units):
    with pytest.raises(AssertionError, match="one unit"):
        make_layout({"a": (2,), "b": (3,)}, units=units, decayed=[])


def model_layout(config: ModelConfig, **options) -> tuple[FlatLayout, list[TensorRange]]:
    """As a run lays a model out, without its weights."""
    with torch.device("meta"):
        model = BertForPreTraining(config)
    specs = tensor_specs(config)
    layout = make_layout(
        {name: tuple(p.shape) for name, p in model.named_parameters()},
        units=model.gradient_units(),
        decayed=[spec.parameter for spec in specs if spec.adapted],
        **options,
    )
    return layout, [tensor_range(spec, layout) for spec in specs]


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 5), st.none() | st.integers(1, 20_000))
def test_query_key_and_value_are_thirds_of_their_fused_parameter(num_shards, bucket_size):
    layout, ranges = model_layout(small_model(), num_shards=num_shards, bucket_size=bucket_size)
    at = {r.name: (r.start, r.end) for r in ranges}
    for layer in range(2):
        for kind, ours in (("kernel", "weight"), ("bias", "bias")):
            slot = layout.slots[f"encoder.layers.{layer}.qkv.{ours}"]
            third = (slot.end - slot.start) // 3
            for block, role in enumerate(("query", "key", "value")):
                start = slot.start + block * third
                assert at[f"bert/encoder/layer_{layer}/attention/self/{role}/{kind}"] == (start, start + third)


@pytest.mark.parametrize("name", ["bert-base", "bert-large"])
def test_tensors_cover_every_parameter_once_and_the_tied_decoder_is_none(name):
    config = NAMED_MODELS[name]
    layout, ranges = model_layout(config, num_shards=8, bucket_size=13_107_200)
    covered = sorted((r.start, r.end) for r in ranges)
    assert all(a[1] <= b[0] for a, b in pairwise(covered))
    assert sum(end - start for start, end in covered) == config.num_parameters
    assert sum(slot.end - slot.start for slot in layout.slots.values()) == config.num_parameters
    word = (config.vocab_size, config.hidden_size)
    assert [slot.name for slot in layout.slots.values() if slot.shape == word] == ["embeddings.word.weight"]


# BERT-Large by hand. next sentence 1,051,650; masked LM 1,082,170; a layer 12,596,224, of which norm and output
# 4,197,376, intermediate 4,198,400, attention norm 2,048 and output 1,049,600, query-key-value 3,148,800; embeddings
# 31,782,912. Only the output bias (30,522, +6) and the classifier's bias (2, +62) are no multiples of 64. Buckets of 25
# MiB in bf16 (13,107,200 elements): heads and layer 23; four of layers 22 to 18, four times to layer 3; two like the
# first of these, of layers 2, 1 and most of 0; the rest and the embeddings.
BERT_LARGE = 336_226_108
FIRST, FIVE_LAYERS, LAST = 14_730_112, (16_793_600, 16_794_624, 13_647_872, 15_745_024), 35_983_360
PADDED = {  # shards: the same as multiples of 64 x shards
    1: (FIRST, FIVE_LAYERS, LAST),
    8: (14_730_240, FIVE_LAYERS, LAST),
    64: (14_733_312, (16_793_600, 16_797_696, 13_647_872, 15_745_024), LAST),
}


@pytest.mark.parametrize("num_shards", PADDED)
def test_bert_large_against_a_table_made_by_hand(num_shards):
    layout, _ = model_layout(NAMED_MODELS["bert-large"], num_shards=num_shards, bucket_size=13_107_200)
    first, middle, last = PADDED[num_shards]
    assert [bucket.size for bucket in layout.buckets] == [first, *4 * middle, *middle[:2], last]
    assert layout.size == first + 4 * sum(middle) + sum(middle[:2]) + last
    assert sum(FIVE_LAYERS) == 5 * 12_596_224
    assert FIRST - 68 + 4 * sum(FIVE_LAYERS) + sum(FIVE_LAYERS[:2]) + LAST == BERT_LARGE
    assert NAMED_MODELS["bert-large"].num_parameters == BERT_LARGE
    assert (layout.size - BERT_LARGE) / BERT_LARGE < 1e-4
    assert layout.buckets[0].parameters[-1].startswith(("next", "masked", "encoder.layers.23"))
    assert layers_in(layout.buckets[1]) == {22, 21} and layers_in(layout.buckets[-1]) == {0}
    assert "embeddings.word.weight" in layout.buckets[-1].parameters


def layers_in(bucket: Bucket) -> set[int]:
    return {int(name.split(".")[2]) for name in bucket.parameters if name.startswith("encoder.layers.")}
