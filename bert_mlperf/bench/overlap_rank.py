"""What each rank of `bench overlap` does: train a few steps and say how long each took."""

import hashlib
import os
import time
from dataclasses import replace
from typing import Any

import torch

from bert_mlperf.comm.control import Control
from bert_mlperf.config.model import ModelConfig
from bert_mlperf.config.sharding import sharding_plan
from bert_mlperf.config.system import Run
from bert_mlperf.data.loader import StepSamples
from bert_mlperf.model.batch import Batch, make_batch
from bert_mlperf.model.bert import build_model
from bert_mlperf.train.setup import kernels, shard_state, synthetic_samples
from bert_mlperf.train.step import train_step

LAYERS, HIDDEN, VOCABULARY, HEADS = 12, 512, 4096, 8
LENGTH, MICRO_BATCH = 128, 12  # tokens of a sample, samples of a rank
BUCKET_MIB = 2.0
WARM_UP = 1  # steps


def run_of(ranks_per_host: int, world_size: int, *, overlap: bool) -> Run:
    """The run that is measured; its data are not opened."""
    model = ModelConfig(
        name="bert-overlap-bench",
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=4 * HIDDEN,
        max_position_embeddings=LENGTH,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    fields = {
        "model": model,
        "recipe": {
            "global_batch_size": MICRO_BATCH * world_size,
            "base_learning_rate": 1e-3,
            "training_steps": 1000,
        },
        "data": {"train": "unused", "eval": "unused"},
        "micro_batch_size": MICRO_BATCH,
        "ranks_per_node": ranks_per_host,
        "precision": "fp32",
        "wire": "bf16",  # the hosts share this machine's cores, which also do the work of the network
        "reduction": "hierarchical",
        "bucket_mib": BUCKET_MIB,
        "overlap": overlap,
        "device": "cpu",
    }
    return Run.model_validate(fields)


def step_of(world_size: int) -> StepSamples[Batch]:
    """The samples of every step: those of a warm-up."""
    samples = synthetic_samples(MICRO_BATCH, LENGTH, VOCABULARY)
    counts = [n * world_size for n in (samples.num_samples, samples.num_masked, samples.num_tokens)]
    return StepSamples(0, [make_batch(samples)], *counts)


def stay_on_one_core(rank: int) -> None:
    """Where ranks share cores, each keeps to one: the same share for all, and a rank that waits for the link lends its
    core to fewer others, whose compute would look shorter than it is."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})


def train(control: Control, *, ranks_per_host: int, steps: int, overlap: bool) -> dict[str, Any]:
    """Trains WARM_UP + `steps` steps on one thread. When each of the last ones began and the last ended (seconds since
    1970), what the recorder noted in them, all losses, a checksum of the weights."""
    stay_on_one_core(control.rank)
    run = run_of(ranks_per_host, control.world_size, overlap=overlap)
    plan = sharding_plan(run, world_size=control.world_size)
    torch.manual_seed(control.rank)
    device = torch.device("cpu")
    state = shard_state(build_model(run.model, seed=1, kernels=kernels(run, device)), run, plan, control, device)
    step = step_of(control.world_size)
    losses, starts = [], []
    for number in range(WARM_UP + steps):
        if number == WARM_UP:
            state.recorder.start()
        starts.append(time.time())
        losses.append(train_step(state, replace(step, step=number)).loss.item())
    starts.append(time.time())
    spans = state.recorder.stop()
    state.weights.wait()
    checksum = hashlib.sha256(state.flat.weights.numpy().tobytes()).hexdigest()
    return {
        "starts": starts[WARM_UP:],
        "spans": [[s.lane, s.name, s.start, s.end] for s in spans],
        "losses": losses,
        "checksum": checksum,
    }
