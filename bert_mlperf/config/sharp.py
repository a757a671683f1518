"""Whether the all-reduce between nodes is asked for as SHARP, in what way, and if not, why: a pure function over facts.

SHARP is a reduction inside InfiniBand switches. NCCL reaches it through CollNet, which a plugin library offers, and a
communicator asks for CollNet when it is created (comm/sharp.py). On such a communicator only, NCCL also adds up in
NVSwitch (NVLS) where a group has several ranks per node. The decision table is in docs/reduction.md. None of this was
ever run with NCCL.
"""

import ctypes
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from bert_mlperf.config.sharding import ShardingPlan, sharding_plan
from bert_mlperf.config.system import Run
from bert_mlperf.errors import UserError

CONFIG_SINCE = (2, 27)  # NCCL whose communicators have collnetEnable in their own config
ENVIRONMENT_SINCE = (2, 6)  # NCCL that reads NCCL_COLLNET_ENABLE
COLLNET = "NCCL_COLLNET_ENABLE"
REFUSALS = (("NCCL_SHARP_DISABLE", "1"), ("NCCL_IB_DISABLE", "1"), ("NCCL_NET_PLUGIN", "none"))
THRESHOLDS = ("NCCL_COLLNET_NODE_THRESHOLD", "NCCL_SHARP_GROUP_SIZE_THRESH")  # fewest nodes, 2 where unset
READ_VARIABLES = (COLLNET, *(name for name, _ in REFUSALS), *THRESHOLDS, "NCCL_ALGO")
INFINIBAND = Path("/sys/class/infiniband")

Way = Literal["config", "environment"]


@dataclass(frozen=True)
class SharpFacts:
    """What the decision depends on, as one rank sees it."""

    backend: str  # of the run: nccl or gloo
    nodes: int  # over which one all-reduce of the strategy goes; 0: the strategy has none
    nccl_version: tuple[int, ...] | None = None
    has_config_field: bool = False  # torch offers collnet_enable in the config of a communicator
    infiniband: tuple[str, ...] = ()  # devices
    plugin_fault: str | None = None  # why NCCL's network plugin gives no CollNet; None: it does
    environment: Mapping[str, str] = field(default_factory=dict)  # READ_VARIABLES that are set


@dataclass(frozen=True)
class SharpDecision:
    """`way` is None where SHARP is not asked for; `reason` says why so or so."""

    way: Way | None
    reason: str

    def __str__(self) -> str:
        return f"not requested: {self.reason}" if self.way is None else f"requested through {self.way}: {self.reason}"


def decide_sharp(wanted: str, facts: SharpFacts) -> SharpDecision:
    """The first obstacle decides; `wanted` is run.sharp."""
    if wanted == "off":
        return SharpDecision(None, "run.sharp is off")
    obstacle = _of_the_run(facts) or _of_the_environment(facts) or _of_the_host(facts)
    if obstacle is not None:
        return SharpDecision(None, obstacle)
    assert facts.nccl_version is not None
    reason = f"all-reduce over {facts.nodes} nodes, NCCL {_dotted(facts.nccl_version)}"
    if COLLNET in facts.environment:
        reason += f"; {COLLNET}=1 in the environment asks for it on all other communicators too, unset it"
    is_field_read = facts.has_config_field and facts.nccl_version >= CONFIG_SINCE
    return SharpDecision("config" if is_field_read else "environment", reason)


def _of_the_run(facts: SharpFacts) -> str | None:
    if facts.nodes == 0:
        return "the strategy has no all-reduce"
    if facts.nodes == 1:
        return "the all-reduce stays inside one node"
    if facts.backend != "nccl":
        return f"the backend is {facts.backend}, and only nccl knows SHARP"
    return None


def _of_the_environment(facts: SharpFacts) -> str | None:
    environment = facts.environment
    if environment.get(COLLNET, "1") != "1":
        return f"{COLLNET}={environment[COLLNET]} in the environment"
    for name, refusal in REFUSALS:
        if environment.get(name) == refusal:
            return f"{name}={refusal} in the environment"
    algorithms = environment.get("NCCL_ALGO", "").lower()
    is_listed, is_list_of_others = "collnet" in algorithms, algorithms.startswith("^")
    if algorithms and is_listed == is_list_of_others:
        return f"NCCL_ALGO={environment['NCCL_ALGO']} in the environment leaves CollNet out"
    for name in THRESHOLDS:
        fewest = environment.get(name, "")
        if fewest.isdecimal() and facts.nodes < int(fewest):
            return f"{name}={fewest} in the environment is above the {facts.nodes} nodes of the all-reduce"
    return None


