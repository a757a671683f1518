"""`run.read: exchange` gives the batches of `run.read: index`; ranks are threads here, tests/dist has processes."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_mlperf.data import exchange
from bert_mlperf.data.batches import BatchPlan
from bert_mlperf.data.exchange import ExchangeReader, owners
from bert_mlperf.data.index import IndexedFile, SampleIndex
from bert_mlperf.data.loader import IndexReader, Loader, StepSamples
from bert_mlperf.data.order import SampleOrder
from bert_mlperf.data.shards import ShardSet, write_shard
from bert_mlperf.errors import UserError
from tests.data.files import MAX_LENGTH, VOCAB_SIZE, make_samples

NUM_SAMPLES = 110
SECONDS = 20


class Ranks:
    """An all-to-all between threads."""

    def __init__(self, world_size: int) -> None:
        self._barrier = threading.Barrier(world_size)
        self._sent: dict[int, Sequence[np.ndarray]] = {}
        self.world_size = world_size
        self.rounds = [0] * world_size

    def all_to_all(self, rank: int) -> exchange.AllToAll:
        def exchanged(outgoing: Sequence[np.ndarray], sizes: Sequence[int]) -> Sequence[np.ndarray]:
            self._sent[rank] = outgoing
            self._barrier.wait(SECONDS)
            received = [self._sent[other][rank] for other in range(self.world_size)]
            self._barrier.wait(SECONDS)
            self.rounds[rank] += 1
            assert [len(part) for part in received] == list(sizes)
            return received

        return exchanged

    def run(self, function: Any) -> list[Any]:
        """function(rank) of all ranks; the first error is raised."""
        results: list[Any] = [None] * self.world_size

        def work(rank: int) -> None:
            try:
                results[rank] = function(rank)
            except BaseException as error:
                results[rank] = error
                self._barrier.abort()

        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(self.world_size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * SECONDS)
        for result in results:
            if isinstance(result, UserError):
                raise result
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return results


def write_set(folder: Path, files: int) -> ShardSet:
    """110 samples in files of different sizes; sample i has i + 3 tokens."""
    samples = make_samples(np.arange(NUM_SAMPLES) + 3)
    borders = [0, *np.sort(np.random.default_rng(files).choice(np.arange(1, NUM_SAMPLES), files - 1, replace=False))]
    for i, (first, end) in enumerate(zip(borders, [*borders[1:], NUM_SAMPLES], strict=True)):
        part = samples.take(np.arange(first, end))
        write_shard(folder / f"part_{i}_of_{files}.hdf5", part, vocab_size=VOCAB_SIZE)
    return open_set(folder)


def open_set(folder: Path) -> ShardSet:
    return ShardSet.open(folder, vocab_size=VOCAB_SIZE, max_length=MAX_LENGTH)


def make_plan(shards: ShardSet, world_size: int) -> BatchPlan:
    return BatchPlan(
        SampleOrder(5, NUM_SAMPLES, 4, 6),  # five windows
        shards.index,
        global_batch_size=24,
        accumulation_steps=2,
        world_size=world_size,
        balance="snake",
    )


def draw(loader: Loader[Any], steps: int) -> list[StepSamples[Any]]:
    with loader:
        return [next(loader) for _ in range(steps)]


def as_bytes(samples: Any, positions: np.ndarray) -> list[Any]:
    values = [getattr(samples, name) for name in samples.__dataclass_fields__]
    return [(value.dtype.str, value.tobytes()) for value in (*values, positions)]


@pytest.mark.parametrize("files", [1, 2, 3, 7])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("workers", [1, 4])
def test_the_batches_are_those_of_the_index_to_the_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world_size: int, files: int, workers: int
) -> None:
    """Two steps a round, nine steps: across windows and the border of an epoch, from step 0 and from step 5."""
    monkeypatch.setattr(exchange, "ROUND_SAMPLES", 48)
    shards = write_set(tmp_path, files)
    plan = make_plan(shards, world_size)
    for start in (0, 5):
        ranks = Ranks(world_size)

        def exchanged(rank: int, ranks: Ranks = ranks, start: int = start) -> list[StepSamples[Any]]:
            reader = ExchangeReader(
                plan,
                shards,
                rank=rank,
                vocab_size=VOCAB_SIZE,
                all_to_all=ranks.all_to_all(rank),
                start_step=start,
            )
            options: dict[str, Any] = {"start_step": start, "prefetch": 4, "workers": workers}
            return draw(Loader(plan, reader, rank=rank, collate=as_bytes, **options), 9)

        found = ranks.run(exchanged)
        for rank in range(world_size):
            reader = IndexReader(plan, shards, rank=rank)
            expected = draw(Loader(plan, reader, rank=rank, collate=as_bytes, start_step=start), 9)
            assert found[rank] == expected


@pytest.mark.parametrize(("files", "world_size"), [(7, 3), (3, 3), (2, 4), (1, 4), (3, 7)])
def test_every_sample_has_one_owner_who_sees_its_file(files: int, world_size: int) -> None:
    sizes = [4000, 10, 3000, 0, 2000, 700, 1000][:files]
    index = SampleIndex(
        tuple(IndexedFile(str(i), size, "") for i, size in enumerate(sizes)),
        np.ones(sum(sizes), np.uint16),
        np.ones(sum(sizes), np.uint16),
    )
    ids = np.arange(index.num_samples)
    found = owners(index, ids, world_size=world_size)
    assert found.min() >= 0 and found.max() < world_size
    seen = [exchange.own_files(index, rank=rank, world_size=world_size) for rank in range(world_size)]
    assert all(seen) or files > world_size
    for file, rank in set(zip(index.locate(ids)[0].tolist(), found.tolist(), strict=True)):
        assert str(file) in seen[rank]
    if files < world_size:  # all ranks of the first file, which is long, read of it
        assert set(found[:4000].tolist()) == set(range(0, world_size, files))


def test_a_rank_reads_its_own_files_only_and_each_sample_of_a_window_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "ROUND_SAMPLES", 24)
    shards = write_set(tmp_path, 3)
    plan, ranks = make_plan(shards, 2), Ranks(2)
    taken: list[list[int]] = [[], []]

    class Counting(ShardSet):
        rank: int

        def take(self, ids: np.ndarray) -> Any:
            taken[self.rank] += ids.tolist()
            return super().take(ids)

    def exchanged(rank: int) -> None:
        own = Counting.open(tmp_path, vocab_size=VOCAB_SIZE, max_length=MAX_LENGTH)
        own.rank = rank  # type: ignore[attr-defined]
        reader = ExchangeReader(plan, own, rank=rank, vocab_size=VOCAB_SIZE, all_to_all=ranks.all_to_all(rank))
        for step in range(NUM_SAMPLES // 24):  # nearly an epoch
            reader.read(plan.batch(step))

    ranks.run(exchanged)
    for rank in range(2):
        assert len(set(taken[rank])) == len(taken[rank])
        assert set(owners(shards.index, np.array(taken[rank]), world_size=2).tolist()) == {rank}


def test_a_lost_shard_is_named_by_the_rank_that_reads_it(tmp_path: Path) -> None:
    shards = write_set(tmp_path, 2)
    plan, ranks = make_plan(shards, 2), Ranks(2)
    own = [open_set(tmp_path) for _ in range(2)]
    lost = tmp_path / "part_1_of_2.hdf5"
    lost.unlink()

    def exchanged(rank: int) -> None:
        reader = ExchangeReader(plan, own[rank], rank=rank, vocab_size=VOCAB_SIZE, all_to_all=ranks.all_to_all(rank))
        reader.read(plan.batch(0))

    with pytest.raises(UserError, match=f"{lost} can no longer be read"):
        ranks.run(exchanged)
