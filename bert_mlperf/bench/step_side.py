"""One side of `bert-mlperf bench step`, in a process of its own: python -m bert_mlperf.bench.step_side JOB RESULT.

Both sides train on the same batches, in bf16, with the same number of threads and dropout 0.1 everywhere.
"""

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bert_mlperf.bench.peer_ranks import status_bytes
from bert_mlperf.bench.samples import mlperf_like_lengths, random_samples
from bert_mlperf.config.model import NAMED_MODELS, ModelConfig
from bert_mlperf.config.sharding import sharding_plan
from bert_mlperf.config.system import Run
from bert_mlperf.data.loader import StepSamples
from bert_mlperf.data.samples import Samples
from bert_mlperf.model.batch import make_batch

FULL, MLPERF_LIKE = "full length", "MLPerf-like"
OURS, PEER = "ours", "Hugging Face"
MATRIX_OPERATORS = ("aten::mm", "aten::addmm", "aten::bmm")
PEAK_SIZE = 4096  # of the square matrices whose product shows the peak

Step = Callable[[Samples], float]  # trains on a batch and returns its loss


def batches(kind: str, count: int, samples: int, config: ModelConfig) -> list[Samples]:
    """`count` batches. MLPerf-like lengths are taken at evenly spaced quantiles of their distribution, so that a few
    batches stand for all."""
    most, generator = config.max_position_embeddings, np.random.default_rng(0)
    lengths = np.full(count * samples, most)
    if kind == MLPERF_LIKE:
        many = np.sort(mlperf_like_lengths(100_000, most, generator))
        quantiles = (np.arange(count * samples) + 0.5) / (count * samples)
        lengths = generator.permutation(many[(quantiles * len(many)).astype(int)])
    parts = lengths.reshape(count, samples)
    return [random_samples(part, config.vocab_size, np.random.default_rng(i)) for i, part in enumerate(parts)]


def ours(config: ModelConfig, samples: int) -> Step:
    from bert_mlperf.comm.control import Control
    from bert_mlperf.train.setup import build_state
    from bert_mlperf.train.step import train_step

    run = Run.model_validate(
        {
            "model": config,
            "recipe": {"global_batch_size": samples, "base_learning_rate": 1e-3, "training_steps": 1000},
            "data": {"train": "none", "eval": "none"},
            "micro_batch_size": samples,
            "device": "cpu",
        }
    )
    plan = sharding_plan(run, world_size=1)
    state = build_state(run, Control(rank=0, world_size=1), torch.device("cpu"), seed=1, checkpoint=None, plan=plan)

    def step(batch: Samples) -> float:
        counts = (batch.num_samples, batch.num_masked, batch.num_tokens)
        loss = train_step(state, StepSamples(state.step, [make_batch(batch)], *counts)).loss
        state.weights.wait()
        return float(loss)

    return step


def hugging_face(config: ModelConfig, samples: int) -> Step:
    """BertForPreTraining with SDPA on padded samples, bf16 autocast over fp32 weights, fused AdamW."""
    from transformers import BertConfig, BertForPreTraining

    torch.manual_seed(1)
    sizes: dict[str, Any] = {"attn_implementation": "sdpa"}
    model = BertForPreTraining(
        BertConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            num_hidden_layers=config.num_hidden_layers,
            num_attention_heads=config.num_attention_heads,
            intermediate_size=config.intermediate_size,
            max_position_embeddings=config.max_position_embeddings,
            hidden_dropout_prob=config.hidden_dropout_prob,
            attention_probs_dropout_prob=config.attention_probs_dropout_prob,
            **sizes,
        )
    ).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def step(batch: Samples) -> float:
        inputs = padded(batch, config.max_position_embeddings)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(**inputs).loss
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def padded(batch: Samples, length: int) -> dict[str, torch.Tensor]:
    """What Hugging Face's model takes: all samples padded to `length`, label -100 where nothing is masked."""
    shape = (batch.num_samples, length)
    names = ("input_ids", "token_type_ids", "attention_mask")
    arrays = {name: np.zeros(shape, dtype=np.int64) for name in names} | {"labels": np.full(shape, -100)}
    for i in range(batch.num_samples):
        tokens, masked = (slice(o[i], o[i + 1]) for o in (batch.offsets, batch.masked_offsets))
        n = tokens.stop - tokens.start
        arrays["input_ids"][i, :n], arrays["token_type_ids"][i, :n] = batch.input_ids[tokens], batch.segment_ids[tokens]
        arrays["attention_mask"][i, :n] = 1
        arrays["labels"][i, batch.masked_positions[masked]] = batch.masked_ids[masked]
    arrays["next_sentence_label"] = batch.next_sentence_labels.astype(np.int64)
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


SIDES: dict[str, Callable[[ModelConfig, int], Step]] = {OURS: ours, PEER: hugging_face}


def measure(step: Step, work: Sequence[Samples]) -> dict[str, Any]:
    """Seconds of each step after one to warm up, peak memory of all of them in bytes, and the last loss."""
    step(work[0])
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again at what is resident now
    seconds, loss = [], float("nan")
    for batch in work:
        start = time.perf_counter()
        loss = step(batch)
        seconds.append(time.perf_counter() - start)
    return {"seconds": seconds, "peak": status_bytes("VmHWM"), "loss": loss}


def matrix_speed(step: Step, batch: Samples) -> tuple[float, float]:
    """FLOP/s inside torch's matrix operators during a step, from the profiler, and their share of the step's time."""
    from torch.profiler import ProfilerActivity, profile

    start = time.perf_counter()
    with profile(activities=[ProfilerActivity.CPU], with_flops=True) as profiled:
        step(batch)
        whole = time.perf_counter() - start
    events = [event for event in profiled.key_averages() if event.key in MATRIX_OPERATORS]
    flops, seconds = sum(event.flops for event in events), sum(event.self_cpu_time_total for event in events) / 1e6
    return flops / seconds, seconds / whole


def peak_speed() -> float:
    """FLOP/s of the best of several bf16 products of large square matrices."""
    a = torch.randn(PEAK_SIZE, PEAK_SIZE, dtype=torch.bfloat16)
    out, best = torch.empty_like(a), float("inf")
    for _ in range(5):
        start = time.perf_counter()
        torch.mm(a, a, out=out)
        best = min(best, time.perf_counter() - start)
    return 2 * PEAK_SIZE**3 / best


def main(job: dict[str, Any]) -> dict[str, Any]:
    """`job`: side, model, samples, steps, threads. Everything that was measured, as JSON."""
    torch.set_num_threads(job["threads"])
    config = NAMED_MODELS[job["model"]]
    peak = peak_speed()
    step = SIDES[job["side"]](config, job["samples"])
    found: dict[str, Any] = {"peak_speed": peak}
    for kind in (FULL, MLPERF_LIKE):
        work = batches(kind, job["steps"], job["samples"], config)
        found[kind] = measure(step, work) | {"tokens": [batch.num_tokens for batch in work]}
        found[kind]["matrix_speed"], found[kind]["matrix_share"] = matrix_speed(step, work[0])
    return found


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(main(json.loads(Path(sys.argv[1]).read_text()))))