def _of_the_host(facts: SharpFacts) -> str | None:
    if facts.nccl_version is None:
        return "this torch is built without NCCL"
    if facts.nccl_version < ENVIRONMENT_SINCE:
        return f"NCCL {_dotted(facts.nccl_version)} has no CollNet, expected {_dotted(ENVIRONMENT_SINCE)} or newer"
    if not facts.infiniband:
        return f"no InfiniBand device in {INFINIBAND}"
    return facts.plugin_fault


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def nodes_of_all_reduce(plan: ShardingPlan, *, world_size: int, ranks_per_node: int) -> int:
    """Over how many nodes one all-reduce of gradients goes; 0 where there is none."""
    if plan.strategy == "flat" or (plan.strategy == "hierarchical" and plan.shard_group_size == world_size):
        return 0
    step = plan.shard_group_size if plan.strategy == "hierarchical" else 1
    return len({rank // ranks_per_node for rank in range(0, world_size, step)})


def gather_facts(*, backend: str, nodes: int) -> SharpFacts:
    """The facts of this host and process. Where backend or nodes decide alone, torch is not imported."""
    if backend != "nccl" or nodes < 2:
        return SharpFacts(backend, nodes)
    variables = {name: os.environ[name] for name in READ_VARIABLES if name in os.environ}
    return SharpFacts(
        backend,
        nodes,
        nccl_version=_nccl_version(),
        has_config_field=_has_config_field(),
        infiniband=tuple(sorted(path.name for path in INFINIBAND.iterdir())) if INFINIBAND.is_dir() else (),
        plugin_fault=plugin_fault(variables.get("NCCL_NET_PLUGIN", "")),
        environment=variables,
    )


def sharp_here(run: Run, *, world_size: int) -> SharpDecision:
    """The decision for this host. UserError if run.reduction and run.shard_group do not fit the ranks."""
    plan = sharding_plan(run, world_size=world_size)
    nodes = nodes_of_all_reduce(plan, world_size=world_size, ranks_per_node=run.ranks_per_node)
    is_cuda = run.device == "cuda" or (run.device == "auto" and nodes > 1 and _has_cuda())
    return decide_sharp(run.sharp, gather_facts(backend="nccl" if is_cuda else "gloo", nodes=nodes))


def check_sharp(run: Run, *, world_size: int) -> None:
    """UserError if run.sharp is require and this host cannot ask for SHARP."""
    if run.sharp == "require":
        refuse_if_required(run, sharp_here(run, world_size=world_size))


def refuse_if_required(run: Run, decision: SharpDecision) -> None:
    if run.sharp == "require" and decision.way is None:
        raise UserError(f"run.sharp is require, but SHARP is {decision}; remove the obstacle, or give auto or off.")


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def _nccl_version() -> tuple[int, ...] | None:
    import torch

    return torch.cuda.nccl.version() if torch.distributed.is_nccl_available() else None


def _has_config_field() -> bool:
    """torch has it since it builds with NCCL 2.27."""
    import torch.distributed as dist

    options = getattr(getattr(dist, "ProcessGroupNCCL", None), "Options", None)
    return options is not None and hasattr(getattr(options(), "config", None), "collnet_enable")


def plugin_fault(given: str) -> str | None:
    """Loads NCCL's network plugin as NCCL does (`given` is NCCL_NET_PLUGIN: names or files, with commas between them).
    None if one offers CollNet, else the loader's complaint, which also tells when the SHARP library is missing."""
    names = [name for part in given.split(",") if part for name in (f"libnccl-net-{part}.so", part)]
    faults = []
    for name in names or ["libnccl-net.so"]:
        try:
            library = ctypes.CDLL(name)
        except OSError as error:
            faults.append(str(error))
            continue
        if any(hasattr(library, f"ncclCollNetPlugin_v{version}") for version in range(3, 32)):
            return None
        faults.append(f"{name} offers no CollNet (nccl-rdma-sharp-plugins does)")
    return "; ".join(faults)
