from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from bert_mlperf.data import tfrecord
from bert_mlperf.data.samples import Samples
from bert_mlperf.data.shards import ShardSet, inspect_shards
from bert_mlperf.errors import UserError
from tests.data.files import (
    LAYOUT_WRITERS,
    MAX_LENGTH,
    VOCAB_SIZE,
    assert_equal,
    make_samples,
    padded,
    write_fixed,
    write_tfrecord,
    write_tfrecord_samples,
    write_variable,
)

each_layout = pytest.mark.parametrize("layout", LAYOUT_WRITERS)


def read(path: Path, *, vocab_size: int = VOCAB_SIZE) -> Samples:
    opened = ShardSet.open(path, vocab_size=vocab_size, max_length=MAX_LENGTH)
    return opened.take(np.arange(opened.num_samples))


def inspect_error(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        inspect_shards(path, vocab_size=VOCAB_SIZE, max_length=MAX_LENGTH, min_samples=1)
    return str(caught.value)


@each_layout
def test_each_layout_reads_back(tmp_path: Path, samples: Samples, layout: str) -> None:
    for i, name in enumerate(["part_00000_of_00002.hdf", "part_00001_of_00002.hdf"]):
        LAYOUT_WRITERS[layout](tmp_path / name, samples.take(np.arange(20 * i, 20 * i + 20)))
    summary = inspect_shards(tmp_path, vocab_size=VOCAB_SIZE, max_length=MAX_LENGTH, min_samples=40)
    assert (summary.layout, summary.num_samples, summary.num_files) == (layout, 40, 2)
    assert_equal(read(tmp_path), samples)


def test_tfrecords_are_known_by_content_not_by_name(tmp_path: Path, samples: Samples) -> None:
    """The published TFRecord parts have no ending."""
    write_tfrecord_samples(tmp_path / "part-00000-of-00001", samples)
    assert_equal(read(tmp_path), samples)


@each_layout
def test_a_padded_prediction_is_no_label_of_the_first_token(tmp_path: Path, layout: str) -> None:
    """One real prediction of up to 76: the other positions are 0, where [CLS] stands, and must stay without label."""
    samples = make_samples([9, 9])
    assert samples.masked_counts.tolist() == [1, 1]
    LAYOUT_WRITERS[layout](tmp_path / "a.hdf5", samples)
    found = read(tmp_path / "a.hdf5")
    assert found.num_masked == 2 and (found.masked_positions > 0).all()


def test_weights_allow_position_0_and_token_id_0(tmp_path: Path) -> None:
    samples = make_samples([9])
    first = replace(
        samples,
        masked_positions=np.array([0, 3]),
        masked_ids=np.array([0, 7]),
        masked_offsets=np.array([0, 2]),
    )
    write_tfrecord_samples(tmp_path / "a.tfrecord", first)
    assert_equal(read(tmp_path / "a.tfrecord"), first)


def test_lists_written_value_by_value(tmp_path: Path, samples: Samples) -> None:
    arrays = padded(samples)
    rows = [{name: values[i] for name, values in arrays.items()} for i in range(3)]
    write_tfrecord(tmp_path / "a.tfrecord", rows, packed=False)
    assert_equal(read(tmp_path / "a.tfrecord"), samples.take(np.arange(3)))


def test_checksum_known_answers() -> None:
    """CRC-32C of the standard check string, and of 32 zero bytes (RFC 3720, B.4), masked as in TFRecord."""
    for message, crc in ((b"123456789", 0xE3069283), (bytes(32), 0x8A9136AA), (b"\xff" * 32, 0x62A8AB43)):
        expected = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
        assert tfrecord.masked_crc32c([b"a different length", message])[1] == expected


def test_varints() -> None:
    data = bytes([0, 127, 0x80, 1, 0xFF, 0xFF, 3, *[0xFF] * 9, 1])
    assert tfrecord.varints(data).tolist() == [0, 127, 128, 65535, -1]
    for bad in (b"\x80", bytes([0x80] * 11 + [0])):
        with pytest.raises(ValueError, match="an integer"):
            tfrecord.varints(bad)


class TestBadFiles:
    @each_layout
    @pytest.mark.parametrize("keep", [0.95, 0.5, 0.01])
    def test_truncated(self, tmp_path: Path, samples: Samples, layout: str, keep: float) -> None:
        path = tmp_path / "a.hdf5"
        LAYOUT_WRITERS[layout](path, samples)
        path.write_bytes(path.read_bytes()[: int(keep * path.stat().st_size)])
        message = inspect_error(path)
        assert message.startswith(str(path)) and "truncated or damaged" in message

    @pytest.mark.parametrize("at", [0, 3, 9, 500, -2])
    def test_flipped_bit_in_a_tfrecord(self, tmp_path: Path, samples: Samples, at: int) -> None:
        path = tmp_path / "a.tfrecord"
        write_tfrecord_samples(path, samples)
        second_record = len(path.read_bytes()) // 40
        content = bytearray(path.read_bytes())
        content[at + (second_record if at > 0 else 0)] ^= 0x10
        path.write_bytes(content)
        assert inspect_error(path).startswith(str(path))

    def test_every_flipped_bit_of_a_message_is_noticed(self, tmp_path: Path, samples: Samples) -> None:
        path = tmp_path / "a.tfrecord"
        write_tfrecord_samples(path, samples.take(np.array([0])))
        content = path.read_bytes()
        for at in np.random.default_rng(0).integers(12, len(content), 25):
            path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
            assert "record 0 is truncated or damaged (its checksum is wrong)" in inspect_error(path)

    def test_tfrecord_of_another_task(self, tmp_path: Path) -> None:
        write_tfrecord(tmp_path / "a.tfrecord", [{"image/label": np.array([3])}])
        assert "a.tfrecord: record 0 has no input_ids, only image/label; expected the fields" in inspect_error(tmp_path)

    def test_tfrecord_that_is_no_example(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tests.data.files.encode_example", lambda row, packed: b"\x0f not a message")
        write_tfrecord(tmp_path / "a.tfrecord", [{}])
        assert "truncated or damaged (wire type 7)" in inspect_error(tmp_path)

    @each_layout
    def test_no_samples(self, tmp_path: Path, layout: str) -> None:
        path = tmp_path / "a.hdf5"
        empty = replace(
            make_samples([5]).take(np.array([], int)), offsets=np.zeros(1, int), masked_offsets=np.zeros(1, int)
        )
        LAYOUT_WRITERS[layout](path, empty)
        assert inspect_error(path).startswith(str(path))

    def test_mask_with_a_hole(self, tmp_path: Path, samples: Samples) -> None:
        path = tmp_path / "a.hdf5"
        write_fixed(path, samples)
        with h5py.File(path, "r+") as file:
            file["input_mask"][7, 1] = 0
        assert "input_mask of row 7 is not a run of ones" in inspect_error(path)

    def test_token_id_outside_the_vocabulary(self, tmp_path: Path, samples: Samples) -> None:
        for write in (write_fixed, write_variable):
            path = tmp_path / f"{write.__name__}.hdf5"
            wrong = samples.input_ids.copy()
            wrong[1] = VOCAB_SIZE
            write(path, replace(samples, input_ids=wrong))
            assert f"{path}: token id {VOCAB_SIZE} lies outside the vocabulary" in inspect_error(path)


class TestDamagedVariableLength:
    """The published converter under numpy 2 or newer: an int8 sum of the mask cuts the rows at wrong places."""

    @pytest.mark.parametrize("length", [128, 129, 200, 255, 256, 257, 300, 383, 512])
    def test_one_overflowed_row_is_found(self, tmp_path: Path, length: int) -> None:
        samples = make_samples([20, length, 127, 384, 511, 40])
        overflowed = samples.lengths.astype(np.int8)
        write_variable(tmp_path / "a.hdf5", samples, lengths=overflowed)
        message = inspect_error(tmp_path)
        assert "1 of 6 rows are damaged (the first is row 1" in message and "convert the files again" in message

    def test_lengths_that_the_overflow_leaves_right_are_read(self, tmp_path: Path) -> None:
        samples = make_samples([20, 127, 384, 400, 511])
        write_variable(tmp_path / "a.hdf5", samples, lengths=samples.lengths.astype(np.int8))
        assert_equal(read(tmp_path), samples)


@pytest.mark.reference
@pytest.mark.parametrize(
    ("name", "count"),
    [("part0_fixed_first500.hdf5", 500), ("part0_varlength_first2500.hdf5", 2500), ("part0_first200.tfrecord", 200)],
)
def test_published_files_equal_the_reference_examples(reference_dir: Path, name: str, count: int) -> None:
    folder = reference_dir / "golden" / "dataprep"
    assert_equal(read(folder / name, vocab_size=30522), reference_samples(folder / "examples_part0.npz", count))


@pytest.mark.reference
def test_published_evaluation_file(reference_dir: Path) -> None:
    folder = reference_dir / "golden" / "dataprep"
    found = read(folder / "eval_pick100.tfrecord", vocab_size=30522)
    assert_equal(found, reference_samples(folder / "eval_pick100.npz", 100))


def reference_samples(path: Path, count: int) -> Samples:
    """The first `count` examples of an npz of the reference vectors."""
    file = np.load(path)
    offsets = file["offsets"]
    positions = np.arange(offsets[-1]) - np.repeat(offsets[:-1], np.diff(offsets))
    segment_a = np.repeat(file["segment_a_length"].astype(np.int64), np.diff(offsets))
    everything = Samples(
        input_ids=file["input_ids"],
        segment_ids=(positions >= segment_a).astype(np.uint8),
        offsets=offsets,
        masked_positions=file["masked_lm_positions"],
        masked_ids=file["masked_lm_ids"],
        masked_offsets=file["masked_offsets"],
        next_sentence_labels=file["next_sentence_labels"],
    )
    return everything.take(np.arange(count))
