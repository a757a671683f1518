"""Shard and replica groups, and the ones that cannot be."""

import pytest

from bert_mlperf.comm.topology import Topology
from bert_mlperf.config.sharding import sharding_plan
from bert_mlperf.errors import UserError
from tests.train.small import small_run


def test_shard_groups_are_neighbours_and_replicas_hold_the_same_part():
    topology = Topology(rank=6, world_size=8, shard_group_size=4)
    assert topology.shard_groups() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert topology.replica_groups() == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert (topology.shard, topology.num_replicas) == (2, 2)


@pytest.mark.parametrize("world", range(1, 13))
def test_every_rank_is_in_one_group_of_each_kind_with_the_peers_it_should_have(world):
    for size in (size for size in range(1, world + 1) if world % size == 0):
        made = [Topology(rank, world, size) for rank in range(world)]
        shards = [topology.shard for topology in made]
        for groups in (made[0].shard_groups(), made[0].replica_groups()):
            assert sorted(rank for group in groups for rank in group) == list(range(world))
        assert all([shards[rank] for rank in group] == list(range(size)) for group in made[0].shard_groups())
        assert all(len({shards[rank] for rank in group}) == 1 for group in made[0].replica_groups())


@pytest.mark.parametrize("size", [-1, 0, 3, 5, 8])
def test_groups_that_do_not_divide_the_ranks_are_refused(size):
    expected = (
        rf"shard_group is {size} ranks, which does not divide the 4 ranks; give one of 1, 2, 4, or node or world\."
    )
    with pytest.raises(UserError, match=expected):
        Topology(rank=0, world_size=4, shard_group_size=size)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"ranks_per_node": 4, "shard_group": 3},
            r"shard_group is 3 ranks, which does not divide the 4 ranks; give .*\.",
        ),
        (
            {"ranks_per_node": 4, "shard_group": 8},
            r"shard_group is 8 ranks, which does not divide the 4 ranks; give .*\.",
        ),
        (
            {"ranks_per_node": 4, "reduction": "hierarchical"},
            r"there is 1 node, expected at least 2; give flat or auto\.",
        ),
        (
            {"ranks_per_node": 2, "reduction": "flat", "shard_group": 2},
            r"flat, which shards over all 4 ranks, and run\.shard_group is 2; .*\.",
        ),
        (
            {"ranks_per_node": 2, "reduction": "flat", "shard_group": "node"},
            r"flat, which shards over all 4 ranks, and run\.shard_group is node; .*\.",
        ),
    ],
)
def test_plans_that_cannot_be_are_refused_in_a_sentence(changes, expected):
    with pytest.raises(UserError, match=expected):
        sharding_plan(small_run(**changes), world_size=4)
