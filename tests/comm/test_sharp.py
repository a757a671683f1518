"""Only the communicator between nodes asks for SHARP, and the environment is afterwards as it was before."""

import os
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from bert_mlperf.comm import sharp
from bert_mlperf.comm.sharp import REQUESTING, SharpRequest, environment
from bert_mlperf.comm.topology import Topology, open_groups

NAME = "NCCL_COLLNET_ENABLE"
CPU = torch.device("cpu")


@pytest.fixture(params=[None, "0", "1"])
def before(request, monkeypatch):
    """The variable as a user had it."""
    if request.param is None:
        monkeypatch.delenv(NAME, raising=False)
    else:
        monkeypatch.setenv(NAME, request.param)
    return request.param


def test_no_algorithm_is_forced():
    assert REQUESTING == {NAME: "1"}


def test_the_environment_is_put_back(before):
    with environment(REQUESTING):
        assert os.environ[NAME] == "1"
    assert os.environ.get(NAME) == before


def test_the_environment_is_put_back_after_an_exception(before):
    with pytest.raises(KeyError), environment(REQUESTING):
        raise KeyError
    assert os.environ.get(NAME) == before


def test_blocks_may_be_nested_and_variables_removed_inside(before):
    with environment(REQUESTING):
        with environment({NAME: "0", "OTHER_OF_THE_TEST": "x"}):
            assert os.environ[NAME] == "0"
            del os.environ[NAME]
        assert os.environ[NAME] == "1"
        assert "OTHER_OF_THE_TEST" not in os.environ
    assert os.environ.get(NAME) == before


class Recorder:
    """Stands in for new_group and all_reduce; notes what each saw of the request."""

    def __init__(self, monkeypatch, *, rank, fails=False, wrong=False):
        self.created, self.used, self.rank, self.fails, self.wrong = {}, [], rank, fails, wrong
        monkeypatch.setattr(dist, "new_group", self.new_group)
        monkeypatch.setattr(dist, "all_reduce", self.all_reduce)
        monkeypatch.setattr(dist, "get_backend", lambda group: "nccl")

    def new_group(self, ranks, *, timeout, pg_options):
        is_asking = os.environ.get(NAME) == "1" or (pg_options is not None and pg_options.config.collnet_enable == 1)
        assert timeout == timedelta(seconds=60) and (pg_options is None or pg_options._timeout == timeout)
        self.created[tuple(ranks)] = is_asking
        if self.fails and is_asking:
            raise RuntimeError("no communicator")
        return SimpleNamespace(ranks=tuple(ranks), size=lambda: len(ranks))

    def all_reduce(self, values, *, group):
        self.used.append((group.ranks, os.environ.get(NAME)))
        values.fill_(len(group.ranks) - self.wrong)


@pytest.fixture
def nccl(monkeypatch):
    """torch as it is where NCCL is built in."""
    config = SimpleNamespace(collnet_enable=None)
    fake = SimpleNamespace(Options=lambda: SimpleNamespace(config=config, _timeout=timedelta(minutes=10)))
    monkeypatch.setattr(dist, "ProcessGroupNCCL", fake, raising=False)


@pytest.mark.parametrize("way", ["config", "environment"])
@pytest.mark.parametrize("kind", ["world", "replica"])
def test_only_the_communicator_between_nodes_asks(way, kind, nccl, monkeypatch):
    monkeypatch.delenv(NAME, raising=False)
    recorder = Recorder(monkeypatch, rank=5)
    groups = open_groups(Topology(5, 8, 4), timeout_s=60, sharp=SharpRequest(kind, way, CPU))
    world, shards = [tuple(range(8))], [(0, 1, 2, 3), (4, 5, 6, 7)]
    replicas = [(0, 4), (1, 5), (2, 6), (3, 7)]
    asking = world if kind == "world" else replicas
    assert recorder.created == {ranks: ranks in asking for ranks in world + shards + replicas}
    assert list(recorder.created) == world + shards + replicas
    own = world[0] if kind == "world" else (1, 5)
    assert recorder.used == [(own, "1" if way == "environment" else None)]  # first used inside the block
    assert (groups.world.ranks, groups.shard.ranks, groups.replica.ranks) == (world[0], (4, 5, 6, 7), (1, 5))
    assert NAME not in os.environ


def test_without_a_request_nobody_asks_and_nothing_is_sent(monkeypatch):
    monkeypatch.delenv(NAME, raising=False)
    recorder = Recorder(monkeypatch, rank=0)
    open_groups(Topology(0, 8, 4), timeout_s=60)
    assert not any(recorder.created.values())
    assert recorder.used == []


def test_a_communicator_that_cannot_be_created_leaves_the_environment_as_it_was(before, monkeypatch):
    Recorder(monkeypatch, rank=0, fails=True)
    with pytest.raises(RuntimeError, match="no communicator"):
        open_groups(Topology(0, 8, 4), timeout_s=60, sharp=SharpRequest("replica", "environment", CPU))
    assert os.environ.get(NAME) == before


def test_a_sum_that_is_wrong_ends_the_run(monkeypatch):
    Recorder(monkeypatch, rank=0, wrong=True)
    with pytest.raises(
        RuntimeError, match=r"between nodes is wrong: ones of 2 ranks gave 1.0 to 1.0; run with run.sharp"
    ):
        open_groups(Topology(0, 8, 4), timeout_s=60, sharp=SharpRequest("replica", "environment", CPU))


def test_the_check_is_large_enough_for_the_way_of_large_buffers():
    assert sharp.CHECK_SIZE * 4 == 4 * 2**20
