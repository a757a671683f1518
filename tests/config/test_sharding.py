"""Which plans a run may take: one that is given, or those that fit where auto may choose."""

import pytest

from bert_mlperf.config.sharding import sharding_plan, sharding_plans
from bert_mlperf.errors import UserError
from tests.train.small import small_run


def plans(world_size: int, **changes) -> list[tuple[str, int]]:
    run = small_run(**changes)
    return [(p.strategy, p.shard_group_size) for p in sharding_plans(run, world_size=world_size)]


@pytest.mark.parametrize(
    ("shard_group", "expected"),
    [
        ("auto", [("flat", 8), ("node", 4), ("hierarchical", 4)]),
        ("node", [("node", 4), ("hierarchical", 4)]),
        ("world", [("flat", 8), ("node", 8)]),  # hierarchical would be flat
        (8, [("flat", 8), ("node", 8)]),
        (2, [("node", 2), ("hierarchical", 2)]),
        (1, [("node", 1)]),  # hierarchical would be node
    ],
)
def test_auto_on_two_nodes_may_take_what_fits_the_shard_group(shard_group, expected):
    assert plans(8, ranks_per_node=4, shard_group=shard_group) == expected


@pytest.mark.parametrize(("shard_group", "expected"), [("auto", ("flat", 4)), ("node", ("flat", 4)), (2, ("node", 2))])
def test_auto_on_one_node_has_no_choice(shard_group, expected):
    assert plans(4, ranks_per_node=4, shard_group=shard_group) == [expected]


def test_a_rank_a_node():
    assert plans(3, ranks_per_node=1) == [("flat", 3), ("node", 1)]


def test_flat_has_no_all_reduce_to_require_sharp_for():
    assert plans(4, ranks_per_node=2, sharp="require") == [("node", 2), ("hierarchical", 2)]


@pytest.mark.parametrize("strategy", ["flat", "node", "hierarchical"])
def test_a_given_strategy_is_taken(strategy):
    assert [name for name, _ in plans(8, ranks_per_node=4, reduction=strategy)] == [strategy]


def test_candidates_differ_in_nothing_else():
    run = small_run(ranks_per_node=2, wire="bf16", bucket_mib=3.0, overlap=False)
    made = sharding_plans(run, world_size=4)
    assert {(p.wire, p.bucket_size, p.overlap) for p in made} == {("bf16", 3 * 2**19, False)}
    assert sharding_plan(run, world_size=4) in made


def test_a_shard_group_that_does_not_divide_the_ranks_is_refused():
    with pytest.raises(UserError, match="which does not divide the 8 ranks"):
        plans(8, ranks_per_node=4, shard_group=3)
