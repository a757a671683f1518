"""The index of a data set: written, found again, believed only if it belongs to the files."""

import os
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

from bert_mlperf.data import indexing
from bert_mlperf.data.batches import BatchPlan
from bert_mlperf.data.index import FILE_NAME, IndexedFile, SampleIndex, read_index, write_index
from bert_mlperf.data.indexing import beside, index_of
from bert_mlperf.data.order import SampleOrder
from bert_mlperf.data.shards import ShardSet, write_shard
from bert_mlperf.errors import UserError
from tests.data.files import MAX_LENGTH, VOCAB_SIZE, assert_equal, make_samples, write_fixed

SAMPLES = make_samples([9, 40, 12, 100, 7, 33])


@pytest.fixture(autouse=True)
def user_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Six samples in files of 1, 2 and 3."""
    folder = tmp_path / "shards"
    folder.mkdir()
    for number, ids in enumerate(([0], [1, 2], [3, 4, 5])):
        write_shard(folder / f"part_{number}_of_3.hdf5", SAMPLES.take(np.array(ids)), vocab_size=VOCAB_SIZE)
    return folder


def open_indexed(folder: Path, index: Path) -> ShardSet:
    return ShardSet.open(folder, vocab_size=VOCAB_SIZE, max_length=MAX_LENGTH, index=index)


def test_a_set_with_an_index_reads_as_its_samples(folder: Path) -> None:
    path = index_of(folder)
    assert path == folder / FILE_NAME == beside(folder)
    index = read_index(path, verify=True)
    assert [(f.name, f.num_samples) for f in index.files] == [(f"part_{i}_of_3.hdf5", i + 1) for i in range(3)]
    assert index.lengths.tolist() == SAMPLES.lengths.tolist()
    assert index.masked_counts.tolist() == SAMPLES.masked_counts.tolist()
    ids = np.array([5, 0, 2, 2, 4, 1, 3])
    assert_equal(open_indexed(folder, path).take(ids), SAMPLES.take(ids))
    assert index_of(folder) == path  # found again


def test_one_file_has_an_index_of_its_own(folder: Path) -> None:
    file = folder / "part_1_of_3.hdf5"
    path = index_of(file)
    assert path == folder / f"part_1_of_3.hdf5.{FILE_NAME}"
    assert open_indexed(file, path).take(np.array([1])).lengths.tolist() == [12]
    assert read_index(index_of(folder)).num_samples == 6  # the index of a file is no shard


def test_a_published_layout_can_be_indexed(tmp_path: Path) -> None:
    write_fixed(tmp_path / "a.hdf5", SAMPLES)
    shards = open_indexed(tmp_path, index_of(tmp_path))
    assert shards.take(np.array([3])).lengths.tolist() == [100]


def test_a_folder_that_cannot_be_written_has_its_index_in_the_users_cache(
    folder: Path, user_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = indexing.write_index

    def refusing(path: Path, index: SampleIndex) -> None:
        if path.parent == folder:
            raise PermissionError(13, "Permission denied")
        written(path, index)

    monkeypatch.setattr(indexing, "write_index", refusing)
    path = index_of(folder)
    assert path.parent == user_cache / "bert-mlperf" / "index" and not (folder / FILE_NAME).exists()
    assert read_index(path).num_samples == 6 and index_of(folder) == path
    write_shard(folder / "part_3.hdf5", SAMPLES, vocab_size=VOCAB_SIZE)
    assert index_of(folder) != path  # another set, another index
    shutil.rmtree(user_cache)
    user_cache.write_text("in the way")
    with pytest.raises(UserError, match=r"can be written neither to .* nor to"):
        index_of(folder)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder(folder: Path, user_cache: Path) -> None:
    folder.chmod(0o555)
    assert index_of(folder).is_relative_to(user_cache)


def test_an_index_of_other_shards_is_refused(folder: Path) -> None:
    path = index_of(folder)
    (folder / "part_1_of_3.hdf5").unlink()
    write_shard(folder / "part_1_of_3.hdf5", SAMPLES.take(np.array([2, 1])), vocab_size=VOCAB_SIZE)
    with pytest.raises(UserError, match=rf"{path} does not belong .* \(part_1_of_3.hdf5 is another file .* remove it"):
        index_of(folder)
    shards = open_indexed(folder, path)
    assert shards.take(np.array([0, 4])).lengths.tolist() == [9, 7]  # other files are as they were
    with pytest.raises(UserError, match=r"part_1_of_3.hdf5 is another file than the one that .*samples.index was made"):
        shards.take(np.array([1]))
    write_shard(folder / "part_3.hdf5", SAMPLES, vocab_size=VOCAB_SIZE)
    with pytest.raises(UserError, match="it lists 3 files, the folder has 4"):
        index_of(folder)


def test_a_file_that_is_gone_is_named(folder: Path) -> None:
    path = index_of(folder)
    (folder / "part_2_of_3.hdf5").unlink()
    with pytest.raises(UserError, match=r"part_2_of_3.hdf5, which .*samples.index lists, is not there"):
        open_indexed(folder, path).take(np.array([4]))


def test_damage_is_refused_in_one_sentence(folder: Path) -> None:
    path = index_of(folder)
    content = path.read_bytes()
    for size in np.random.default_rng(0).integers(0, len(content), 40):
        path.write_bytes(content[:size])
        with pytest.raises(UserError, match=rf"^{path} is no index of samples or damaged \([^\n]*\); remove it"):
            read_index(path)
    at = content.find(np.array([9, 40, 12], "<u2").tobytes())
    path.write_bytes(content[:at] + b"\x08" + content[at + 1 :])
    with pytest.raises(UserError, match="does not match its sha256"):
        index_of(folder)
    with pytest.raises(UserError, match=r"sample 0 has 9 tokens, 8 by .*samples.index; the file was changed"):
        open_indexed(folder, path).take(np.array([0]))
    path.write_bytes(content)
    with h5py.File(path, "r+") as file:
        file.attrs["schema_version"] = 2
    with pytest.raises(UserError, match="version 2"):
        read_index(path)


@pytest.mark.parametrize("name, count", [("../a", 6), ("a", -1), ("/a", 6)])
def test_files_that_cannot_be_are_refused(tmp_path: Path, name: str, count: int) -> None:
    files = (IndexedFile(name, count, ""), IndexedFile("b", 6 - count, ""))
    write_index(tmp_path / "i", SampleIndex(files, SAMPLES.lengths, SAMPLES.masked_counts))
    with pytest.raises(UserError, match=r"no index of samples or damaged \(it lists"):
        read_index(tmp_path / "i")


def test_nothing_is_left_where_an_index_cannot_be_written(tmp_path: Path) -> None:
    index = read_index(index_of_one(tmp_path))
    target = tmp_path / "folder"
    target.mkdir()
    (target / FILE_NAME).mkdir()
    with pytest.raises(OSError):
        write_index(target / FILE_NAME, index)
    assert [path.name for path in target.iterdir()] == [FILE_NAME]


def index_of_one(folder: Path) -> Path:
    write_shard(folder / "a.hdf5", SAMPLES, vocab_size=VOCAB_SIZE)
    return index_of(folder)


@pytest.mark.parametrize("world_size", [1, 3])
def test_a_million_samples_once_per_epoch_without_reading_any(tmp_path: Path, world_size: int) -> None:
    """Planned from an index on disk: 977 batches of 1,024 (the last reaches into the next epoch)."""
    lengths = np.random.default_rng(0).integers(20, 513, 1_000_000)
    files = tuple(IndexedFile(f"part_{i}", size, "") for i, size in enumerate([1, 333_333, 0, 666_666]))
    write_index(tmp_path / "i", SampleIndex(files, lengths, lengths // 7))
    index = read_index(tmp_path / "i", verify=True)
    batch = 1023 if world_size == 3 else 1024
    plan = BatchPlan(
        SampleOrder(1, index.num_samples),
        index,
        global_batch_size=batch,
        accumulation_steps=1,
        world_size=world_size,
        balance="snake",
    )
    seen = np.zeros(1_000_000, dtype=np.int8)
    steps = 1_000_000 // batch
    for step in range(steps):
        planned = plan.batch(step)
        for rank in range(world_size):
            (positions,) = plan.micro_batches(planned, rank)
            seen[planned.ids_G[positions]] += 1
        assert planned.num_tokens == lengths[planned.ids_G].sum()
    assert seen.max() == 1 and seen.sum() == steps * batch
    following = plan.batch(steps).ids_G[: 1_000_000 - steps * batch]
    assert sorted(following.tolist()) == np.flatnonzero(seen == 0).tolist()
