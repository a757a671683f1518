"""Builds what brings samples to the training step: shards, plan of the batches, loader, evaluation batches."""

import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
import torch

from bert_mlperf.comm.all_to_all import AllToAll, NodeShare
from bert_mlperf.comm.control import Control
from bert_mlperf.comm.process_group import RankInfo
from bert_mlperf.config.system import Run
from bert_mlperf.data.background import Ahead
from bert_mlperf.data.batches import BatchPlan
from bert_mlperf.data.dali import DaliStage, dali_missing
from bert_mlperf.data.exchange import ExchangeReader
from bert_mlperf.data.index import SampleIndex
from bert_mlperf.data.loader import CLOSE_SECONDS, IndexReader, Loader, Reader, StepSamples, evaluation_samples
from bert_mlperf.data.node_cache import fill_node_cache
from bert_mlperf.data.order import SampleOrder
from bert_mlperf.data.parts import find_shards
from bert_mlperf.data.shards import ShardSet
from bert_mlperf.errors import UserError
from bert_mlperf.model.batch import TENSOR_DTYPES, Batch, PackedBatch, make_batch, pack

PREFETCH = 3  # steps


class StepSource(Protocol):
    """Endless steps, and how long the consumer has waited for them."""

    wait_seconds: float

    def __iter__(self) -> Iterator[StepSamples[Batch]]: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


@dataclass(frozen=True)
class DataLinks:
    """How the data sides of the ranks talk; opened before the clock starts, like all communicators."""

    all_to_all: AllToAll | None = None
    share: NodeShare | None = None

    @classmethod
    def open(cls, run: Run, info: RankInfo, device: torch.device) -> "DataLinks":
        """Those that `run` needs, connected. Every rank calls it."""
        all_to_all = share = None
        if run.read == "exchange":
            all_to_all = AllToAll(info.world_size, device, run.timeout_s)
        if run.cache == "node":
            share = NodeShare(
                rank=info.rank,
                world_size=info.world_size,
                ranks_per_node=run.ranks_per_node,
                device=device,
                timeout_s=run.timeout_s,
            )
        return cls(all_to_all, share)


NO_LINKS = DataLinks()


def choose_loader(run: Run, device: torch.device) -> str:
    """ "dali" or "torch". UserError if `run.loader` is dali and it cannot be had."""
    if run.loader == "torch" or (run.loader == "auto" and device.type != "cuda"):
        return "torch"
    reason = dali_missing()
    if reason is None:
        return "dali"
    if run.loader == "dali":
        raise UserError(f"run.loader is dali, but {reason}; install the extra dali-cuda12 or dali-cuda13, or set auto.")
    return "torch"


def open_shards(run: Run, path: Path, *, index: str | None = None) -> ShardSet:
    """The samples at `path` for the model of `run`."""
    return ShardSet.open(
        path,
        vocab_size=run.model.vocab_size,
        max_length=run.model.max_position_embeddings,
        index=None if index is None else Path(index),
    )


def batch_plan(run: Run, index: SampleIndex, *, world_size: int, order_seed: int) -> BatchPlan:
    """Which rank gets which samples, step by step."""
    return BatchPlan(
        SampleOrder(order_seed, index.num_samples),
        index,
        global_batch_size=run.recipe.global_batch_size,
        accumulation_steps=run.gradient_accumulation_steps,
        world_size=world_size,
        balance=run.balance,
    )


def open_loader(
    run: Run,
    shards: ShardSet,
    info: RankInfo,
    device: torch.device,
    *,
    order_seed: int,
    links: DataLinks = NO_LINKS,
    start_step: int = 0,
) -> StepSource:
    """The steps of this rank from `start_step` on."""
    plan = batch_plan(run, shards.index, world_size=info.world_size, order_seed=order_seed)
    reader: Reader = IndexReader(plan, shards, rank=info.rank)
    prefetch = PREFETCH
    if links.all_to_all is not None:
        reader = ExchangeReader(
            plan,
            shards,
            rank=info.rank,
            vocab_size=run.model.vocab_size,
            all_to_all=links.all_to_all,
            start_step=start_step,
        )
        prefetch += reader.steps_per_round
    use_dali = choose_loader(run, device) == "dali"
    collate: Any = pack if use_dali else pinned if device.type == "cuda" else make_batch
    loader: Loader[Any] = Loader(
        plan,
        reader,
        rank=info.rank,
        collate=collate,
        start_step=start_step,
        prefetch=prefetch,
        workers=run.loader_workers,
        timeout_s=run.timeout_s / 2,  # before the other ranks give up
    )
    return DaliLoader(loader, device) if use_dali else loader


