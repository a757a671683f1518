"""`run.read: exchange`: each rank reads only its own shards, and the samples change hands over the network.

For storage that a rank sees only a part of, or that is slow at reads here and there: a rank reads its samples of a
window (see order.py) in the sequence in which they lie in the files, once, and holds them until the window is over.
Every few steps, in a round, each rank sends every other the samples that it needs next. Who sends what to whom, and in
how many bytes, all ranks know from the index, so nothing but samples is sent. The batches are those of
`run.read: index`.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bert_mlperf.data.batches import BatchPlan, GlobalBatch
from bert_mlperf.data.index import SampleIndex
from bert_mlperf.data.order import BLOCK_SAMPLES
from bert_mlperf.data.samples import Row, Samples, concatenate, join_rows, offsets_of
from bert_mlperf.data.shard_file import sample_dtypes
from bert_mlperf.data.shards import ShardSet

AllToAll = Callable[[Sequence[np.ndarray], Sequence[int]], Sequence[np.ndarray]]
"""(bytes for each rank, number of bytes from each rank) -> bytes from each rank; all are uint8."""

ROUND_SAMPLES = 4096  # of a round, if a batch is smaller


def owners(index: SampleIndex, ids: np.ndarray, *, world_size: int) -> np.ndarray:
    """The rank that reads each of the samples `ids`, int64 [k].

    Files are dealt to the ranks in turn. Where there are fewer files than ranks, those of a file (r with r mod files =
    file) take runs of BLOCK_SAMPLES of it in turn.
    """
    files, numbers = index.locate(ids)
    num_files = len(index.files)
    if num_files >= world_size:
        return files % world_size
    sharers = (world_size - 1 - files) // num_files + 1
    return files + num_files * (numbers // BLOCK_SAMPLES % sharers)


def own_files(index: SampleIndex, *, rank: int, world_size: int) -> list[str]:
    """Names of the files that `rank` reads."""
    step = min(len(index.files), world_size)
    return [file.name for number, file in enumerate(index.files) if number % step == rank % step]


@dataclass(frozen=True)
class _Window:
    """This rank's samples of a window."""

    end: int  # position behind it
    ids: np.ndarray  # ascending
    samples: Samples


