import fcntl
import json
import multiprocessing
import os
import stat
import threading
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from bert_mlperf.data import shard_file, shards
from bert_mlperf.data.samples import Samples
from bert_mlperf.data.shards import DataSummary, ShardSet, inspect_shards, write_shard
from bert_mlperf.errors import UserError
from tests.data.files import MAX_LENGTH, VOCAB_SIZE, assert_equal, make_samples, write_fixed, write_variable


def write_parts(folder: Path, samples: Samples, *, parts: int = 3) -> list[Path]:
    paths = [folder / f"part_{i:05d}_of_{parts:05d}.hdf5" for i in range(parts)]
    for i, ids in enumerate(np.array_split(np.arange(samples.num_samples), parts)):
        write_shard(paths[i], samples.take(ids), vocab_size=VOCAB_SIZE)
    return paths


def open_set(path: Path) -> ShardSet:
    return ShardSet.open(path, vocab_size=VOCAB_SIZE, max_length=MAX_LENGTH)


def inspect(path: Path, *, min_samples: int = 1, vocab_size: int = VOCAB_SIZE, max_length: int = 512) -> DataSummary:
    return inspect_shards(path, vocab_size=vocab_size, max_length=max_length, min_samples=min_samples)


@pytest.mark.parametrize("parts", [1, 3, 40])
def test_a_set_reads_as_its_samples_in_any_order(tmp_path: Path, samples: Samples, parts: int) -> None:
    write_parts(tmp_path, samples, parts=parts)
    with_all = open_set(tmp_path)
    assert with_all.num_samples == 40
    np.testing.assert_array_equal(with_all.index.lengths, samples.lengths)
    np.testing.assert_array_equal(with_all.index.masked_counts, samples.masked_counts)
    assert_equal(with_all.take(np.arange(40)), samples)
    ids = np.random.default_rng(2).integers(0, 40, 100)
    assert_equal(with_all.take(ids), samples.take(ids))
    assert with_all.take(ids[:0]).num_samples == 0


def test_one_file_is_a_set(tmp_path: Path, samples: Samples) -> None:
    paths = write_parts(tmp_path, samples, parts=2)
    assert_equal(open_set(paths[1]).take(np.arange(20)), samples.take(np.arange(20, 40)))


def test_more_files_than_may_be_open_at_a_time(
    tmp_path: Path, samples: Samples, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "_OPEN_FILES", 2)
    write_parts(tmp_path, samples, parts=20)
    ids = np.arange(40)[::-1]
    descriptors = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else None
    many = open_set(tmp_path)
    assert_equal(many.take(ids), samples.take(ids))
    if descriptors is not None:
        assert len(os.listdir("/proc/self/fd")) <= descriptors + 2
    many.close()


def test_a_shard_without_any_masked_token(tmp_path: Path) -> None:
    samples = make_samples([5, 9])
    none = replace(
        samples,
        masked_positions=samples.masked_positions[:0],
        masked_ids=samples.masked_ids[:0],
        masked_offsets=np.zeros(3, np.int64),
    )
    write_shard(tmp_path / "a.hdf5", none, vocab_size=VOCAB_SIZE)
    assert_equal(open_set(tmp_path).take(np.array([0, 1])), none)
    with pytest.raises(UserError, match="has no masked token in any of its samples"):
        inspect(tmp_path)


def test_ids_beyond_16_bits(tmp_path: Path) -> None:
    samples = make_samples([5, 9], vocab_size=100_000)
    wide = replace(samples, input_ids=samples.input_ids.astype(np.int64) + 65_500)
    write_shard(tmp_path / "a.hdf5", wide, vocab_size=200_000)
    opened = ShardSet.open(tmp_path, vocab_size=200_000, max_length=MAX_LENGTH)
    assert_equal(opened.take(np.array([0, 1])), wide)


