"""The decision table of docs/reduction.md, without NCCL."""

import ctypes
from dataclasses import replace
from types import SimpleNamespace

import pytest

from bert_mlperf.config import sharp
from bert_mlperf.config.sharding import ShardingPlan
from bert_mlperf.config.sharp import SharpFacts, decide_sharp, nodes_of_all_reduce, sharp_here
from bert_mlperf.errors import UserError
from tests.config import files
from tests.config.test_doctor import printed
from tests.train.small import small_run

GOOD = SharpFacts("nccl", nodes=8, nccl_version=(2, 29, 3), has_config_field=True, infiniband=("mlx5_0",))


def test_where_all_is_there_it_is_requested_through_the_config():
    decision = decide_sharp("auto", GOOD)
    assert decision.way == "config"
    assert str(decision) == "requested through config: all-reduce over 8 nodes, NCCL 2.29.3"
    assert decide_sharp("require", GOOD) == decision


@pytest.mark.parametrize(
    ("facts", "way"),
    [
        ({"nccl_version": (2, 27, 0)}, "config"),
        ({"nccl_version": (2, 26, 5)}, "environment"),  # an older library under a torch that has the field
        ({"nccl_version": (2, 6, 4), "has_config_field": False}, "environment"),
        ({"has_config_field": False}, "environment"),
        ({"nodes": 2}, "config"),
    ],
)
def test_the_way(facts, way):
    assert decide_sharp("auto", replace(GOOD, **facts)).way == way


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"backend": "gloo"}, "the backend is gloo, and only nccl knows SHARP"),
        ({"nodes": 0}, "the strategy has no all-reduce"),
        ({"nodes": 1}, "the all-reduce stays inside one node"),
        ({"nccl_version": None}, "this torch is built without NCCL"),
        ({"nccl_version": (2, 5, 7)}, "NCCL 2.5.7 has no CollNet, expected 2.6 or newer"),
        ({"infiniband": ()}, "no InfiniBand device in /sys/class/infiniband"),
        ({"plugin_fault": "libnccl-net.so: not there"}, "libnccl-net.so: not there"),
    ],
)
def test_facts_against_it(facts, reason):
    decision = decide_sharp("auto", replace(GOOD, **facts))
    assert (decision.way, decision.reason) == (None, reason)
    assert str(decision) == f"not requested: {reason}"


@pytest.mark.parametrize(
    ("name", "value", "is_requested"),
    [
        ("NCCL_COLLNET_ENABLE", "0", False),
        ("NCCL_COLLNET_ENABLE", "1", True),
        ("NCCL_SHARP_DISABLE", "1", False),
        ("NCCL_SHARP_DISABLE", "0", True),
        ("NCCL_IB_DISABLE", "1", False),
        ("NCCL_IB_DISABLE", "0", True),
        ("NCCL_NET_PLUGIN", "none", False),
        ("NCCL_NET_PLUGIN", "mine", True),
        ("NCCL_ALGO", "Ring,Tree", False),
        ("NCCL_ALGO", "^CollNetChain", False),
        ("NCCL_ALGO", "^Ring", True),
        ("NCCL_ALGO", "CollNetDirect,Ring", True),
        ("NCCL_COLLNET_NODE_THRESHOLD", "9", False),
        ("NCCL_COLLNET_NODE_THRESHOLD", "8", True),
        ("NCCL_SHARP_GROUP_SIZE_THRESH", "9", False),
        ("NCCL_SHARP_GROUP_SIZE_THRESH", "8", True),
    ],
)
def test_what_the_user_set_for_nccl(name, value, is_requested):
    decision = decide_sharp("auto", replace(GOOD, environment={name: value}))
    assert (decision.way is not None) == is_requested
    if not is_requested:
        assert f"{name}={value} in the environment" in decision.reason


def test_a_request_of_all_communicators_is_told():
    reason = decide_sharp("auto", replace(GOOD, environment={"NCCL_COLLNET_ENABLE": "1"})).reason
    assert reason.endswith(
        "NCCL_COLLNET_ENABLE=1 in the environment asks for it on all other communicators too, unset it"
    )


def test_off_asks_for_nothing():
    assert decide_sharp("off", GOOD) == sharp.SharpDecision(None, "run.sharp is off")


@pytest.mark.parametrize(
    ("strategy", "shard_group", "nodes"),
    [("flat", 64, 0), ("node", 8, 8), ("hierarchical", 8, 8), ("hierarchical", 16, 4), ("hierarchical", 4, 8)]
    + [("hierarchical", 64, 0)],
)
def test_nodes_of_one_all_reduce_on_8_x_8(strategy, shard_group, nodes):
    plan = ShardingPlan(strategy, shard_group, "bf16", 1000, overlap=True)
    assert nodes_of_all_reduce(plan, world_size=64, ranks_per_node=8) == nodes