class ExchangeReader:
    """Reads this rank's micro-batches of the steps from `start_step` on, each once and in about that order.

    Threads may ask for several steps at a time; the rounds are made one after the other, by whoever comes first. So all
    ranks must ask for the same steps in the end, or somebody waits until `all_to_all` gives up.
    """

    ranks_meet = True

    def __init__(
        self,
        plan: BatchPlan,
        shards: ShardSet,
        *,
        rank: int,
        vocab_size: int,
        all_to_all: AllToAll,
        start_step: int = 0,
    ) -> None:
        self._plan, self._shards, self._rank = plan, shards, rank
        self._dtypes = wire_dtypes(vocab_size=vocab_size)
        self._all_to_all = all_to_all
        self._next = start_step
        self._ready: dict[int, list[Samples]] = {}
        self._windows: dict[int, _Window] = {}
        self._lock = threading.Lock()
        self.steps_per_round = max(1, ROUND_SAMPLES // plan.global_batch_size)

    @property
    def reading(self) -> list[Path]:
        """The files that are being read."""
        return self._shards.reading

    def read(self, batch: GlobalBatch) -> list[Samples]:
        """This rank's micro-batches of `batch`. UserError if a file of ours fails, RuntimeError if a rank is lost."""
        with self._lock:
            while batch.step >= self._next:
                steps = range(self._next, self._next + self.steps_per_round)
                self._exchange([batch if step == batch.step else self._plan.batch(step) for step in steps])
                self._next = steps.stop
            return self._ready.pop(batch.step)

    def _exchange(self, batches: list[GlobalBatch]) -> None:
        ids = np.concatenate([batch.ids_G for batch in batches])
        lengths = np.concatenate([batch.lengths_G for batch in batches])
        masked_counts = np.concatenate([batch.masked_counts_G for batch in batches])
        to = np.concatenate([self._plan.ranks(batch) for batch in batches])
        by = owners(self._plan.index, ids, world_size=self._plan.world_size)
        ranks = range(self._plan.world_size)
        first = batches[0].step * self._plan.global_batch_size
        own = self._read_own(ids, by == self._rank, first=first)
        outgoing = [to_bytes(own.take(np.flatnonzero(to[by == self._rank] == rank)), self._dtypes) for rank in ranks]
        places = [np.flatnonzero((to == self._rank) & (by == rank)) for rank in ranks]
        sizes = [num_bytes(lengths[at], masked_counts[at], self._dtypes) for at in places]
        incoming = self._all_to_all(outgoing, sizes)
        received = concatenate(
            [
                from_bytes(data, lengths[at], masked_counts[at], self._dtypes)
                for data, at in zip(incoming, places, strict=True)
            ]
        )
        number = np.full(len(ids), -1)  # of the sample at each position among those received
        number[np.concatenate(places)] = np.arange(received.num_samples)
        for turn, batch in enumerate(batches):
            base = turn * self._plan.global_batch_size
            parts = self._plan.micro_batches(batch, self._rank)
            self._ready[batch.step] = [received.take(number[base + positions]) for positions in parts]

    def _read_own(self, ids: np.ndarray, mine: np.ndarray, *, first: int) -> Samples:
        """The samples `ids[mine]`, where `ids` stand at positions `first`, ... of the order."""
        rows: list[Row] = []
        at = first
        while at < first + len(ids):
            window = self._window(at)
            wanted = slice(at - first, min(window.end - first, len(ids)))
            numbers = np.searchsorted(window.ids, ids[wanted][mine[wanted]])
            rows.extend(map(window.samples.row, numbers.tolist()))
            at = window.end
        self._windows = {start: window for start, window in self._windows.items() if window.end > first + len(ids)}
        return join_rows(rows)

    def _window(self, position: int) -> _Window:
        """The window that `position` lies in, read if it is not there yet."""
        start, end = self._plan.order.window(position)
        if start not in self._windows:
            ids = self._plan.order.ids(start, end)
            own = np.sort(ids[owners(self._plan.index, ids, world_size=self._plan.world_size) == self._rank])
            self._windows[start] = _Window(end, own, self._shards.take(own))
        return self._windows[start]


def wire_dtypes(*, vocab_size: int) -> dict[str, str]:
    """Of the columns of samples, in the order in which they are sent."""
    stored = sample_dtypes(vocab_size=vocab_size, max_length=1 << 16)
    return {name: stored[name] for name in _counts(np.zeros(0), np.zeros(0))}


def to_bytes(samples: Samples, dtypes: dict[str, str]) -> np.ndarray:
    """The values of `samples` without their offsets, uint8."""
    columns = [getattr(samples, name).astype(dtype, copy=False) for name, dtype in dtypes.items()]
    return np.concatenate([np.ascontiguousarray(column).view(np.uint8) for column in columns])


def num_bytes(lengths: np.ndarray, masked_counts: np.ndarray, dtypes: dict[str, str]) -> int:
    """How many bytes `to_bytes` makes of samples of these lengths."""
    return sum(count * np.dtype(dtypes[name]).itemsize for name, count in _counts(lengths, masked_counts).items())


def from_bytes(data: np.ndarray, lengths: np.ndarray, masked_counts: np.ndarray, dtypes: dict[str, str]) -> Samples:
    """The inverse of `to_bytes`, for samples of these lengths."""
    columns, at = {}, 0
    for name, count in _counts(lengths, masked_counts).items():
        end = at + count * np.dtype(dtypes[name]).itemsize
        columns[name] = np.frombuffer(data[at:end].tobytes(), dtypes[name])
        at = end
    return Samples(offsets=offsets_of(lengths), masked_offsets=offsets_of(masked_counts), **columns)


def _counts(lengths: np.ndarray, masked_counts: np.ndarray) -> dict[str, int]:
    """Values of each column."""
    tokens, masked = int(lengths.sum()), int(masked_counts.sum())
    return {
        "input_ids": tokens,
        "segment_ids": tokens,
        "masked_positions": masked,
        "masked_ids": masked,
        "next_sentence_labels": len(lengths),
    }