def pinned(samples: Any, positions: np.ndarray) -> Batch:
    """A `Batch` in pinned memory, which the step copies to the device without waiting."""
    batch = make_batch(samples, positions)
    return replace(batch, **{name: getattr(batch, name).pin_memory() for name in TENSOR_DTYPES})


class DaliLoader:
    """The steps of a loader of packed batches, brought to the device by DALI, which a thread draws from: what DALI does
    when it is asked for a batch (it fetches and copies a later one) costs the training step nothing."""

    def __init__(self, loader: Loader[PackedBatch], device: torch.device) -> None:
        self._loader = loader
        self._packed: deque[PackedBatch] = deque()  # that DALI has not asked for yet
        self._steps: deque[StepSamples[PackedBatch]] = deque()  # that DALI holds
        self._device_id = device.index if device.type == "cuda" else None
        self._ahead = Ahead(self._work(), depth=1)
        self.wait_seconds = 0.0

    def __iter__(self) -> Iterator[StepSamples[Batch]]:
        return self

    def __next__(self) -> StepSamples[Batch]:
        start = time.perf_counter()
        step = next(self._ahead)
        self.wait_seconds += time.perf_counter() - start
        return step

    def __enter__(self) -> "DaliLoader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self._ahead.settle(timeout_s=CLOSE_SECONDS)  # as far as on the other ranks
        self._loader.__exit__(kind, error, traceback)
        self._ahead.close(timeout_s=CLOSE_SECONDS)

    def _work(self) -> Iterator[StepSamples[Batch]]:
        with closing(DaliStage(self._source, dtypes=TENSOR_DTYPES, device_id=self._device_id)) as stage:
            while True:
                tensors = [on_torch(next(stage))]
                step = self._steps.popleft()
                tensors += [on_torch(next(stage)) for _ in step.micro_batches[1:]]
                batches = [packed.with_tensors(t) for packed, t in zip(step.micro_batches, tensors, strict=True)]
                counts = (step.global_samples, step.global_masked, step.global_tokens)
                yield StepSamples(step.step, batches, *counts)

    def _source(self) -> Mapping[str, np.ndarray]:
        if not self._packed:
            step = next(self._loader)
            self._steps.append(step)
            self._packed.extend(step.micro_batches)
        return self._packed.popleft().arrays


def on_torch(outputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """DALI's outputs as tensors of the same memory."""
    return {name: torch.from_dlpack(value) for name, value in outputs.items()}


def evaluation_batches(run: Run, shards: ShardSet, info: RankInfo) -> list[Batch]:
    """This rank's evaluation samples as micro-batches, longest sample first."""
    samples = evaluation_samples(shards, rank=info.rank, world_size=info.world_size, balance=run.balance)
    size = run.micro_batch_size
    numbers = np.arange(samples.num_samples)
    return [make_batch(samples.take(numbers[start : start + size])) for start in range(0, len(numbers), size)]


def cache_on_node(run: Run, path: Path, folder: Path, info: RankInfo, links: DataLinks, control: Control) -> Path:
    """Copies the training shards at `path` into `folder` on this node, all nodes together, and returns where they are
    to be read. Rank 0 says what was read and how long it took. Every rank calls it."""
    assert links.share is not None
    nodes, started = info.world_size // run.ranks_per_node, time.perf_counter()
    told = started

    def tell(share: float) -> None:
        nonlocal told
        if info.rank == 0 and time.perf_counter() - told >= run.progress_interval_s:
            told = time.perf_counter()
            print(f"cache    {share:.0%} of the shards, {told - started:.0f} s", file=sys.stderr, flush=True)

    filled = fill_node_cache(
        find_shards(path),
        folder,
        node=info.rank // run.ranks_per_node,
        nodes=nodes,
        local_rank=info.rank % run.ranks_per_node,
        ranks_per_node=run.ranks_per_node,
        share=links.share,
        progress=tell,
    )
    read = torch.tensor([filled.bytes_read], device=links.share.device)
    control.sum(read)  # behind it every rank has written its pieces
    if info.rank == 0:
        print(
            f"cache    {int(read) / 1e6:,.1f} MB read from storage by {nodes} node(s) in all, of "
            f"{filled.bytes_total / 1e6:,.1f} MB of shards, in {time.perf_counter() - started:.1f} s",
            file=sys.stderr,
            flush=True,
        )
    return folder if path.is_dir() else folder / path.name
