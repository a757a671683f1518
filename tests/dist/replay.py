"""Given gradients through buckets, reduction, sharded LAMB and gather, without a model; the plain LAMB beside it."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bert_mlperf.comm.control import Control
from bert_mlperf.comm.lanes import Lane
from bert_mlperf.comm.overlap import GradientReduction, WeightGather
from bert_mlperf.comm.recorder import Recorder
from bert_mlperf.comm.reduction import WIRE_DTYPES, Reduction
from bert_mlperf.comm.topology import Groups, Topology, open_groups
from bert_mlperf.config.recipe import Recipe
from bert_mlperf.optim.flat import FlatBuffers
from bert_mlperf.optim.lamb import Lamb, LambTensor, clip_by_global_norm
from bert_mlperf.optim.layout import FlatLayout, TensorRange, make_layout
from bert_mlperf.optim.schedule import learning_rate
from bert_mlperf.optim.sharded_lamb import ShardedLamb, Update
from tests import golden

STEPS = 20
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Block:
    """One tensor of the optimizer: a parameter, or rows of it."""

    name: str
    parameter: str
    adapted: bool
    rows: tuple[int, int] | None = None

    def of(self, parameters: dict[str, Tensor]) -> Tensor:
        parameter = parameters[self.parameter]
        return parameter if self.rows is None else parameter[self.rows[0] : self.rows[1]]


@dataclass(frozen=True)
class Problem:
    """First weights, and `gradient(step, rank, world)` by parameter, whose sums over the ranks are exact in fp32."""

    weights: dict[str, Tensor]
    units: Sequence[Sequence[str]]
    blocks: Sequence[Block]
    recipe: Recipe
    gradient: Callable[[int, int, int], dict[str, Tensor]]

    def layout(self, *, num_shards: int, bucket_size: int | None) -> FlatLayout:
        return make_layout(
            {name: tuple(w.shape) for name, w in self.weights.items()},
            units=self.units,
            decayed=[block.parameter for block in self.blocks if block.adapted],
            num_shards=num_shards,
            bucket_size=bucket_size,
        )

    def ranges(self, layout: FlatLayout) -> list[TensorRange]:
        ranges = []
        for block in self.blocks:
            slot = layout.slots[block.parameter]
            first, end = block.rows or (0, 1)
            row = (slot.end - slot.start) // (slot.shape[0] if block.rows else 1)
            ranges.append(TensorRange(block.name, slot.start + first * row, slot.start + end * row, block.adapted))
        return ranges


def odd_problem() -> Problem:
    """Odd sizes, a fused parameter, an empty one, one of zeros, one without gradient, and tiny gradients; clipped."""
    shapes = {
        "bias": (77,),
        "zero": (9, 9),
        "fused": (120, 11),
        "empty": (0, 5),
        "scalar": (),
        "still": (20, 20),
        "tiny": (65,),
        "embedding": (300, 13),
    }
    generator = torch.Generator().manual_seed(3)
    weights = {name: 0.3 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    weights["zero"].zero_()
    weights["scalar"].fill_(3.0)
    scales = {name: 2.0**-9 for name in shapes} | {"still": 0.0, "tiny": 2.0**-26}

    def gradient(step: int, rank: int, world: int) -> dict[str, Tensor]:
        """Multiples of 2^-9 (tiny: 2^-26) below 8: sums of a few are exact in fp32 whatever their order."""
        generator = torch.Generator().manual_seed(1000 * rank + step)
        made = {
            name: torch.randn(shape, generator=generator).mul(150).round().clamp(-1000, 1000) * scales[name]
            for name, shape in shapes.items()
        }
        made["embedding"][step::7] = 0.0
        made["scalar"] += 4.0  # one number that passes 0 has no relative error
        return made

    thirds = [Block(role, "fused", True, (40 * i, 40 * (i + 1))) for i, role in enumerate("qkv")]
    others = [Block(n, n, n not in ("bias", "scalar")) for n in shapes if n != "fused"]
    recipe = Recipe(
        global_batch_size=1, base_learning_rate=0.02, training_steps=30, warmup_steps=5, start_warmup_step=-2
    )
    units = [["bias", "zero"], ["fused", "empty"], ["scalar", "still", "tiny"], ["embedding"]]
    return Problem(weights, units, [*others[:2], *thirds, *others[2:]], recipe, gradient)


def golden_problem(case: str) -> Problem:
    """A trajectory of the published reference; the ranks' gradients are a half, a quarter, ... of the recorded one."""
    config, recorded = json.loads((golden.FOLDER / f"{case}.json").read_text()), golden.arrays(case)
    names = config["order"]
    fields = {"num_train_steps": 10**15, "num_warmup_steps": 0, "start_warmup_step": 0, **config}
    excluded = re.compile("LayerNorm|layer_norm|bias")

    def gradient(step: int, rank: int, world: int) -> dict[str, Tensor]:
        share = 2.0 ** -min(rank + 1, world - 1)
        return {name: share * torch.from_numpy(recorded[f"grad/{name}"][step]) for name in names}

    return Problem(
        {name: torch.from_numpy(recorded[f"init/{name}"]) for name in names},
        [names[7:], names[3:7], names[:3]],
        [Block(name, name, excluded.search(name) is None) for name in names],
        golden.recipe_of(fields, global_batch_size=1),
        gradient,
    )


