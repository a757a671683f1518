"""How this run sums gradients: `run.reduction: auto` on several nodes is decided by timing what fits."""

import json
import sys
from pathlib import Path

import torch

from bert_mlperf.comm.choose import Candidate, Choice, choose
from bert_mlperf.comm.control import Control
from bert_mlperf.comm.reduction import WIRE_DTYPES
from bert_mlperf.comm.topology import Topology, open_groups
from bert_mlperf.config.sharding import ShardingPlan, sharding_plans
from bert_mlperf.config.system import Run
from bert_mlperf.model.bert import BertForPreTraining
from bert_mlperf.optim.flat import DTYPES
from bert_mlperf.train.inter_node import sharp_request
from bert_mlperf.train.setup import model_layout

CHOICE_FILE = "reduction.json"


def decide_sharding(run: Run, control: Control, device: torch.device, *, folder: Path) -> ShardingPlan:
    """The plan of the run, the same on every rank. Where several fit they are timed; rank 0 prints the table and writes
    it to `folder`/reduction.json."""
    plans = sharding_plans(run, world_size=control.world_size)
    if len(plans) == 1:
        return plans[0]
    choice = time_plans(run, plans, control, device)
    if control.rank == 0:
        for line in choice.lines():
            print(f"auto     {line}", file=sys.stderr, flush=True)
        (folder / CHOICE_FILE).write_text(json.dumps(choice.to_json(), indent=2) + "\n", encoding="ascii")
    return plans[choice.chosen]


def time_plans(run: Run, plans: list[ShardingPlan], control: Control, device: torch.device) -> Choice:
    """Times the plans with the buckets of the run's model."""
    model = BertForPreTraining(run.model)  # undrawn, so nothing of it is touched
    candidates, opened = [], []
    for plan in plans:
        topology = Topology(control.rank, control.world_size, plan.shard_group_size)
        candidates.append(Candidate(plan.strategy, topology, model_layout(model, plan)))
        sharp = sharp_request(run, plan, control, device, quiet=True)
        opened.append(open_groups(topology, timeout_s=run.timeout_s, sharp=sharp))
    return choose(
        candidates,
        opened,
        control,
        device,
        wire=WIRE_DTYPES[plans[0].wire],
        weights=DTYPES[run.precision],
    )
