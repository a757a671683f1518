"""Writers of the published layouts, with the datasets and types of the published files (see data/padded.py and
data/ragged.py for what they mean). All work chunk by chunk in constant memory."""

import tempfile
from contextlib import ExitStack
from typing import IO

import h5py
import numpy as np

from bert_mlperf.data.published import FIXED, PACKED, ROWS, TFRECORD, VARIABLE
from bert_mlperf.data.samples import Samples, offsets_of
from bert_mlperf.data_prep.layout_writer import LayoutWriter, append_ragged, append_rows, padded
from bert_mlperf.data_prep.packing import pack
from bert_mlperf.data_prep.sturdy_file import SturdyFile
from bert_mlperf.data_prep.tfrecord_writer import example_messages, frames

_CHUNK = 256  # rows of a dataset that are stored together
_TYPES = {
    "input_ids": "<i2",
    "input_mask": "|i1",
    "segment_ids": "|i1",
    "masked_lm_positions": "<i2",
    "masked_lm_ids": "<i2",
    "next_sentence_labels": "|i1",
    "packed_input_len": "<i2",
    "packed_masked_lm_len": "<i2",
}
_RAGGED = ("input_ids", "segment_ids", "masked_lm_positions", "masked_lm_ids")


class _HdfWriter(LayoutWriter):
    def write(self, samples: Samples) -> None:
        super().write(samples)
        with self._failures():
            self._disk.check()

    def _open(self) -> None:
        self._disk = SturdyFile(self.path)
        self._file = h5py.File(self.path, "w", driver="fileobj", fileobj=self._disk)

    def _close(self) -> None:
        self._file.close()
        self._disk.close()
        self._disk.check()

    def _create(self, name: str, *, ragged: bool = False, width: int | None = None) -> None:
        dtype = h5py.vlen_dtype(np.dtype(_TYPES[name])) if ragged else np.dtype(_TYPES[name])
        behind = () if width is None else (width,)
        self._file.create_dataset(
            name, (0, *behind), maxshape=(None, *behind), chunks=(_CHUNK, *behind), dtype=dtype, track_times=False
        )


class FixedWriter(_HdfWriter):
    """Fixed-length HDF5: padded rows, not compressed, no weights."""

    layout = FIXED

    def _open(self) -> None:
        super()._open()
        for name in ("input_ids", "input_mask", "segment_ids"):
            self._create(name, width=self.max_length)
        for name in ("masked_lm_positions", "masked_lm_ids"):
            self._create(name, width=self.max_predictions)
        self._create("next_sentence_labels")

    def _append(self, samples: Samples) -> None:
        arrays = padded(samples, max_length=self.max_length, max_predictions=self.max_predictions)
        for name in self._file:
            append_rows(self._file[name], arrays[name])


class VariableWriter(_HdfWriter):
    """Variable-length HDF5: a ragged row a sample. All samples end in one separator, for readers know damage by it."""

    layout = VARIABLE
    _separator: int | None = None  # known with the first sample

    def _open(self) -> None:
        super()._open()
        for name in _RAGGED:
            self._create(name, ragged=True)
        self._create("next_sentence_labels")

    def _unfit(self, samples: Samples) -> dict[str, np.ndarray]:
        unfit = super()._unfit(samples)
        ends = samples.input_ids[samples.offsets[1:] - 1]
        if self._separator is None:
            self._separator = int(ends[0])
        reason = f"ends in token id 0 or in another one than the samples before ({self._separator})"
        return unfit | {reason: (ends != self._separator) | (ends == 0)}

    def _append(self, samples: Samples) -> None:
        for name, values, offsets in (
            ("input_ids", samples.input_ids, samples.offsets),
            ("segment_ids", samples.segment_ids, samples.offsets),
            ("masked_lm_positions", samples.masked_positions, samples.masked_offsets),
            ("masked_lm_ids", samples.masked_ids, samples.masked_offsets),
        ):
            append_ragged(self._file[name], values, offsets)
        append_rows(self._file["next_sentence_labels"], samples.next_sentence_labels)


