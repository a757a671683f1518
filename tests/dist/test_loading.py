"""The loader on gloo ranks: every way of reading brings the same batches."""

import hashlib
import shutil
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

from bert_mlperf.comm.control import Control
from bert_mlperf.comm.process_group import RankInfo
from bert_mlperf.data.dali import dali_missing
from bert_mlperf.data.exchange import own_files
from bert_mlperf.data.index import read_index
from bert_mlperf.data.indexing import index_of
from bert_mlperf.data.shards import write_shard
from bert_mlperf.model.batch import TENSOR_DTYPES, Batch
from bert_mlperf.train import loading
from tests.dist.ranks import run_ranks
from tests.train.small import small_model, small_run, uneven_samples

CPU = torch.device("cpu")
STEPS = 7
LOADERS = ("torch", "dali") if dali_missing() is None else ("torch",)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """120 samples in three shards of different sizes: an epoch is 2.5 steps."""
    folder = tmp_path_factory.mktemp("shards")
    samples = uneven_samples(120, config=small_model())
    for number, (first, end) in enumerate([(0, 10), (10, 70), (70, 120)]):
        part = samples.take(np.arange(first, end))
        write_shard(folder / f"part_{number}_of_3.hdf5", part, vocab_size=small_model().vocab_size)
    return folder


def digest(batch: Batch) -> str:
    total = hashlib.sha256(repr((batch.bounds, batch.query_bounds)).encode())
    for name in TENSOR_DTYPES:
        tensor = getattr(batch, name)
        total.update(f"{name} {tensor.dtype}".encode() + tensor.numpy().tobytes())
    return total.hexdigest()


def digests(
    control: Control, folder: Path, loader: str, read: str, workers: int, index: str | None = None
) -> list[list[str]]:
    """Of the micro-batches of this rank, step by step."""
    run = small_run(
        ranks_per_node=control.world_size,
        gradient_accumulation_steps=2,
        loader=loader,
        read=read,
        loader_workers=workers,
    )
    info = RankInfo(control.rank, control.rank, control.world_size)
    links = loading.DataLinks.open(run, info, CPU)
    shards = loading.open_shards(run, folder, index=index)
    with loading.open_loader(run, shards, info, CPU, order_seed=5, links=links) as steps:
        found = [[digest(batch) for batch in next(steps).micro_batches] for _ in range(STEPS)]
        control.sum(torch.zeros(1))
    return found


def all_ways(control: Control, folder: Path) -> dict[tuple[str, str, int], list[list[str]]]:
    return {way: digests(control, folder, *way) for way in product(LOADERS, ("index", "exchange"), (1, 4))}


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_all_ways_bring_the_same_batches(folder: Path, world_size: int) -> None:
    seen = set()
    for by_way in run_ranks(world_size, all_ways, folder):
        expected = by_way["torch", "index", 1]
        assert len(expected) == STEPS and all(len(step) == 2 for step in expected)
        for way, found in by_way.items():
            assert found == expected, way
        seen.update(found for step in expected for found in step)
    assert len(seen) == STEPS * 2 * world_size  # all different


def apart(control: Control, folder: Path) -> list[list[str]]:
    """Exchange by ranks that see the index and their own shards only."""
    index, own = index_of(folder), folder / f"of_rank_{control.rank}_of_{control.world_size}"
    own.mkdir()
    for name in own_files(read_index(index), rank=control.rank, world_size=control.world_size):
        shutil.copy(folder / name, own)
    assert len(list(own.iterdir())) < 3
    return digests(control, own, "torch", "exchange", 1, str(index))


@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_that_see_only_their_own_shards(folder: Path, world_size: int) -> None:
    index_of(folder)
    expected = run_ranks(world_size, digests, folder, "torch", "index", 1)
    assert run_ranks(world_size, apart, folder) == expected
