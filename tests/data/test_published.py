import errno
import gzip
import os
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from bert_mlperf.data import tfrecord
from bert_mlperf.data.parts import Part, open_part
from bert_mlperf.data.published import FIXED, PACKED, TFRECORD, VARIABLE, detect_layout, iter_published
from bert_mlperf.data.samples import Samples, concatenate
from bert_mlperf.data.shards import ShardSet, inspect_shards, write_shard
from bert_mlperf.errors import UserError
from tests.data.files import (
    LAYOUT_WRITERS,
    MAX_LENGTH,
    VOCAB_SIZE,
    assert_equal,
    make_samples,
    padded,
    write_fixed,
    write_packed,
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


class TestChunks:
    @each_layout
    @pytest.mark.parametrize("rows", [1, 7, 40, 1000])
    def test_of_any_size_are_the_samples(self, tmp_path: Path, samples: Samples, layout: str, rows: int) -> None:
        path = tmp_path / "a"
        LAYOUT_WRITERS[layout](path, samples)
        part = open_part(path, detect_layout(path))
        chunks = list(part.chunks(rows))
        assert_equal(concatenate(chunks), samples)
        assert part.count_samples() == 40
        if layout != PACKED:
            assert [chunk.num_samples for chunk in chunks[:-1]] == [rows] * (len(chunks) - 1)

    def test_of_our_shards(self, tmp_path: Path, samples: Samples) -> None:
        write_shard(tmp_path / "a.hdf5", samples, vocab_size=VOCAB_SIZE)
        part: Part = open_part(tmp_path / "a.hdf5", detect_layout(tmp_path / "a.hdf5"))
        chunks = list(part.chunks(7))
        assert_equal(concatenate(chunks), samples)
        assert [chunk.num_samples for chunk in chunks] == [7] * 5 + [5] and part.count_samples() == 40

    @each_layout
    def test_a_file_is_opened_only_while_a_chunk_is_read(self, tmp_path: Path, samples: Samples, layout: str) -> None:
        """No HDF5 handle is open between chunks, so a fork there copies none."""
        path = tmp_path / "a"
        LAYOUT_WRITERS[layout](path, samples)
        chunks = iter_published(path, layout, rows=5)
        next(chunks)
        assert h5py.h5f.get_obj_count(h5py.h5f.OBJ_ALL, h5py.h5f.OBJ_FILE) == 0


class TestFieldsThatMayDiffer:
    def test_fixed_without_mask_ends_at_the_last_id_that_is_not_0(self, tmp_path: Path, samples: Samples) -> None:
        write_fixed(tmp_path / "a.hdf5", samples)
        with h5py.File(tmp_path / "a.hdf5", "r+") as file:
            del file["input_mask"]
            file["input_ids"][2, 5] = 0  # [PAD] inside a sample
        expected = samples.input_ids.copy()
        expected[samples.offsets[2] + 5] = 0
        assert_equal(read(tmp_path), replace(samples, input_ids=expected))

    def test_fixed_without_mask_and_an_empty_row(self, tmp_path: Path, samples: Samples) -> None:
        write_fixed(tmp_path / "a.hdf5", samples)
        with h5py.File(tmp_path / "a.hdf5", "r+") as file:
            del file["input_mask"]
            file["input_ids"][11] = 0
        with pytest.raises(UserError, match="row 11 has no token"):
            list(iter_published(tmp_path / "a.hdf5", FIXED, rows=4))

    @pytest.mark.parametrize("dtype", ["i8", "u2", ">i4", "u8"])
    def test_fixed_of_any_integers_with_weights_and_labels_as_a_column(
        self, tmp_path: Path, samples: Samples, dtype: str
    ) -> None:
        first = replace(samples, masked_positions=samples.masked_positions.copy())
        first.masked_positions[0] = 0  # counts only as its weight is not 0
        with h5py.File(tmp_path / "a.hdf5", "w") as file:
            for name, values in padded(first).items():
                file.create_dataset(name, data=values, dtype="f8" if "weights" in name else dtype)
        assert_equal(read(tmp_path), first)

    def test_without_weights_position_0_is_padding(self, tmp_path: Path, samples: Samples) -> None:
        arrays = padded(samples)
        arrays["masked_lm_positions"][0, 0] = 0
        rows = [{name: values[i] for name, values in arrays.items() if "weights" not in name} for i in range(40)]
        write_tfrecord(tmp_path / "a.tfrecord", rows)
        assert read(tmp_path).num_masked == samples.num_masked - 1

    @pytest.mark.parametrize("left_out", [("input_mask",), ("masked_lm_weights",), ("input_mask", "masked_lm_weights")])
    def test_tfrecord_without_mask_or_weights(
        self, tmp_path: Path, samples: Samples, left_out: tuple[str, ...]
    ) -> None:
        arrays = padded(samples)
        rows = [{name: values[i] for name, values in arrays.items() if name not in left_out} for i in range(40)]
        write_tfrecord(tmp_path / "a.tfrecord", rows)
        assert_equal(read(tmp_path), samples)

    def test_variable_with_padding_that_a_mask_shows_and_weights(self, tmp_path: Path, samples: Samples) -> None:
        arrays = padded(samples)
        longer = np.minimum(samples.lengths + np.arange(40) % 3, 512)
        predictions = np.minimum(samples.masked_counts + 2, 76)
        real = samples.masked_counts.sum()
        arrays["masked_lm_positions"][1, 0] = 0
        with h5py.File(tmp_path / "a.hdf5", "w") as file:
            for name in ("input_ids", "input_mask", "segment_ids", "masked_lm_positions", "masked_lm_ids"):
                cuts = predictions if "masked" in name else longer
                dataset = file.create_dataset(name, (40,), dtype=h5py.vlen_dtype(np.int32))
                for i in range(40):
                    dataset[i] = arrays[name][i, : cuts[i]]
            weights = file.create_dataset("masked_lm_weights", (40,), dtype=h5py.vlen_dtype(np.float32))
            for i in range(40):
                weights[i] = arrays["masked_lm_weights"][i, : predictions[i]]
            file["next_sentence_labels"] = samples.next_sentence_labels[:, None]
        found = read(tmp_path)
        positions = samples.masked_positions.copy()
        positions[samples.masked_offsets[1]] = 0
        assert_equal(found, replace(samples, masked_positions=positions))
        assert found.num_masked == real

    def test_mask_with_a_hole_in_a_variable_row(self, tmp_path: Path, samples: Samples) -> None:
        write_variable(tmp_path / "a.hdf5", samples)
        with h5py.File(tmp_path / "a.hdf5", "r+") as file:
            mask = file.create_dataset("input_mask", (40,), dtype=h5py.vlen_dtype(np.int8))
            for i, length in enumerate(samples.lengths):
                mask[i] = np.ones(length, np.int8) if i != 9 else (np.arange(length) != 3).astype(np.int8)
        assert "1 of 40 rows are damaged (the first is row 9 " in inspect_error(tmp_path)


class TestMissingFields:
    @pytest.mark.parametrize("layout", [FIXED, VARIABLE, PACKED])
    def test_each_field_of_hdf5(self, tmp_path: Path, samples: Samples, layout: str) -> None:
        path = tmp_path / "a.hdf5"
        LAYOUT_WRITERS[layout](path, samples)
        with h5py.File(path) as file:
            names = [name for name in file if name != "input_mask"]
        for name in names:
            LAYOUT_WRITERS[layout](path, samples)
            with h5py.File(path, "r+") as file:
                del file[name]
                left = ", ".join(sorted(file))
            assert f"{path} has no {name}, only {left}; expected the fields input_ids, " in inspect_error(path)

    @pytest.mark.parametrize("name", ["input_ids", "segment_ids", "masked_lm_ids", "next_sentence_labels"])
    def test_in_one_record(self, tmp_path: Path, samples: Samples, name: str) -> None:
        arrays = padded(samples)
        rows = [{n: values[i] for n, values in arrays.items() if (n, i) != (name, 13)} for i in range(40)]
        write_tfrecord(tmp_path / "a.tfrecord", rows)
        with pytest.raises(UserError, match=rf"a.tfrecord: record 13 has no {name}, only "):
            list(iter_published(tmp_path / "a.tfrecord", TFRECORD, rows=5))

    def test_a_field_of_fractions(self, tmp_path: Path, samples: Samples) -> None:
        write_fixed(tmp_path / "a.hdf5", samples)
        with h5py.File(tmp_path / "a.hdf5", "r+") as file:
            del file["segment_ids"]
            file["segment_ids"] = np.zeros((40, 512), np.float32)
        assert "the field segment_ids is of type float32, expected whole numbers" in inspect_error(tmp_path)

    def test_fields_of_different_length(self, tmp_path: Path, samples: Samples) -> None:
        write_fixed(tmp_path / "a.hdf5", samples)
        with h5py.File(tmp_path / "a.hdf5", "r+") as file:
            del file["next_sentence_labels"]
            file["next_sentence_labels"] = np.zeros(39, np.int8)
        assert "(next_sentence_labels has 39 rows and input_ids 40)" in inspect_error(tmp_path)

    def test_labels_that_do_not_fit_a_byte_are_not_wrapped(self, tmp_path: Path, samples: Samples) -> None:
        write_fixed(tmp_path / "a.hdf5", samples)
        with h5py.File(tmp_path / "a.hdf5", "r+") as file:
            del file["next_sentence_labels"]
            file["next_sentence_labels"] = np.full(40, 256, np.int16)
        assert "next_sentence_labels holds 256 to 256" in inspect_error(tmp_path)


class TestPacked:
    def test_positions_count_from_the_sample(self, tmp_path: Path) -> None:
        samples = make_samples([100, 50, 300])
        write_packed(tmp_path / "a.hdf5", samples)
        with h5py.File(tmp_path / "a.hdf5") as file:
            assert len(file["input_ids"]) == 1
            row = file["masked_lm_positions"][0]
            assert (row[samples.masked_offsets[1] :] >= 100).all()
        assert_equal(read(tmp_path), samples)

    @pytest.mark.parametrize(
        ("name", "values", "reason"),
        [
            ("packed_input_len", [100, 51, 300], "packed_input_len does not add up to the tokens"),
            ("packed_input_len", [150, 0, 300], "a sample has no tokens"),
            ("packed_input_len", [100, -50, 400], "a sample has no tokens"),
            ("packed_input_len", [100, 350], "have different lengths"),
            ("packed_masked_lm_len", [15, 7, 44], "packed_masked_lm_len does not add up to the predictions"),
            ("packed_masked_lm_len", [17, -2, 52], "a sample has a negative number of predictions"),
            ("packed_masked_lm_len", [20, 2, 45], "a prediction lies outside its sample"),
            ("next_sentence_labels", [1, 0], "have different lengths"),
            ("next_sentence_labels", [], "it has no samples"),
            ("segment_ids", [0] * 449, "packed_input_len does not add up to the tokens"),
            ("masked_lm_ids", [7] * 66, "packed_masked_lm_len does not add up to the predictions"),
        ],
    )
    def test_row_that_contradicts_itself(self, tmp_path: Path, name: str, values: list[int], reason: str) -> None:
        path = tmp_path / "a.hdf5"
        samples = make_samples([100, 50, 300] * 3)
        assert samples.masked_counts[:3].tolist() == [15, 7, 45]
        write_packed(path, samples)
        with h5py.File(path, "r+") as file:
            file[name][2] = np.array(values, dtype=np.int16)
        with pytest.raises(UserError, match=rf"{path}: row 2 of the packed samples is damaged \(.*{reason}"):
            list(iter_published(path, PACKED, rows=1))


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
        assert "truncated or damaged (record 0: wire type 7)" in inspect_error(tmp_path)

    @pytest.mark.parametrize("length", [0, 3])
    def test_a_record_that_is_too_short(
        self, tmp_path: Path, samples: Samples, monkeypatch: pytest.MonkeyPatch, length: int
    ) -> None:
        path = tmp_path / "a.tfrecord"
        write_tfrecord_samples(path, samples)
        whole = path.read_bytes()
        monkeypatch.setattr("tests.data.files.encode_example", lambda row, packed: b"\0" * length)
        write_tfrecord(path, [{}])
        short = path.read_bytes()
        for content, number in ((short, 0), (whole + short, 40)):
            path.write_bytes(content)
            told = f"record {number} is truncated or damaged (it has {length} bytes, expected at least 4)"
            assert told in inspect_error(tmp_path)

    def test_gzip_is_named(self, tmp_path: Path, samples: Samples) -> None:
        write_tfrecord_samples(tmp_path / "a.tfrecord", samples)
        path = tmp_path / "a.tfrecord"
        path.write_bytes(gzip.compress(path.read_bytes()))
        assert inspect_error(tmp_path).startswith(f"{path} is compressed with gzip, expected HDF5 or TFRecord; unpack")

    @pytest.mark.parametrize("weight", [0.5, np.nan, -1.0, 2.0])
    def test_weights_are_0_or_1(self, tmp_path: Path, samples: Samples, weight: float) -> None:
        arrays = padded(samples)
        rows = [{name: values[i] for name, values in arrays.items()} for i in range(40)]
        rows[3]["masked_lm_weights"][0] = weight
        write_tfrecord(tmp_path / "a.tfrecord", rows)
        assert f"masked_lm_weights of row 3 is {weight}, expected 0 or 1" in inspect_error(tmp_path)

    @pytest.mark.parametrize("name", ["a.tfrecord", "a.hdf5"])
    def test_a_file_that_may_not_be_read(
        self, tmp_path: Path, samples: Samples, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        def refuse(path: Path) -> bool:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

        (write_fixed if name.endswith("hdf5") else write_tfrecord_samples)(tmp_path / name, samples)
        monkeypatch.setattr(h5py, "is_hdf5", refuse)
        told = f"{tmp_path / name} cannot be read: Permission denied; check its permissions."
        assert inspect_error(tmp_path / name) == told

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

    def test_every_length_that_the_overflow_changes_is_found(self, tmp_path: Path) -> None:
        """The sum of the mask as the converter does it under numpy 2, for every length."""
        with np.errstate(over="ignore"):
            assert sum(np.ones(300, np.int8)) == 300 - 256  # the builtin sum stays in int8
        lengths = np.arange(3, 513)
        samples = make_samples(lengths)
        cuts = padded(samples)["input_mask"].astype(np.int8).sum(axis=1, dtype=np.int8)
        kept = np.array([len(np.arange(512)[:cut]) for cut in cuts])
        changed = np.flatnonzero(kept != lengths)
        assert lengths[changed].tolist() == [*range(128, 384), 512]
        path = tmp_path / "a.hdf5"
        write_variable(path, samples, lengths=cuts)
        message = inspect_error(path)
        assert f"257 of 510 rows are damaged (the first is row {changed[0]} of 384 tokens)" in message
        write_variable(path, samples.take(np.setdiff1d(np.arange(510), changed)))
        assert read(path).num_samples == 510 - 257

    @pytest.mark.parametrize("rows", [1, 4, 5, 6])
    def test_the_row_is_that_of_the_file_in_chunks(self, tmp_path: Path, rows: int) -> None:
        samples = make_samples([20, 30, 40, 50, 60, 300, 70, 512])
        write_variable(tmp_path / "a.hdf5", samples, lengths=samples.lengths.astype(np.int8))
        chunks = iter_published(tmp_path / "a.hdf5", VARIABLE, rows=rows)
        with pytest.raises(UserError, match=r"2 of 8 rows are damaged \(the first is row 5 of 44 tokens"):
            list(chunks)


class TestDamagedRecords:
    def test_the_record_is_that_of_the_file_in_chunks(self, tmp_path: Path, samples: Samples) -> None:
        path = tmp_path / "a.tfrecord"
        write_tfrecord_samples(path, samples)
        content = path.read_bytes()
        ends = np.cumsum([len(m) + 16 for block in tfrecord.read_records(path, together=100) for m in block])
        for at, reason in ((ends[28] + 40, "its checksum is wrong"), (ends[28] + 2, "the checksum of its length")):
            path.write_bytes(content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :])
            with pytest.raises(UserError, match=f"record 29 is truncated or damaged .{reason}"):
                list(iter_published(path, TFRECORD, rows=8))
        for end in (ends[28] + 1, ends[28] + 11, ends[28] + 12, ends[29] - 1):
            path.write_bytes(content[:end])
            for reader in (lambda: list(iter_published(path, TFRECORD, rows=8)), lambda: tfrecord.count_records(path)):
                with pytest.raises(UserError, match=f"record 29 is truncated or damaged .*{end:,}"):
                    reader()

    def test_records_of_different_width(self, tmp_path: Path, samples: Samples) -> None:
        arrays = padded(samples)
        rows = [{name: values[i] for name, values in arrays.items()} for i in range(40)]
        rows[3]["input_ids"] = rows[3]["input_ids"][:-1]
        write_tfrecord(tmp_path / "a.tfrecord", rows)
        assert "input_ids of records 0 onwards: the first holds 512 values, the one 3 behind it 511" in inspect_error(
            tmp_path
        )


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