class PackedWriter(_HdfWriter):
    """Packed variable-length HDF5: up to three samples a row, `max_length` tokens in all; the samples change places.

    Which samples share a row is known when all lengths are; until then the samples lie in unnamed files beside the
    target, and only lengths and labels are in memory.
    """

    layout = PACKED

    def _open(self) -> None:
        super()._open()
        for name in (*_RAGGED, "next_sentence_labels", "packed_input_len", "packed_masked_lm_len"):
            self._create(name, ragged=True)
        self.num_rows = 0  # written so far
        self._lengths: list[np.ndarray] = []
        self._counts: list[np.ndarray] = []
        self._labels: list[np.ndarray] = []
        with ExitStack() as opened:
            self._spilled: dict[str, IO[bytes]] = {
                name: opened.enter_context(tempfile.TemporaryFile(dir=self.path.parent)) for name in _RAGGED
            }
            self._files = opened.pop_all()

    def _append(self, samples: Samples) -> None:
        for name, values in (
            ("input_ids", samples.input_ids),
            ("segment_ids", samples.segment_ids),
            ("masked_lm_positions", samples.masked_positions),
            ("masked_lm_ids", samples.masked_ids),
        ):
            self._spilled[name].write(values.astype(_TYPES[name]).tobytes())
        self._lengths.append(samples.lengths.astype(np.int16))
        self._counts.append(samples.masked_counts.astype(np.int16))
        self._labels.append(samples.next_sentence_labels.astype(np.int8))

    def _finish(self) -> None:
        for file in self._spilled.values():
            file.flush()
        lengths, counts, labels = (
            np.concatenate(parts) if parts else np.zeros(0, np.int16)
            for parts in (self._lengths, self._counts, self._labels)
        )
        rows = pack(lengths, max_tokens=self.max_length)
        offsets, masked_offsets = offsets_of(lengths), offsets_of(counts)
        for start in range(0, len(rows), ROWS):
            members = rows[start : start + ROWS]
            ids, segments, positions, masked_ids = (self._mapped(name) for name in _RAGGED)  # anew: pages are let go
            spilled = Samples(ids, segments, offsets, positions, masked_ids, masked_offsets, labels)
            taken = spilled.take(np.array([sample for row in members for sample in row]))
            self._append_rows(taken, np.array([len(row) for row in members]))
            self._disk.check()
        self.num_rows = len(rows)

    def _mapped(self, name: str) -> np.ndarray:
        file, dtype = self._spilled[name], np.dtype(_TYPES[name])
        size = file.seek(0, 2)
        return np.memmap(file, dtype, mode="r", shape=(size // dtype.itemsize,)) if size else np.zeros(0, dtype)

    def _append_rows(self, samples: Samples, members: np.ndarray) -> None:
        """Writes `samples`, of which row i takes the next members[i]."""
        firsts = offsets_of(members)  # sample of each row
        starts = samples.offsets[firsts]  # token of each row
        before = samples.offsets[:-1] - np.repeat(starts[:-1], members)  # tokens of the row before a sample
        positions = samples.masked_positions + np.repeat(before, samples.masked_counts)
        for name, values, offsets in (
            ("input_ids", samples.input_ids, starts),
            ("segment_ids", samples.segment_ids, starts),
            ("masked_lm_positions", positions, samples.masked_offsets[firsts]),
            ("masked_lm_ids", samples.masked_ids, samples.masked_offsets[firsts]),
            ("next_sentence_labels", samples.next_sentence_labels, firsts),
            ("packed_input_len", samples.lengths, firsts),
            ("packed_masked_lm_len", samples.masked_counts, firsts),
        ):
            append_ragged(self._file[name], values, offsets)

    def _close(self) -> None:
        with self._files:
            super()._close()


class TfrecordWriter(LayoutWriter):
    """TFRecord of tf.train.Example messages: padded int64 lists, and weights."""

    layout = TFRECORD
    largest_id = (1 << 31) - 1
    has_weights = True

    def _open(self) -> None:
        self._file = open(self.path, "xb")

    def _append(self, samples: Samples) -> None:
        arrays = padded(samples, max_length=self.max_length, max_predictions=self.max_predictions)
        arrays["next_sentence_labels"] = arrays["next_sentence_labels"][:, None]
        self._file.write(frames(example_messages(arrays)))

    def _close(self) -> None:
        self._file.close()


WRITERS: dict[str, type[LayoutWriter]] = {
    writer.layout: writer for writer in (FixedWriter, VariableWriter, PackedWriter, TfrecordWriter)
}