def announced(path: Path, samples: Samples, **more: int) -> shard_file.ShardWriter:
    """A writer that expects `samples`, and more or less than them."""
    counts = {name: getattr(samples, name) for name in ("num_samples", "num_tokens", "num_masked")}
    counts["max_length"] = int(samples.lengths.max())
    counts |= {name: counts[name] + value for name, value in more.items()}
    return shard_file.ShardWriter(path, vocab_size=VOCAB_SIZE, **counts)


class TestFile:
    def test_describes_itself(self, tmp_path: Path, samples: Samples) -> None:
        path = tmp_path / "a.hdf5"
        write_shard(path, samples, vocab_size=VOCAB_SIZE)
        with h5py.File(path) as file:
            attributes = dict(file.attrs)
            assert all(file[name].chunks is None and file[name].compression is None for name in file)
            assert file["input_ids"].dtype == np.uint16 and file["offsets"].dtype == np.int64
        assert attributes["format"] == "bert-mlperf-samples" and attributes["schema_version"] == 1
        assert attributes["num_samples"] == 40 and attributes["num_tokens"] == samples.num_tokens
        assert attributes["num_masked"] == samples.num_masked
        assert attributes["vocab_size"] == VOCAB_SIZE and attributes["max_length"] == 512
        assert attributes["max_token_id"] == max(samples.input_ids.max(), samples.masked_ids.max())
        assert attributes["sha256"] == shard_file.digest(shard_file.canonical(samples, vocab_size=VOCAB_SIZE))

    def test_equal_samples_give_equal_bytes(self, tmp_path: Path, samples: Samples) -> None:
        write_shard(tmp_path / "a.hdf5", samples, vocab_size=VOCAB_SIZE)
        wide = replace(samples, input_ids=samples.input_ids.astype(np.int64), offsets=samples.offsets.astype(np.int32))
        write_shard(tmp_path / "b.hdf5", wide, vocab_size=VOCAB_SIZE)
        assert (tmp_path / "a.hdf5").read_bytes() == (tmp_path / "b.hdf5").read_bytes()

    def test_is_never_overwritten(self, tmp_path: Path, samples: Samples) -> None:
        path = tmp_path / "a.hdf5"
        path.write_text("precious")
        with pytest.raises(UserError, match=f"{path} exists already and is not overwritten"):
            write_shard(path, samples, vocab_size=VOCAB_SIZE)
        assert path.read_text() == "precious"
        assert os.listdir(tmp_path) == ["a.hdf5"]

    def test_leaves_nothing_when_it_fails(
        self, tmp_path: Path, samples: Samples, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full_disk(path: Path) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(shard_file, "_sync", full_disk)
        with pytest.raises(UserError, match=r"cannot be written: .*No space left"):
            write_shard(tmp_path / "a.hdf5", samples, vocab_size=VOCAB_SIZE)
        assert os.listdir(tmp_path) == []

    @pytest.mark.parametrize("cuts", [[], [0], [1, 1, 2], [3, 30], list(range(1, 40))])
    def test_pieces_give_the_bytes_of_the_whole(self, tmp_path: Path, samples: Samples, cuts: list[int]) -> None:
        write_shard(tmp_path / "whole.hdf5", samples, vocab_size=VOCAB_SIZE)
        with announced(tmp_path / "pieces.hdf5", samples) as writer:
            for piece in np.split(np.arange(samples.num_samples), cuts):
                writer.write(samples.take(piece))
        assert (tmp_path / "pieces.hdf5").read_bytes() == (tmp_path / "whole.hdf5").read_bytes()
        assert writer.sha256 == shard_file.read_header(tmp_path / "whole.hdf5").sha256

    @pytest.mark.parametrize(
        ("wrong", "name"),
        [
            ({"num_samples": -1}, "num_samples"),
            ({"num_tokens": 1}, "num_tokens"),
            ({"num_masked": -1}, "num_masked"),
            ({"max_length": 1}, "max_length"),
        ],
    )
    def test_samples_other_than_announced(
        self, tmp_path: Path, samples: Samples, wrong: dict[str, int], name: str
    ) -> None:
        with (
            pytest.raises(UserError, match=f"have {name} .* as counted before; the input changed"),
            announced(tmp_path / "a.hdf5", samples, **wrong) as writer,
        ):
            writer.write(samples)
        assert os.listdir(tmp_path) == []

    def test_an_error_between_pieces_leaves_nothing(self, tmp_path: Path, samples: Samples) -> None:
        with pytest.raises(KeyboardInterrupt), announced(tmp_path / "a.hdf5", samples) as writer:
            writer.write(samples.take(np.array([0])))
            raise KeyboardInterrupt
        assert os.listdir(tmp_path) == []

    def test_bad_samples_are_not_written(self, tmp_path: Path) -> None:
        path = tmp_path / "a.hdf5"
        with pytest.raises(UserError, match=rf"{path}: token id \d+ lies outside the vocabulary"):
            write_shard(path, make_samples([50]), vocab_size=20)
        with pytest.raises(UserError, match=f"no samples to write to {path}"):
            write_shard(path, make_samples([50]).take(np.array([], int)), vocab_size=VOCAB_SIZE)
        assert not path.exists()

    def test_into_a_missing_folder(self, tmp_path: Path, samples: Samples) -> None:
        with pytest.raises(UserError, match="cannot be written"):
            write_shard(tmp_path / "no" / "a.hdf5", samples, vocab_size=VOCAB_SIZE)


class TestReaders:
    def test_read_only_file_in_read_only_folder(self, tmp_path: Path, samples: Samples) -> None:
        folder = tmp_path / "data"
        folder.mkdir()
        (path,) = write_parts(folder, samples, parts=1)
        path.chmod(0o444)
        folder.chmod(0o555)
        try:
            assert inspect(folder).num_samples == 40
            assert_equal(open_set(folder).take(np.arange(40)), samples)
            assert stat.S_IMODE(path.stat().st_mode) == 0o444
        finally:
            folder.chmod(0o755)

    def test_a_file_system_that_refuses_the_lock_does_not_matter(self, tmp_path: Path, samples: Samples) -> None:
        (path,) = write_parts(tmp_path, samples, parts=1)
        with open(path, "rb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            with pytest.raises(BlockingIOError):
                h5py.File(path, "r", locking=True)
            assert_equal(open_set(tmp_path).take(np.arange(40)), samples)

    def test_forked_readers_and_threads_see_the_same(self, tmp_path: Path, samples: Samples) -> None:
        """The set is opened before the fork and used in 4 children, while threads of the parent read it too."""
        write_parts(tmp_path, samples)
        shared = open_set(tmp_path)
        expected = shared.take(np.arange(40)).input_ids.sum()
        stop = threading.Event()

        def read_on() -> None:
            while not stop.is_set():
                shared.take(np.arange(40))

        threads = [threading.Thread(target=read_on) for _ in range(2)]
        for thread in threads:
            thread.start()
        context = multiprocessing.get_context("fork")
        queue = context.Queue()
        children = [context.Process(target=_sum_in_child, args=(shared, queue)) for _ in range(4)]
        for child in children:
            child.start()
        try:
            assert [queue.get(timeout=60) for _ in children] == [expected] * 4
        finally:
            stop.set()
            for task in (*threads, *children):
                task.join(60)
        assert [child.exitcode for child in children] == [0] * 4


def _sum_in_child(shared: ShardSet, queue: multiprocessing.Queue) -> None:
    opened_again = ShardSet.open(shared.path, vocab_size=VOCAB_SIZE, max_length=MAX_LENGTH)
    sums = {opened.take(np.arange(40)).input_ids.sum() for opened in (shared, opened_again)}
    queue.put(sums.pop() if len(sums) == 1 else None)


class TestInspect:
    def test_summary(self, tmp_path: Path, samples: Samples) -> None:
        write_parts(tmp_path, samples)
        summary = inspect(tmp_path, min_samples=40)
        assert (summary.num_files, summary.num_samples, summary.num_tokens) == (3, 40, samples.num_tokens)
        assert summary.num_masked == samples.num_masked and summary.max_length == 512 and summary.verified
        assert summary.mean_length == samples.num_tokens / 40 and summary.vocab_size == VOCAB_SIZE
        assert str(summary).startswith(f"40 samples, mean {samples.num_tokens / 40:.0f} tokens, 3 files of bert-mlperf")

    def test_fingerprint_follows_the_content_not_the_layout(self, tmp_path: Path, samples: Samples) -> None:
        other = replace(samples, masked_ids=np.roll(samples.masked_ids, 1))
        for name, content in (("a", samples), ("b", samples), ("c", other)):
            write_shard(tmp_path / f"{name}.hdf5", content, vocab_size=VOCAB_SIZE)
        write_fixed(tmp_path / "fixed.hdf5", samples)
        write_variable(tmp_path / "variable.hdf5", samples)
        assert inspect(tmp_path / "fixed.hdf5").vocab_size is None
        prints = {name: inspect(tmp_path / f"{name}.hdf5").fingerprint for name in ("a", "b", "c", "fixed", "variable")}
        assert len(prints["a"]) == 64
        assert prints["a"] == prints["b"] == prints["fixed"] == prints["variable"] != prints["c"]

    def test_large_sets_are_checked_by_their_headers(
        self, tmp_path: Path, samples: Samples, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = write_parts(tmp_path, samples)[1]
        with h5py.File(path, "r+") as file:
            file["input_ids"][7] ^= 1
        full = inspect_error(tmp_path)
        assert f"{path}: the content does not match its sha256" in full
        monkeypatch.setattr(shards, "VERIFY_BYTES", 1000)
        summary = inspect(tmp_path)
        assert not summary.verified and "from the headers" in str(summary)
        assert "holds samples of up to 512 tokens, expected at most 511" in inspect_error(tmp_path, max_length=511)
        assert "lies outside the vocabulary" in inspect_error(tmp_path, vocab_size=50)


def inspect_error(path: Path, *, min_samples: int = 1, vocab_size: int = VOCAB_SIZE, max_length: int = 512) -> str:
    """The sentence of the UserError."""
    with pytest.raises(UserError) as caught:
        inspect(path, min_samples=min_samples, vocab_size=vocab_size, max_length=max_length)
    return str(caught.value)


class TestBadInput:
    """Each is one sentence that names the file or folder, what was found and what to do."""

    def test_missing_path(self, tmp_path: Path) -> None:
        assert f"the data path {tmp_path / 'no'} does not exist" in inspect_error(tmp_path / "no")

    def test_empty_folder(self, tmp_path: Path) -> None:
        assert f"the folder {tmp_path} has no shards (it is empty)" in inspect_error(tmp_path)

    def test_folder_of_a_step_that_is_not_finished(self, tmp_path: Path) -> None:
        (tmp_path / ".unfinished").mkdir()
        assert f"the step that writes {tmp_path} is not finished; run its command again" in inspect_error(tmp_path)

    def test_a_file_that_its_step_wrote_is_missing(self, tmp_path: Path, samples: Samples) -> None:
        for name in ("a.hdf5", "b.hdf5"):
            write_shard(tmp_path / name, samples, vocab_size=VOCAB_SIZE)
        manifest = {"format": "bert-mlperf-prep", "outputs": [{"name": "a.hdf5"}, {"name": "b.hdf5"}]}
        (tmp_path / "manifest.json").write_text(json.dumps(manifest))
        assert inspect(tmp_path).num_samples == 80
        (tmp_path / "b.hdf5").unlink()
        assert f"{tmp_path / 'b.hdf5'} is missing, which manifest.json there lists" in inspect_error(tmp_path)
        (tmp_path / "manifest.json").write_text(json.dumps(manifest | {"outputs": 3}))
        assert f"{tmp_path / 'manifest.json'} is damaged" in inspect_error(tmp_path)
        for other in ("{}", "[]", "no JSON", json.dumps(manifest | {"format": "other"})):
            (tmp_path / "manifest.json").write_text(other)
            assert inspect(tmp_path).num_samples == 40

    def test_a_dangling_link_is_a_missing_file(self, tmp_path: Path, samples: Samples) -> None:
        write_shard(tmp_path / "a.hdf5", samples, vocab_size=VOCAB_SIZE)
        (tmp_path / "b.hdf5").symlink_to(tmp_path / "gone.hdf5")
        assert f"{tmp_path / 'b.hdf5'} is a link to a file that is not there" in inspect_error(tmp_path)

    def test_a_device_is_no_data(self) -> None:
        assert "the data path /dev/zero is no file and no folder" in inspect_error(Path("/dev/zero"))

    @pytest.mark.parametrize("line", ["The sea is wide.", "Gro\xdfe Fische.", "x" * 70_000])
    def test_text(self, tmp_path: Path, line: str) -> None:
        path = tmp_path / "part-00000-of-00001"
        path.write_text(f"{line}\n\n", encoding="utf-8")
        is_known = len(line) < 1 << 16
        assert (f"{path} is text, expected samples; run prep examples on it" in inspect_error(tmp_path)) == is_known

    def test_shards_of_two_vocabularies(self, tmp_path: Path, samples: Samples) -> None:
        for name, size in (("a", VOCAB_SIZE), ("b", VOCAB_SIZE + 7)):
            write_shard(tmp_path / f"{name}.hdf5", samples, vocab_size=size)
        message = inspect_error(tmp_path, vocab_size=VOCAB_SIZE + 7)
        assert f"mixes shards made with vocabularies of {VOCAB_SIZE} and {VOCAB_SIZE + 7} tokens" in message

    def test_folder_without_shards(self, tmp_path: Path) -> None:
        (tmp_path / "vocab.txt").write_text("[PAD]\n")
        assert "has no shards (it holds vocab.txt); expected files like" in inspect_error(tmp_path)

    def test_missing_shard(self, tmp_path: Path, samples: Samples) -> None:
        write_parts(tmp_path, samples)[1].unlink()
        assert f"the folder {tmp_path} has 2 of 3 shards, number 1 is missing" in inspect_error(tmp_path)

    @pytest.mark.parametrize("keep", [0.999, 0.6, 0.02, 0.001, 0.0])
    def test_truncated_shard(self, tmp_path: Path, samples: Samples, keep: float) -> None:
        path = write_parts(tmp_path, samples)[2]
        path.write_bytes(path.read_bytes()[: int(keep * path.stat().st_size)])
        message = inspect_error(tmp_path)
        assert message.startswith(str(path)) and "again" in message

    def test_text_file(self, tmp_path: Path, samples: Samples) -> None:
        path = write_parts(tmp_path, samples)[0]
        path.write_text("Anarchism is a political philosophy.")
        assert f"{path} begins with b'Anarchism is a p': it is neither HDF5 nor TFRecord" in inspect_error(tmp_path)

    def test_hdf5_of_another_schema(self, tmp_path: Path) -> None:
        path = tmp_path / "images.hdf5"
        with h5py.File(path, "w") as file:
            file["pixels"] = np.zeros((4, 8))
        assert f"{path} is HDF5 of an unknown layout (it holds pixels (4, 8))" in inspect_error(tmp_path)
        with h5py.File(path, "r+") as file:
            file.attrs["format"] = "something else"
        assert "not a shard of ours (format is 'something else'" in inspect_error(tmp_path)

    def test_wrong_schema_version(self, tmp_path: Path, samples: Samples) -> None:
        (path,) = write_parts(tmp_path, samples, parts=1)
        with h5py.File(path, "r+") as file:
            file.attrs["schema_version"] = 2
        assert f"{path}: schema version is 2, this program reads 1; prepare the data again" in inspect_error(tmp_path)

    @pytest.mark.parametrize("attribute", ["num_tokens", "num_samples", "num_masked"])
    def test_header_that_contradicts_the_arrays(self, tmp_path: Path, samples: Samples, attribute: str) -> None:
        (path,) = write_parts(tmp_path, samples, parts=1)
        with h5py.File(path, "r+") as file:
            file.attrs[attribute] += 1
        assert f"{path}: the shard is truncated or damaged" in inspect_error(tmp_path)

    def test_missing_array_or_attribute(self, tmp_path: Path, samples: Samples) -> None:
        (path,) = write_parts(tmp_path, samples, parts=1)
        with h5py.File(path, "r+") as file:
            del file.attrs["sha256"]
        assert "truncated or damaged" in inspect_error(tmp_path) and "sha256" in inspect_error(tmp_path)
        with h5py.File(path, "r+") as file:
            del file["masked_ids"]
        assert "truncated or damaged" in inspect_error(tmp_path)

    def test_changed_content(self, tmp_path: Path, samples: Samples) -> None:
        path = write_parts(tmp_path, samples)[1]
        with h5py.File(path, "r+") as file:
            file["next_sentence_labels"][0] ^= 1
        assert f"{path}: the content does not match its sha256" in inspect_error(tmp_path)

    def test_token_id_outside_the_vocabulary(self, tmp_path: Path) -> None:
        path = tmp_path / "a.hdf5"
        write_shard(path, make_samples([9], vocab_size=VOCAB_SIZE), vocab_size=VOCAB_SIZE)
        message = inspect_error(path, vocab_size=50)
        assert message.startswith(f"{path}: token id") and "outside the vocabulary of the model (0 to 49)" in message

    def test_too_long_sample(self, tmp_path: Path, samples: Samples) -> None:
        path = write_parts(tmp_path, samples)[0]
        assert f"{path}: sample 1 has 512 tokens, expected 1 to 128" in inspect_error(tmp_path, max_length=128)

    def test_fewer_samples_than_one_global_batch(self, tmp_path: Path, samples: Samples) -> None:
        write_parts(tmp_path, samples)
        message = inspect_error(tmp_path, min_samples=41)
        assert f"{tmp_path} holds 40 samples, expected at least one global batch of 41" in message

    def test_mixed_layouts(self, tmp_path: Path, samples: Samples) -> None:
        write_shard(tmp_path / "a.hdf5", samples, vocab_size=VOCAB_SIZE)
        write_fixed(tmp_path / "b.hdf5", samples)
        assert f"{tmp_path} mixes layouts: a.hdf5 is bert-mlperf shards, b.hdf5 is fixed-length HDF5" in inspect_error(
            tmp_path
        )

    def test_a_shard_that_shrinks_after_it_was_opened(self, tmp_path: Path, samples: Samples) -> None:
        (path,) = write_parts(tmp_path, samples, parts=1)
        opened = open_set(tmp_path)
        path.write_bytes(path.read_bytes()[:5000])
        with pytest.raises(UserError, match=f"{path} has become shorter since it was opened"):
            opened.take(np.arange(4))


def test_a_shard_that_is_written_to_or_cut_while_it_is_open(tmp_path: Path, samples: Samples) -> None:
    path = write_parts(tmp_path, samples, parts=1)[0]
    shards = open_set(tmp_path)
    shards.take(np.arange(40))
    content, before = path.read_bytes(), path.stat().st_mtime_ns
    with path.open("r+b") as file:
        file.write(content)  # the same bytes
    os.utime(path, ns=(before, before + 1))
    with pytest.raises(UserError, match=f"{path} was changed since it was opened; put the right file back"):
        shards.take(np.arange(3))
    os.truncate(path, len(content) // 2)
    os.utime(path, ns=(before, before))
    with pytest.raises(UserError, match=f"{path} has become shorter since it was opened"):
        shards.take(np.arange(40))
