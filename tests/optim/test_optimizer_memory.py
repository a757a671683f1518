"""Memory of the optimizer per rank: 12 P/S bytes of fp32 weights and moments, and the weights that the model reads."""

import gc

import pytest
import torch
from torch import Tensor

from bert_mlperf.config.model import NAMED_MODELS, ModelConfig
from bert_mlperf.model.bert import BertForPreTraining, build_model
from bert_mlperf.model.tensors import tensor_specs
from bert_mlperf.optim.flat import FlatBuffers
from bert_mlperf.optim.layout import FlatLayout, make_layout
from bert_mlperf.optim.sharded_lamb import Reduced, ShardedLamb
from bert_mlperf.train.setup import tensor_range
from tests.train.small import small_model, small_run

TOLERANCE = 0.03
MIDDLE = small_model(vocab_size=2000, hidden_size=64, intermediate_size=256, num_hidden_layers=3)


def bucketed(model: BertForPreTraining, num_shards: int) -> FlatLayout:
    return make_layout(
        {name: tuple(p.shape) for name, p in model.named_parameters()},
        units=model.gradient_units(),
        decayed=[spec.parameter for spec in tensor_specs(model.config) if spec.adapted],
        num_shards=num_shards,
        bucket_size=model.config.num_parameters // 10,
    )


def optimizer_of(
    model: BertForPreTraining, num_shards: int, precision: str, accumulation_steps: int = 1
) -> tuple[FlatBuffers, ShardedLamb]:
    """What one rank of a shard group holds, the last one."""
    layout, shard = bucketed(model, num_shards), num_shards - 1
    flat = FlatBuffers(model, layout, shard=shard, precision=precision, accumulation_steps=accumulation_steps)
    lamb = ShardedLamb(
        flat,
        [tensor_range(spec, layout) for spec in tensor_specs(model.config)],
        small_run().recipe,
        sum_over_shards=lambda values: None,
    )
    return flat, lamb


def num_bytes(tensors: list[Tensor]) -> int:
    """Of their storages, each counted once."""
    storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())


def held(flat: FlatBuffers, lamb: ShardedLamb) -> int:
    """Bytes of all tensors of both that are not gradients."""
    own = [t for o in (flat, lamb) for t in vars(o).values() if isinstance(t, Tensor) and t is not flat.accumulated]
    return num_bytes([*own, *flat.shard_parts])


def expected(config: ModelConfig, num_shards: int, precision: str) -> float:
    """12 P/S, and the weights that the model reads; in fp32 those of the shard are among these."""
    parameters = config.num_parameters
    if precision == "fp32":
        return 8 * parameters / num_shards + 4 * parameters
    return 12 * parameters / num_shards + 2 * parameters


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("num_shards", [1, 2, 4])
@pytest.mark.parametrize("name", ["bert-base", "bert-large"])
def test_a_rank_holds_little_more_than_its_share(name, num_shards, precision):
    config = NAMED_MODELS[name]
    with torch.device("meta"):
        model = BertForPreTraining(config)
    flat, lamb = optimizer_of(model, num_shards, precision)
    wanted = expected(config, num_shards, precision)
    assert wanted <= held(flat, lamb) <= (1 + 1e-4) * wanted
    assert all(p.untyped_storage()._cdata == flat.weights.untyped_storage()._cdata for p in model.parameters())


def alive() -> dict[int, int]:
    """Bytes of every storage that a tensor of this process has."""
    gc.collect()
    storages = (o.untyped_storage() for o in gc.get_objects() if type(o) in (Tensor, torch.nn.Parameter))
    return {s._cdata: s.nbytes() for s in storages}


@pytest.mark.parametrize("num_shards", [1, 2, 4])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_nothing_else_is_held_after_a_step(precision, num_shards):
    before = alive()
    model = build_model(MIDDLE, seed=1)
    flat, lamb = optimizer_of(model, num_shards, precision, accumulation_steps=2)
    gradient = torch.full((flat.layout.shard_size,), 1e-3)
    lamb.step(Reduced.of(gradient))
    del gradient
    new = {key: size for key, size in alive().items() if key not in before}
    gradients = 0 if flat.accumulated is None else flat.accumulated.nbytes
    wanted = expected(MIDDLE, num_shards, precision)
    assert wanted <= sum(new.values()) - gradients <= (1 + TOLERANCE) * wanted


@pytest.mark.parametrize("num_shards", [1, 2, 4])
def test_shards_together_hold_every_weight_once(num_shards):
    model = build_model(MIDDLE, seed=1)
    wanted = {name: p.detach().clone() for name, p in model.named_parameters()}
    layout = bucketed(model, num_shards)
    full = torch.full((layout.size,), float("nan"))
    for shard in range(num_shards):
        flat = FlatBuffers(build_model(MIDDLE, seed=1), layout, shard=shard, precision="bf16")
        for part in layout.parts(shard):
            full[part.start : part.end] = flat.shard_weights[part.shard_start : part.shard_end]
    assert all(torch.equal(view, wanted[name]) for name, view in flat.split(full).items())
    assert not full.isnan().any()
