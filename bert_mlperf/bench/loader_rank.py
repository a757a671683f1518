"""What each rank of `bench loader` does: draw batches as fast as they come, then at a given pace."""

import resource
import time
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from bert_mlperf.bench.overlap_rank import stay_on_one_core
from bert_mlperf.comm.control import Control
from bert_mlperf.comm.process_group import RankInfo
from bert_mlperf.config.model import NAMED_MODELS
from bert_mlperf.config.system import Run
from bert_mlperf.data.index import SampleIndex, read_index
from bert_mlperf.train import loading

PAGE = resource.getpagesize()


def run_of(loader: str, read: str, *, workers: int, micro_batch: int, world_size: int) -> Run:
    """The run whose loader is measured."""
    fields = {
        "model": NAMED_MODELS["bert-large"],
        "recipe": {"global_batch_size": micro_batch * world_size, "base_learning_rate": 1e-3, "training_steps": 1000},
        "data": {"train": "unused", "eval": "unused"},
        "micro_batch_size": micro_batch,
        "device": "cpu",
        "loader": loader,
        "loader_workers": workers,
        "read": read,
    }
    return Run.model_validate(fields)


def draw(
    control: Control,
    *,
    data: str,
    index: str,
    loader: str,
    read: str,
    workers: int,
    micro_batch: int,
    pace: float,
    free_samples: int,
    paced_seconds: float,
) -> dict[str, float]:
    """Seconds to the first batch; samples per second of wall and of CPU time and growth of memory (MB) over
    `free_samples` samples of this rank; share of the time that a consumer of `pace` samples/s waited in
    `paced_seconds`."""
    stay_on_one_core(control.rank)
    run = run_of(loader, read, workers=workers, micro_batch=micro_batch, world_size=control.world_size)
    info = RankInfo(control.rank, control.rank, control.world_size)
    device = torch.device("cpu")
    links = loading.DataLinks.open(run, info, device)
    control.sum(torch.zeros(1))
    start = time.perf_counter()
    shards = loading.open_shards(run, Path(data), index=index)
    with loading.open_loader(run, shards, info, device, order_seed=1, links=links) as steps:
        drawn = iter(steps)
        next(drawn)
        first = time.perf_counter() - start
        count = -(-free_samples // micro_batch)
        for _ in islice(drawn, count // 4):  # windows, queues and caches reach their size
            pass
        memory, start, cpu = resident_mb(), time.perf_counter(), time.process_time()
        for _ in islice(drawn, count):
            pass
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        grown = resident_mb() - memory
        control.sum(torch.zeros(1))
        waited, late = paced(steps, drawn, interval=micro_batch / pace, seconds=paced_seconds)
    return {
        "first": first,
        "rate": count * micro_batch / seconds,
        "cpu_rate": count * micro_batch / cpu,
        "memory": memory,
        "grown": grown,
        "waited": waited,
        "late": late,
    }


def paced(source: loading.StepSource, steps: Any, *, interval: float, seconds: float) -> tuple[float, float]:
    """Draws a step every `interval` seconds. The share of the time in which the consumer waited, and by how many
    seconds it was behind in the end."""
    before, start = source.wait_seconds, time.perf_counter()
    turns = max(1, round(seconds / interval))
    for turn in range(turns):
        next(steps)
        time.sleep(max(0.0, start + (turn + 1) * interval - time.perf_counter()))
    taken = time.perf_counter() - start
    return (source.wait_seconds - before) / taken, taken - turns * interval


def plan_batches(control: Control, *, index: str, micro_batch: int, steps: int) -> dict[str, float]:
    """Memory (MB) that planning `steps` global batches over an index takes, and milliseconds of one."""
    run = run_of("torch", "index", workers=1, micro_batch=micro_batch, world_size=1)
    before = resident_mb()
    found: SampleIndex = read_index(Path(index))
    plan = loading.batch_plan(run, found, world_size=1, order_seed=1)
    plan.batch(0)
    start = time.perf_counter()
    for step in range(steps):
        plan.batch(1 + 997 * step)  # all over the epoch
    return {"grown": resident_mb() - before, "milliseconds": 1e3 * (time.perf_counter() - start) / steps}


def resident_mb() -> float:
    """Resident memory of this process in MB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE / 1e6
