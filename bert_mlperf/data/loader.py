"""The loader: threads that read and pack this rank's samples of the coming steps while the model computes."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Generic, Protocol, TypeVar

import numpy as np

from bert_mlperf.data.balance import deal
from bert_mlperf.data.batches import BatchPlan, GlobalBatch
from bert_mlperf.data.samples import Samples
from bert_mlperf.data.shards import ShardSet
from bert_mlperf.errors import UserError

T = TypeVar("T")

CLOSE_SECONDS = 5.0


@dataclass(frozen=True)
class StepSamples(Generic[T]):
    """What one rank needs for one step. The counts are those of the global batch, known without communication."""

    step: int  # 0-based
    micro_batches: list[T]  # collate(samples, positions) of this rank's micro-batches, in order
    global_samples: int
    global_masked: int
    global_tokens: int


class Reader(Protocol):
    """Where the samples come from."""

    ranks_meet: bool  # whether a read waits for the other ranks to read the same step

    def read(self, batch: GlobalBatch) -> list[Samples]:
        """This rank's micro-batches of `batch`. Threads call it."""

    @property
    def reading(self) -> list[Path]:
        """The files that are being read just now."""


class IndexReader:
    """`run.read: index`: this rank reads its own samples where they lie, and nothing else."""

    ranks_meet = False

    def __init__(self, plan: BatchPlan, shards: ShardSet, *, rank: int) -> None:
        self._plan, self._shards, self._rank = plan, shards, rank

    def read(self, batch: GlobalBatch) -> list[Samples]:
        return [self._shards.take(batch.ids_G[part]) for part in self._plan.micro_batches(batch, self._rank)]

    @property
    def reading(self) -> list[Path]:
        return self._shards.reading


class Loader(Generic[T]):
    """Endless steps from `start_step` on, in order, `prefetch` of them ready ahead.

    `workers` threads take the steps in turn: each reads this rank's micro-batches and calls `collate` with them and
    their positions in the global batch. An error in a thread is raised in the consumer, at the step it belongs to; if a
    step is not there after `timeout_s` seconds, it is a UserError that names the files being read. Close the loader, or
    use it as a context manager.
    """

    def __init__(
        self,
        plan: BatchPlan,
        reader: Reader,
        *,
        rank: int,
        collate: Callable[[Samples, np.ndarray], T],
        start_step: int = 0,
        prefetch: int = 2,
        workers: int = 1,
        timeout_s: float = 60.0,
    ) -> None:
        assert workers > 0 and prefetch > 0 and 0 <= rank < plan.world_size
        self._plan, self._reader, self._rank, self._collate = plan, reader, rank, collate
        self._timeout_s = timeout_s
        self._prefetch = prefetch
        self._taken = start_step  # steps before it were handed out
        self._begun = start_step  # steps before it were begun by a worker
        self._ready: dict[int, StepSamples[T] | BaseException] = {}
        self._changed = threading.Condition()
        self._stop = False
        self.wait_seconds = 0.0  # time that the consumer has waited for samples so far
        self._threads = [
            threading.Thread(target=self._work, name=f"loader {number}", daemon=True) for number in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    def __iter__(self) -> Iterator[StepSamples[T]]:
        return self

    def __next__(self) -> StepSamples[T]:
        start = time.perf_counter()
        with self._changed:
            there = self._changed.wait_for(lambda: self._stop or self._taken in self._ready, timeout=self._timeout_s)
            self.wait_seconds += time.perf_counter() - start
            if self._stop:
                raise StopIteration
            if not there:
                raise self._hanging()
            item = self._ready[self._taken]
            if isinstance(item, BaseException):
                raise item  # it stays there: the iteration is over
            del self._ready[self._taken]
            self._taken += 1
            self._changed.notify_all()
        return item

    def close(self) -> None:
        """Stops and joins the threads; afterwards the iteration is over. What hangs in a read for more than
        CLOSE_SECONDS is left behind: the threads are daemons and end with the process."""
        with self._changed:
            self._stop = True
            self._changed.notify_all()
        deadline = time.monotonic() + CLOSE_SECONDS
        for thread in self._threads:
            thread.join(timeout=max(0.0, deadline - time.monotonic()))
        self._ready.clear()

    def __enter__(self) -> "Loader[T]":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None and self._reader.ranks_meet:
            self._finish_begun()
        self.close()

    def _finish_begun(self) -> None:
        """Reads ahead as far as the other ranks do, who have taken as many steps: or they would wait for this one."""
        with self._changed:
            behind = range(self._taken, self._taken + self._prefetch)
            self._changed.wait_for(lambda: all(step in self._ready for step in behind), timeout=CLOSE_SECONDS)

    def _work(self) -> None:
        while (step := self._next_step()) is not None:
            try:
                item: StepSamples[T] | BaseException = self._load(step)
            except BaseException as error:  # handed over whatever it is: the consumer must never wait for a dead thread
                item = error
            with self._changed:
                self._ready[step] = item
                self._changed.notify_all()
            if isinstance(item, BaseException):
                return

    def _next_step(self) -> int | None:
        """The step that the calling worker is to load, once there is room for it; None if the loader is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._stop or self._begun < self._taken + self._prefetch)
            if self._stop:
                return None
            self._begun += 1
            return self._begun - 1

    def _load(self, step: int) -> StepSamples[T]:
        batch = self._plan.batch(step)
        positions = self._plan.micro_batches(batch, self._rank)
        samples = self._reader.read(batch)
        return StepSamples(
            step=step,
            micro_batches=[self._collate(part, at) for part, at in zip(samples, positions, strict=True)],
            global_samples=len(batch.ids_G),
            global_masked=batch.num_masked,
            global_tokens=batch.num_tokens,
        )

    def _hanging(self) -> UserError:
        files = self._reader.reading
        where = f"it is reading {', '.join(map(str, files[:3]))}" if files else "it is in no read of a file"
        return UserError(
            f"the samples of step {self._taken} did not come within {self._timeout_s:g} s ({where}); check the "
            "storage, or raise run.timeout_s if it is that slow."
        )


def evaluation_samples(shards: ShardSet, *, rank: int, world_size: int, balance: str) -> Samples:
    """This rank's part of an evaluation set, longest sample first; each sample belongs to exactly one rank.

    A rank has no samples if there are fewer than ranks.
    """
    lengths, _ = shards.index.counts(np.arange(shards.num_samples))
    return shards.take(deal(lengths, world_size, balance=balance)[rank])
