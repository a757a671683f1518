"""One rank of one way to train on several ranks: ours, torch's own, and computation alone.

All have the same weights, samples and loss, fp32 compute and wire, and the same LAMB. A loss is divided by the counts
of the global batch; torch's own take the mean over the ranks, so theirs is multiplied by the number of ranks.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from bert_mlperf.bench.peer_lamb import PeerLamb, clip, parameter_groups
from bert_mlperf.bench.samples import mlperf_like_lengths, random_samples
from bert_mlperf.comm.control import Control
from bert_mlperf.config.sharding import sharding_plan
from bert_mlperf.config.system import Run
from bert_mlperf.data.loader import StepSamples
from bert_mlperf.data.samples import Samples
from bert_mlperf.model.batch import Batch, make_batch
from bert_mlperf.model.bert import MASKED_LM_EPSILON, BertForPreTraining, build_model
from bert_mlperf.train.setup import kernels, shard_state
from bert_mlperf.train.step import train_step

TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Trainer:
    """`step` trains on this rank's samples of a step and returns the global loss before the update; after `finish` all
    weights are complete."""

    step: Callable[[StepSamples[Batch]], Tensor]
    finish: Callable[[], None]


class StepLoss(nn.Module):
    """The model with its loss behind it: what DDP and FSDP2 wrap."""

    def __init__(self, model: BertForPreTraining) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch, num_masked: int, num_samples: int) -> tuple[Tensor, Tensor]:
        """This rank's share of the loss, and the sums of both losses [2]."""
        losses = self.model(batch)
        sums_2 = torch.stack([losses.masked_lm_sum.detach(), losses.next_sentence_sum.detach()]).double()
        return losses.of_global_batch(num_masked, num_samples), sums_2


def ours(run: Run, model: BertForPreTraining) -> Trainer:
    world_size = dist.get_world_size()
    control = Control(rank=dist.get_rank(), world_size=world_size)
    plan = sharding_plan(run, world_size=world_size)
    state = shard_state(model, run, plan, control, torch.device("cpu"))
    return Trainer(lambda step: train_step(state, step).loss, state.weights.wait)


def ddp_with_zero(run: Run, model: BertForPreTraining) -> Trainer:
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel

    wrapped = DistributedDataParallel(StepLoss(model), gradient_as_bucket_view=True, bucket_cap_mb=run.bucket_mib)
    optimizer = ZeroRedundancyOptimizer(
        parameter_groups(model), PeerLamb, parameters_as_bucket_view=True, recipe=run.recipe
    )
    return Trainer(partial(_peer_step, wrapped, optimizer, lambda: clip(model.parameters())), lambda: None)


def fsdp2(run: Run, model: BertForPreTraining, *, reshard: bool) -> Trainer:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    wrapped = StepLoss(model)
    for layer in model.encoder.layers:
        fully_shard(layer, mesh=mesh, reshard_after_forward=reshard)
    fully_shard(wrapped, mesh=mesh, reshard_after_forward=reshard)
    optimizer = PeerLamb(parameter_groups(model), recipe=run.recipe, sum_over_ranks=dist.all_reduce)
    return Trainer(
        partial(_peer_step, wrapped, optimizer, lambda: clip(model.parameters(), dist.all_reduce)), lambda: None
    )


def compute_only(run: Run, model: BertForPreTraining) -> Trainer:
    """Forward and backward; ranks wait for each other once per step."""
    wrapped = StepLoss(model)
    return Trainer(partial(_peer_step, wrapped, None, lambda: None), lambda: None)


BUILDERS: dict[str, Callable[[Run, BertForPreTraining], Trainer]] = {
    "ours": ours,
    "DDP + ZeRO": ddp_with_zero,
    "FSDP2": partial(fsdp2, reshard=False),
    "FSDP2, resharding": partial(fsdp2, reshard=True),
    "compute only": compute_only,
}


def _peer_step(
    wrapped: nn.Module, optimizer: torch.optim.Optimizer | None, clip: Callable[[], None], step: StepSamples[Batch]
) -> Tensor:
    wrapped.zero_grad(set_to_none=True)
    (batch,) = step.micro_batches
    loss, sums_2 = wrapped(batch, step.global_masked, step.global_samples)
    (loss * dist.get_world_size()).backward()
    if optimizer is not None:
        clip()
        optimizer.step()
    dist.all_reduce(sums_2)
    return sums_2[0] / (step.global_masked + MASKED_LM_EPSILON) + sums_2[1] / step.global_samples


@dataclass(frozen=True)
class Round:
    """What one rank says of some steps in a row."""

    seconds: float  # per step, from all ranks ready to all weights complete on this rank
    cpu_seconds: float  # per step, of all threads of this rank
    losses: list[float]


@dataclass(frozen=True)
class Memory:
    """Resident memory of one rank in bytes."""

    before: int  # libraries loaded, no model
    peak: int  # VmHWM: the largest since the process began


def serve(name: str, run: Run, rank: int, world_size: int, store: str, connection: Connection) -> None:
    """Rank `rank` of `name`: answers each number of steps that comes in with a Round, 0 with its Memory and ends. An
    error is sent instead of an answer."""
    try:
        torch.set_num_threads(1)
        dist.init_process_group(
            "gloo",
            init_method=f"file://{store}",
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=TIMEOUT_S),
        )
        before = status_bytes("VmRSS")
        model = build_model(run.model, seed=1, kernels=kernels(run, torch.device("cpu")))
        trainer = BUILDERS[name](run, model)
        done = 0
        while count := connection.recv():
            connection.send(_round(trainer, run, range(done, done + count)))
            done += count
        connection.send(Memory(before, status_bytes("VmHWM")))
    except BaseException as error:
        connection.send(error)
        raise
    finally:
        connection.close()
        os._exit(0)  # lanes and communicators of a rank whose others are gone would hold it


def _round(trainer: Trainer, run: Run, steps: range) -> Round:
    made = [step_samples(run, index, rank=dist.get_rank(), world_size=dist.get_world_size()) for index in steps]
    dist.barrier()
    start, cpu_start = time.perf_counter(), time.process_time()
    losses = [trainer.step(step) for step in made]
    trainer.finish()
    seconds = (time.perf_counter() - start) / len(made)
    cpu_seconds = (time.process_time() - cpu_start) / len(made)
    return Round(seconds, cpu_seconds, [loss.item() for loss in losses])


def status_bytes(key: str) -> int:
    """A line of /proc/self/status in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{key}:"))


def step_samples(run: Run, index: int, *, rank: int, world_size: int) -> StepSamples[Batch]:
    """This rank's samples of step `index`. All ranks have other samples of the same lengths, so that no time is lost in
    waiting for the one with more work."""
    config = run.model
    own = mlperf_like_samples(
        run.micro_batch_size,
        max_length=config.max_position_embeddings,
        vocab_size=config.vocab_size,
        seed=index,
        rank=rank,
    )
    return StepSamples(
        index,
        [make_batch(own)],
        global_samples=own.num_samples * world_size,
        global_masked=own.num_masked * world_size,
        global_tokens=own.num_tokens * world_size,
    )


def mlperf_like_samples(count: int, *, max_length: int, vocab_size: int, seed: int, rank: int = 0) -> Samples:
    """The lengths depend on `seed` only, all else on `rank` too."""
    lengths = mlperf_like_lengths(count, max_length, np.random.default_rng(seed))
    return random_samples(lengths, vocab_size, np.random.default_rng([seed, rank]))
