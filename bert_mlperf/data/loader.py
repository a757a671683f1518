"""The loader: a thread that fetches this rank's samples of the coming steps while the model computes."""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from types import TracebackType
from typing import Generic, TypeVar

import numpy as np

from bert_mlperf.data.order import global_batch_ids
from bert_mlperf.data.samples import Samples
from bert_mlperf.data.shards import ShardSet

T = TypeVar("T")

CLOSE_SECONDS = 5.0


@dataclass(frozen=True)
class StepSamples(Generic[T]):
    """What one rank needs for one step. The counts are those of the global batch, known without communication."""

    step: int  # 0-based
    micro_batches: list[T]  # collate(samples, indices) of this rank's micro-batches, in order
    global_samples: int
    global_masked: int
    global_tokens: int


class Loader(Generic[T]):
    """Endless steps from `start_step` on, `prefetch` of them ready ahead.

    Step k holds the samples `global_batch_ids(seed, k, ...)`; rank r's accumulation a takes positions
    (a * world_size + r) * micro_batch_size onwards, and `collate` gets them with these positions. An error in the
    thread is raised in the consumer. Close it, or use it as a context manager.
    """

    def __init__(
        self,
        shards: ShardSet,
        *,
        seed: int,
        global_batch_size: int,
        micro_batch_size: int,
        accumulation_steps: int,
        rank: int,
        world_size: int,
        collate: Callable[[Samples, np.ndarray], T],
        start_step: int = 0,
        prefetch: int = 2,
    ) -> None:
        assert global_batch_size == micro_batch_size * accumulation_steps * world_size and 0 <= rank < world_size
        self._shards = shards
        self._seed = seed
        self._global_batch_size = global_batch_size
        self._micro_batch_size = micro_batch_size
        self._first_positions = (np.arange(accumulation_steps) * world_size + rank) * micro_batch_size
        self._collate = collate
        self._start_step = start_step
        self._ready: queue.Queue[StepSamples[T] | BaseException] = queue.Queue(maxsize=prefetch)
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="loader", daemon=True)
        self.wait_seconds = 0.0  # time that the consumer has waited for samples so far
        self._thread.start()

    def __iter__(self) -> Iterator[StepSamples[T]]:
        return self

    def __next__(self) -> StepSamples[T]:
        if self._failure is not None:
            raise self._failure
        start = time.perf_counter()
        item = self._wait()
        self.wait_seconds += time.perf_counter() - start
        if isinstance(item, BaseException):
            self._failure = item
            raise item
        return item

    def close(self) -> None:
        """Stops and joins the thread; afterwards the iteration is over. A thread that hangs in a read for more than
        CLOSE_SECONDS is left behind: it is a daemon and ends with the process."""
        self._stop.set()
        deadline = time.monotonic() + CLOSE_SECONDS
        while self._thread.is_alive() and time.monotonic() < deadline:
            self._drain()  # a thread that waits for room in the queue must wake up
            self._thread.join(timeout=0.01)
        self._drain()

    def __enter__(self) -> "Loader[T]":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _wait(self) -> StepSamples[T] | BaseException:
        """The next item; StopIteration if the loader is or gets closed (by a signal handler, say)."""
        while not self._stop.is_set():
            try:
                return self._ready.get(timeout=0.2)
            except queue.Empty:
                continue
        return StopIteration()

    def _drain(self) -> None:
        while not self._ready.empty():
            self._ready.get_nowait()

    def _work(self) -> None:
        try:
            for step in count(self._start_step):
                if self._stop.is_set():
                    return
                self._ready.put(self._load(step))
        except BaseException as error:  # handed over whatever it is: the consumer must never wait for a dead thread
            self._ready.put(error)

    def _load(self, step: int) -> StepSamples[T]:
        ids = global_batch_ids(self._seed, step, self._shards.num_samples, self._global_batch_size)
        size = self._micro_batch_size
        own = [np.arange(first, first + size) for first in self._first_positions]
        return StepSamples(
            step=step,
            micro_batches=[self._collate(self._shards.take(ids[positions]), positions) for positions in own],
            global_samples=len(ids),
            global_masked=int(self._shards.masked_counts[ids].sum(dtype=np.int64)),
            global_tokens=int(self._shards.lengths[ids].sum(dtype=np.int64)),
        )


def evaluation_samples(shards: ShardSet, rank: int, world_size: int) -> Samples:
    """This rank's part of an evaluation set: samples rank, rank + world_size, ...; each belongs to exactly one rank.

    A rank has no samples if there are fewer than ranks.
    """
    return shards.take(np.arange(rank, shards.num_samples, world_size))