class Holder(nn.Module):
    """Parameters by name."""

    def __init__(self, weights: dict[str, Tensor]) -> None:
        super().__init__()
        for name, weight in weights.items():
            self.register_parameter(name, nn.Parameter(weight.clone()))


@dataclass(frozen=True)
class Case:
    """How one replay is shared out."""

    strategy: str
    shards: int
    bucket_size: int | None = None
    wire: str = "fp32"
    overlap: bool = False


class Replay:
    """One rank of a replay. `groups`: communicators for gradients, for weights and for the norms."""

    def __init__(self, problem: Problem, case: Case, control: Control, groups: Sequence[Groups], **options) -> None:
        self.problem, self.control = problem, control
        topology = Topology(control.rank, control.world_size, case.shards)
        self.layout = problem.layout(num_shards=case.shards, bucket_size=case.bucket_size)
        self.holder = Holder(problem.weights)
        self.flat = FlatBuffers(self.holder, self.layout, shard=topology.shard, precision="fp32")
        self.reductions = [Reduction(topology, own, strategy=case.strategy) for own in groups]
        self.optimizer = ShardedLamb(
            self.flat,
            problem.ranges(self.layout),
            problem.recipe,
            sum_over_shards=self.reductions[2].sum_over_shards,
            **options,
        )
        lanes = [Lane(name, CPU, overlap=case.overlap, recorder=Recorder(CPU)) for name in ("reduce", "gather")]
        wire = WIRE_DTYPES[case.wire]
        self.gradients = GradientReduction(self.flat, self.reductions[0], lanes[0], wire_dtype=wire)
        self.weights = WeightGather(self.flat, self.reductions[1], lanes[1])

    def step(self, index: int, *, scale: float = 1.0) -> Update:
        """One update, its gradients times `scale`; the model's weights are complete afterwards."""
        self.flat.zero_gradients()
        made = self.problem.gradient(index, self.control.rank, self.control.world_size)
        for name, parameter in self.flat.parameters.items():
            parameter.grad = made[name] * scale
        self.gradients.open()
        update = self.optimizer.step(self.gradients.finish(), scale=scale)
        self.weights.start()
        self.weights.wait()
        return update

    def blocks(self, flat: Tensor) -> dict[str, Tensor]:
        parameters = self.flat.split(flat)
        return {block.name: block.of(parameters) for block in self.problem.blocks}

    def whole(self, shard: Tensor) -> Tensor:
        """A buffer put together from all shards of the group."""
        full = torch.zeros(self.layout.size)
        for part in self.layout.parts(self.reductions[2].topology.shard):
            full[part.start : part.end] = shard[part.shard_start : part.shard_end]
        self.reductions[2].sum_over_shards(full)
        return full


def open_lanes(topology: Topology) -> list[Groups]:
    return [open_groups(topology, timeout_s=30) for _ in range(3)]


@dataclass(frozen=True)
class State:
    """The plain LAMB after a step, by block."""

    weights: dict[str, Tensor]
    first_moments: dict[str, Tensor]
    second_moments: dict[str, Tensor]
    norm: float
    rate: float


def plain_lamb(problem: Problem, world: int, *, steps: int = STEPS) -> list[State]:
    """Each step of optim/lamb.py on the sum of the ranks' gradients."""
    weights = {name: w.clone() for name, w in problem.weights.items()}
    sizes = [w.numel() for w in weights.values()]
    flat = torch.zeros(sum(sizes))
    parts = zip(weights.items(), flat.split(sizes), strict=True)
    gradients = {name: part.view(weight.shape) for (name, weight), part in parts}
    tensors = [LambTensor(b.name, b.of(weights), b.of(gradients), b.adapted) for b in problem.blocks]
    lamb, states = Lamb(tensors, problem.recipe), []
    for step in range(steps):
        for name, gradient in gradients.items():
            shares = [problem.gradient(step, rank, world)[name] for rank in range(world)]
            gradient.copy_(torch.stack(shares).double().sum(0))
        norm = clip_by_global_norm([t.gradient for t in tensors], flat)
        rate = learning_rate(torch.tensor(step, dtype=torch.float64), problem.recipe).item()
        lamb.step(rate)
        of_blocks = ([t.weight for t in tensors], lamb.first_moments, lamb.second_moments)
        copies = [{b.name: x.clone() for b, x in zip(problem.blocks, xs, strict=True)} for xs in of_blocks]
        states.append(State(*copies, norm.item(), rate))
    return states
