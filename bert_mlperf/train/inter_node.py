"""Decides with all ranks together whether the all-reduce between nodes is asked for as SHARP, and says so."""

import sys

import torch

from bert_mlperf.comm.control import Control
from bert_mlperf.comm.sharp import SharpRequest, ranks_that_refuse
from bert_mlperf.config.sharding import ShardingPlan
from bert_mlperf.config.sharp import (
    SharpDecision,
    decide_sharp,
    gather_facts,
    nodes_of_all_reduce,
    refuse_if_required,
)
from bert_mlperf.config.system import Run


def sharp_request(
    run: Run, plan: ShardingPlan, control: Control, device: torch.device, *, quiet: bool = False
) -> SharpRequest | None:
    """The request, or None; every rank calls this, and rank 0 says what comes of it unless `quiet`. UserError on all
    ranks if run.sharp is require and one of them cannot ask."""
    nodes = nodes_of_all_reduce(plan, world_size=control.world_size, ranks_per_node=run.ranks_per_node)
    facts = gather_facts(backend="nccl" if device.type == "cuda" else "gloo", nodes=nodes)
    decision = decide_sharp(run.sharp, facts)
    refusing = ranks_that_refuse(decision.way is None, control, device)
    if decision.way is not None and refusing:
        ranks = ", ".join(map(str, refusing[:8])) + (", ..." if len(refusing) > 8 else "")
        decision = SharpDecision(None, f"ranks that cannot: {ranks} (bert-mlperf doctor says why on their hosts)")
    refuse_if_required(run, decision)
    if control.rank == 0 and not quiet and run.sharp != "off" and control.world_size > run.ranks_per_node:
        print(f"sharp    {decision}", file=sys.stderr, flush=True)
    if decision.way is None:
        return None
    return SharpRequest("world" if plan.strategy == "node" else "replica", decision.way, device)
