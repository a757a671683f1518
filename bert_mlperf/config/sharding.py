"""How a run shares out the optimizer state and sums gradients, with every "auto" decided: a pure function."""

from dataclasses import dataclass

from bert_mlperf.config.system import Run
from bert_mlperf.errors import UserError

WIRE_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}


@dataclass(frozen=True)
class ShardingPlan:
    """`strategy` as in comm/reduction.py; `bucket_size` in elements."""

    strategy: str
    shard_group_size: int  # ranks that hold one copy of the optimizer state together
    wire: str  # dtype of gradients on the wire
    bucket_size: int
    overlap: bool


def sharding_plans(run: Run, *, world_size: int) -> list[ShardingPlan]:
    """The plans that may be taken with `world_size` ranks: one, or with `reduction: auto` on several nodes those that
    differ in what they send and fit run.shard_group. UserError if none does."""
    first = sharding_plan(run, world_size=world_size)
    if run.reduction != "auto" or world_size == run.ranks_per_node:
        return [first]
    flat_fits = _group_size(run, "flat", world_size) == world_size and run.sharp != "require"  # has no all-reduce
    size = first.shard_group_size
    names = (["flat"] if flat_fits else []) + ["node"] + (["hierarchical"] if 1 < size < world_size else [])
    return [sharding_plan(run.model_copy(update={"reduction": name}), world_size=world_size) for name in names]


def sharding_plan(run: Run, *, world_size: int) -> ShardingPlan:
    """The plan for `world_size` ranks; with `reduction: auto` what is taken where nothing is timed. UserError if
    strategy, shard group and ranks do not fit together."""
    num_nodes = world_size // run.ranks_per_node
    strategy = _strategy_of_auto(run, world_size) if run.reduction == "auto" else run.reduction
    if strategy == "hierarchical" and num_nodes == 1:
        raise UserError(
            "run.reduction is hierarchical, which adds up inside nodes and then across them, but there is 1 node, "
            "expected at least 2; give flat or auto."
        )
    size = _group_size(run, strategy, world_size)
    if world_size % size:
        divisors = [n for n in range(1, world_size + 1) if world_size % n == 0]
        raise UserError(
            f"run.shard_group is {size} ranks, which does not divide the {world_size} ranks; give one of "
            f"{', '.join(map(str, divisors))}, node or world."
        )
    if strategy == "flat" and size != world_size:
        raise UserError(
            f"run.reduction is flat, which shards over all {world_size} ranks, and run.shard_group is "
            f"{run.shard_group}; leave run.shard_group out, or give node or hierarchical as reduction."
        )
    wire = run.precision if run.wire == "auto" else run.wire
    bucket_size = max(1, int(run.bucket_mib * 2**20 / WIRE_BYTES[wire]))
    return ShardingPlan(strategy, size, wire, bucket_size, run.overlap)


def _strategy_of_auto(run: Run, world_size: int) -> str:
    if world_size > run.ranks_per_node:
        return "hierarchical"
    return "flat" if _group_size(run, "flat", world_size) == world_size else "node"


def _group_size(run: Run, strategy: str, world_size: int) -> int:
    if run.shard_group == "world" or (run.shard_group == "auto" and strategy == "flat"):
        return world_size
    if run.shard_group in ("node", "auto"):
        return run.ranks_per_node
    assert isinstance(run.shard_group, int)
    return run.shard_group