def test_on_this_host_gloo_is_the_reason_and_require_is_refused():
    run = small_run(ranks_per_node=2, sharp="require")
    assert sharp_here(run, world_size=4).reason == "the backend is gloo, and only nccl knows SHARP"
    with pytest.raises(
        UserError, match=r"^run.sharp is require, but SHARP is not requested: the backend is gloo, .*\.$"
    ):
        sharp.check_sharp(run, world_size=4)
    sharp.check_sharp(small_run(ranks_per_node=2), world_size=4)


def test_the_doctor_says_what_and_why(tmp_path):
    path = files.write(tmp_path, files.small())
    four = ("number_of_nodes=4", "ranks_per_node=1", "gradient_accumulation_steps=1", "master_port=29500")
    assert "not requested: the backend is gloo" in printed(path, *four, "device=cpu")
    assert "not requested: run.sharp is off" in printed(path, *four, "sharp=off")
    assert "cannot be: run.reduction is hierarchical" in printed(path, "reduction=hierarchical")


def test_the_doctor_on_a_host_with_everything(tmp_path, monkeypatch):
    monkeypatch.setattr(sharp, "gather_facts", lambda *, backend, nodes: replace(GOOD, backend=backend, nodes=nodes))
    path = files.write(tmp_path, files.small())
    four = ("number_of_nodes=4", "ranks_per_node=1", "gradient_accumulation_steps=1", "master_port=29500")
    text = printed(path, *four, "device=cuda", "precision=bf16")
    assert "hierarchical, shard groups of 1 ranks, bf16 on the wire" in text
    assert "requested through config: all-reduce over 4 nodes, NCCL 2.29.3" in text


def test_facts_of_this_host(tmp_path, monkeypatch):
    """Read without NCCL or any device: files, the loader and the environment."""
    (tmp_path / "mlx5_1").touch()
    (tmp_path / "mlx5_0").touch()
    monkeypatch.setattr(sharp, "INFINIBAND", tmp_path)
    monkeypatch.setenv("NCCL_SHARP_DISABLE", "0")
    monkeypatch.delenv("NCCL_COLLNET_ENABLE", raising=False)
    monkeypatch.setattr(ctypes, "CDLL", loader({"libnccl-net.so": ["ncclNetPlugin_v8", "ncclCollNetPlugin_v8"]}))
    facts = sharp.gather_facts(backend="nccl", nodes=2)
    assert facts.infiniband == ("mlx5_0", "mlx5_1")
    assert facts.environment == {"NCCL_SHARP_DISABLE": "0"}
    assert facts.plugin_fault is None


def loader(libraries):
    """A stand-in for ctypes.CDLL that knows these libraries and their symbols."""

    def load(name):
        if name not in libraries:
            raise OSError(f"{name}: cannot open shared object file")
        return SimpleNamespace(**dict.fromkeys(libraries[name], True))

    return load


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ("", "libnccl-net.so: cannot open shared object file"),
        ("sharp", None),
        ("libnccl-net-sharp.so", None),
        ("socket,sharp", None),
        (
            "socket",
            "libnccl-net-socket.so offers no CollNet (nccl-rdma-sharp-plugins does); socket: cannot open shared",
        ),
    ],
)
def test_the_plugin_is_looked_up_as_nccl_does(given, fault, monkeypatch):
    known = {"libnccl-net-sharp.so": ["ncclCollNetPlugin_v10"], "libnccl-net-socket.so": ["ncclNetPlugin_v10"]}
    monkeypatch.setattr(ctypes, "CDLL", loader(known))
    found = sharp.plugin_fault(given)
    assert found is None if fault is None else found.startswith(fault)


@pytest.mark.parametrize("has_field", [True, False])
def test_whether_torch_has_the_field_is_asked_of_torch(has_field, monkeypatch):
    import torch.distributed as dist

    config = SimpleNamespace(blocking=0, **({"collnet_enable": 0} if has_field else {}))
    fake = SimpleNamespace(Options=lambda: SimpleNamespace(config=config))
    monkeypatch.setattr(dist, "ProcessGroupNCCL", fake, raising=False)
    assert sharp._has_config_field() == has_field
    monkeypatch.delattr(dist, "ProcessGroupNCCL")
    assert not sharp._has_config_field()
