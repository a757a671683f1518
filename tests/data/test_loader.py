import itertools
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bert_mlperf.data import loader as loader_module
from bert_mlperf.data.balance import BALANCES
from bert_mlperf.data.batches import BatchPlan
from bert_mlperf.data.loader import IndexReader, Loader, StepSamples, evaluation_samples
from bert_mlperf.data.order import SampleOrder
from bert_mlperf.data.samples import Samples
from bert_mlperf.data.shard_reader import ShardReader
from bert_mlperf.data.shards import ShardSet, write_shard
from bert_mlperf.errors import UserError
from tests.data.files import MAX_LENGTH, VOCAB_SIZE, make_samples

NUM_SAMPLES = 50
Collate = Callable[[Samples, np.ndarray], Any]


@pytest.fixture(params=[1, 2, 3, 7], ids=["1 file", "2 files", "3 files", "7 files"])
def shards(request: pytest.FixtureRequest, tmp_path: Path) -> ShardSet:
    """50 samples in one to seven files of different sizes; sample i has the label of its own: i + 3 tokens."""
    samples = make_samples(np.arange(NUM_SAMPLES) + 3)
    borders = [0, *[17, 20, 21, 30, 42, 48][: request.param - 1], NUM_SAMPLES]
    for i in range(request.param):
        part = samples.take(np.arange(borders[i], borders[i + 1]))
        write_shard(tmp_path / f"part_{i}_of_{request.param}.hdf5", part, vocab_size=VOCAB_SIZE)
    return ShardSet.open(tmp_path, vocab_size=VOCAB_SIZE, max_length=MAX_LENGTH)


def sample_ids(samples: Samples, positions: np.ndarray | None = None) -> list[int]:
    return (samples.lengths - 3).tolist()


def make_plan(
    shards: ShardSet, *, world_size: int = 1, micro: int = 12, accumulation: int = 1, balance: str = "snake"
) -> BatchPlan:
    return BatchPlan(
        SampleOrder(5, shards.num_samples),
        shards.index,
        global_batch_size=micro * accumulation * world_size,
        accumulation_steps=accumulation,
        world_size=world_size,
        balance=balance,
    )


def open_loader(
    shards: ShardSet, plan: BatchPlan, *, rank: int = 0, collate: Collate = sample_ids, **options: Any
) -> Loader:
    return Loader(plan, IndexReader(plan, shards, rank=rank), rank=rank, collate=collate, **options)


def load(
    shards: ShardSet, steps: int, *, rank: int = 0, start_step: int = 0, workers: int = 1, **split: Any
) -> list[StepSamples[list[int]]]:
    plan = make_plan(shards, **split)
    with open_loader(shards, plan, rank=rank, start_step=start_step, workers=workers) as loader:
        return [next(loader) for _ in range(steps)]


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("balance", BALANCES)
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("micro", [1, 4])
def test_any_split_gives_the_batches_of_the_order(
    shards: ShardSet, world_size: int, micro: int, balance: str, workers: int
) -> None:
    accumulation = 48 // world_size // micro
    batch = world_size * micro * accumulation
    steps = 4  # the epoch of 50 samples ends inside batch 1
    split = {"world_size": world_size, "micro": micro, "accumulation": accumulation, "balance": balance}
    ranks = [load(shards, steps, rank=rank, workers=workers, **split) for rank in range(world_size)]
    for step in range(steps):
        found = [ids for rank in ranks for ids in rank[step].micro_batches]
        expected = SampleOrder(5, NUM_SAMPLES).global_batch(step, batch)
        assert sorted(itertools.chain(*found)) == sorted(expected.tolist())
        assert all(len(ids) == micro and ids == sorted(ids, reverse=True) for ids in found)
        for rank in ranks:
            assert rank[step].step == step and len(rank[step].micro_batches) == accumulation
            assert (rank[step].global_samples, rank[step].global_tokens) == (batch, np.sum(expected + 3))
            assert rank[step].global_masked == shards.index.masked_counts[expected].sum()


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_every_sample_once_per_epoch_on_any_number_of_ranks(shards: ShardSet, world_size: int) -> None:
    """lcm(12, 50) = 300 samples are 25 steps and 6 whole epochs; all ranks make the same number of steps."""
    micro = 12 // world_size
    seen: Counter[int] = Counter()
    for rank in range(world_size):
        for step in load(shards, 25, rank=rank, world_size=world_size, micro=micro):
            seen.update(step.micro_batches[0])
    assert seen == {i: 6 for i in range(NUM_SAMPLES)}


@pytest.mark.parametrize("balance", BALANCES)
@pytest.mark.parametrize("world_size", [1, 3])
def test_micro_batches_come_with_their_positions_in_the_global_batch(
    shards: ShardSet, world_size: int, balance: str
) -> None:
    expected, found = SampleOrder(5, NUM_SAMPLES).global_batch(0, 24), {}
    plan = make_plan(shards, world_size=world_size, micro=24 // world_size // 2, accumulation=2, balance=balance)
    for rank in range(world_size):
        with open_loader(
            shards,
            plan,
            rank=rank,
            collate=lambda samples, positions: dict(zip(positions.tolist(), samples.lengths - 3, strict=True)),
        ) as loader:
            for micro_batch in next(loader).micro_batches:
                found |= micro_batch
    assert found == dict(enumerate(expected))


def test_batch_larger_than_the_set(shards: ShardSet) -> None:
    (step,) = load(shards, 1, micro=120)
    counts = Counter(step.micro_batches[0])
    assert set(counts) == set(range(NUM_SAMPLES)) and set(counts.values()) == {2, 3}


def test_starting_later_equals_skipping(shards: ShardSet) -> None:
    assert load(shards, 7)[4:] == load(shards, 3, start_step=4)


def test_a_loader_started_later_goes_on_where_another_number_of_ranks_stopped(shards: ShardSet) -> None:
    """(seed, position) is the whole state: steps 0..2 on 3 ranks, the rest on 2."""
    whole = load(shards, 7, micro=24)
    resumed = [load(shards, 4, rank=rank, start_step=3, world_size=2, micro=12) for rank in range(2)]
    for step in range(4):
        ids = sorted(itertools.chain(*(rank[step].micro_batches[0] for rank in resumed)))
        assert ids == sorted(whole[3 + step].micro_batches[0])


def make_loader(shards: ShardSet, collate: Collate, **options: Any) -> Loader[Any]:
    return open_loader(shards, make_plan(shards, micro=4), collate=collate, **options)


@pytest.mark.parametrize("shards", [3], indirect=True)
def test_an_error_in_the_thread_reaches_the_consumer_and_names_the_file(shards: ShardSet, tmp_path: Path) -> None:
    lost = tmp_path / "part_1_of_3.hdf5"
    lost.unlink()
    with make_loader(shards, sample_ids) as loader:
        with pytest.raises(UserError, match=f"{lost} can no longer be read"):
            for _ in range(20):
                next(loader)
        with pytest.raises(UserError, match="part_1_of_3"):
            next(loader)  # it stays failed instead of waiting for a dead thread


@pytest.mark.parametrize("shards", [1], indirect=True)
def test_a_token_id_outside_the_vocabulary_is_found_while_loading(shards: ShardSet, tmp_path: Path) -> None:
    """As in a set too large for the check before the run."""
    path = tmp_path / "part_0_of_1.hdf5"
    path.unlink()
    bad = make_samples(np.arange(NUM_SAMPLES) + 3)
    bad.input_ids[1] = VOCAB_SIZE
    write_shard(path, bad, vocab_size=VOCAB_SIZE + 1)
    narrow = ShardSet.open(tmp_path, vocab_size=VOCAB_SIZE, max_length=MAX_LENGTH)
    with make_loader(narrow, sample_ids) as loader, pytest.raises(UserError, match=rf"{path}: token id {VOCAB_SIZE}"):
        for _ in range(20):
            next(loader)


@pytest.mark.parametrize("shards", [1], indirect=True)
class TestClose:
    def test_while_the_queue_is_full(self, shards: ShardSet) -> None:
        loader = make_loader(shards, sample_ids)
        while len(loader._ready) < 2:
            time.sleep(0.001)
        time.sleep(0.01)
        assert len(loader._ready) == 2
        loader.close()
        assert not any(thread.is_alive() for thread in loader._threads)
        with pytest.raises(StopIteration):
            next(loader)
        loader.close()

    def test_after_an_error(self, shards: ShardSet) -> None:
        def fail(samples: Samples, positions: np.ndarray) -> object:
            raise ZeroDivisionError

        loader = make_loader(shards, fail)
        loader.close()
        assert not any(thread.is_alive() for thread in loader._threads)

    def test_wakes_a_waiting_consumer(self, shards: ShardSet) -> None:
        release = threading.Event()
        loader = make_loader(shards, lambda samples, positions: release.wait(30))
        results: list[object] = []
        consumer = threading.Thread(target=lambda: results.append(list(loader)))
        consumer.start()
        closer = threading.Thread(target=loader.close)
        closer.start()
        consumer.join(30)
        release.set()
        closer.join(30)
        assert results == [[]]
        assert not closer.is_alive()

    def test_leaves_a_hanging_read_behind(self, shards: ShardSet, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(loader_module, "CLOSE_SECONDS", 0.05)
        release = threading.Event()
        loader = make_loader(shards, lambda samples, positions: release.wait(30))
        loader.close()
        assert all(thread.is_alive() and thread.daemon for thread in loader._threads)
        release.set()


@pytest.mark.parametrize("shards", [3], indirect=True)
def test_a_read_that_hangs_names_the_file(shards: ShardSet, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    read = ShardReader.row

    def hanging(reader: ShardReader, number: int) -> Any:
        if reader._header.path.name == "part_1_of_3.hdf5":
            release.wait(30)
        return read(reader, number)

    monkeypatch.setattr(ShardReader, "row", hanging)
    with make_loader(shards, sample_ids, timeout_s=0.2) as loader:
        with pytest.raises(
            UserError, match=r"step \d+ did not come within 0\.2 s \(it is reading .*part_1_of_3\.hdf5\)"
        ):
            for _ in range(20):
                next(loader)
        release.set()


@pytest.mark.parametrize("shards", [1], indirect=True)
def test_wait_seconds_sum_the_consumers_waits(shards: ShardSet, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 12.5, 20.0, 20.25])  # begin and end of two waits
    fake = SimpleNamespace(perf_counter=lambda: next(clock), monotonic=time.monotonic)
    monkeypatch.setattr(loader_module, "time", fake)
    with make_loader(shards, sample_ids) as loader:
        next(loader)
        assert loader.wait_seconds == 2.5
        next(loader)
        assert loader.wait_seconds == 2.75


@pytest.mark.parametrize("num_samples", [3, 13])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("balance", BALANCES)
def test_evaluation_samples_belong_to_exactly_one_rank(
    tmp_path: Path, num_samples: int, world_size: int, balance: str
) -> None:
    samples = make_samples(np.arange(num_samples) + 3)
    write_shard(tmp_path / "eval.hdf5", replace(samples), vocab_size=VOCAB_SIZE)
    shards = ShardSet.open(tmp_path, vocab_size=VOCAB_SIZE, max_length=MAX_LENGTH)
    parts = [
        sample_ids(evaluation_samples(shards, rank=rank, world_size=world_size, balance=balance))
        for rank in range(world_size)
    ]
    assert sorted(itertools.chain(*parts)) == list(range(num_samples))


def test_the_data_room_does_not_import_torch() -> None:
    """Checks before a run, and worker processes, start without it."""
    code = (
        "import sys, bert_mlperf.data.loader, bert_mlperf.data_prep.demo_data; "
        "print([name for name in ('torch', 'tensorflow') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
