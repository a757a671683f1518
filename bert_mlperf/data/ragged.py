"""The published layouts with rows of variable length in HDF5.

    variable-length HDF5  input_ids, segment_ids, masked_lm_positions, masked_lm_ids: one ragged row a sample, without
                          padding; next_sentence_labels [n]. input_mask and masked_lm_weights may be there as well.
    packed                the same, but a row holds several samples one behind the other (up to 3 in 512 tokens):
                          next_sentence_labels, packed_input_len (tokens) and packed_masked_lm_len (predictions) have
                          one value a sample, and masked_lm_positions count from the begin of the row

The published fixed-to-variable converter cuts rows at wrong places under numpy 2 or newer, where its int8 sum of the
mask overflows: rows of 128..255 tokens keep padding, 257..383 lose their end, 256 and 512 become empty, the others stay
right. Such rows show: they are empty, do not end in the separator or have predictions behind their end.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bert_mlperf.data.fields import OPTIONAL, PACKED_COUNTS, REQUIRED, Table, as_bytes, narrow, open_table
from bert_mlperf.data.samples import Samples, offsets_of
from bert_mlperf.errors import UserError

_LABELS = "next_sentence_labels"
_PROBE = 4096  # rows whose last tokens show which id is the separator


@dataclass(frozen=True)
class _Rows:
    """Ragged rows [n]: all their values one behind the other, and the length of each."""

    values: np.ndarray
    lengths: np.ndarray  # int64 [n]

    @property
    def offsets(self) -> np.ndarray:
        return offsets_of(self.lengths)

    def keep(self, wanted: np.ndarray) -> "_Rows":
        """The `wanted` values (bool [values]) only."""
        owner = np.repeat(np.arange(len(self.lengths)), self.lengths)
        return _Rows(self.values[wanted], np.bincount(owner[wanted], minlength=len(self.lengths)))


def _ragged(arrays: dict[str, np.ndarray]) -> dict[str, _Rows]:
    """The ragged ones of the fields of a chunk."""
    rows = {}
    for name, field in arrays.items():
        if field.dtype == object:
            lengths = np.fromiter((len(row) for row in field), dtype=np.int64, count=len(field))
            values = np.concatenate(list(field)) if len(field) else np.zeros(0, dtype=np.int16)
            rows[name] = _Rows(narrow(values, name), lengths)
    return rows


def iter_variable(path: Path, *, rows: int) -> Iterator[Samples]:
    """The samples of a variable-length HDF5 file, `rows` at a time. UserError or ValueError if it is damaged."""
    ragged = tuple(name for name in (*REQUIRED, *OPTIONAL) if name != _LABELS)
    table = open_table(path, required=REQUIRED, optional=OPTIONAL, ragged=ragged)
    separator = _separator(_ragged(table.only("input_ids").read(0, _PROBE))["input_ids"])
    for start, arrays in table.chunks(rows):
        chunk = _ragged(arrays)
        wrong = _wrong_rows(chunk, separator)
        if wrong.any():
            raise _cut_rows(table, separator, first=start + int(np.argmax(wrong)), rows=rows)
        yield _unmasked(chunk, arrays[_LABELS])


def _separator(ids: _Rows) -> int:
    """The id that most rows end in, padding aside: every whole row ends in the separator, as it is never masked."""
    ends = ids.values[(ids.offsets[1:] - 1)[ids.lengths > 0]]
    values, counts = np.unique(ends[ends != 0], return_counts=True)
    return int(values[np.argmax(counts)]) if len(values) else 0


def _wrong_rows(chunk: dict[str, _Rows], separator: int) -> np.ndarray:
    """bool [n]: rows that are empty, that do not end in the separator, whose fields differ in length or whose mask has
    a hole, and those with a prediction behind their end."""
    ids, positions = chunk["input_ids"], chunk["masked_lm_positions"]
    wrong = ids.lengths == 0
    for name, rows in chunk.items():
        like = positions if name.startswith("masked") else ids
        wrong |= rows.lengths != like.lengths
    ends = ids.lengths
    if "input_mask" in chunk:
        mask = chunk["input_mask"]
        ends = np.minimum(mask.keep(mask.values != 0).lengths, ids.lengths)
        places = np.arange(len(mask.values)) - np.repeat(mask.offsets[:-1], mask.lengths)
        hole = (mask.values != 0) != (places < np.repeat(ends, mask.lengths))
        wrong |= (mask.keep(hole).lengths > 0) | (ends == 0)
    full = ids.lengths > 0
    last = ids.values[(ids.offsets[:-1] + np.maximum(ends, 1) - 1)[full]]
    wrong[full] |= (last == 0) | (last != separator)
    wrong |= positions.keep(positions.values >= np.repeat(ends, positions.lengths)).lengths > 0
    return wrong


def _cut_rows(table: Table, separator: int, *, first: int, rows: int) -> UserError:
    """The error for a file whose row `first` is the first wrong one; reads on to count them."""
    length = len(table.read(first, first + 1)["input_ids"][0])
    count = sum(int(_wrong_rows(_ragged(arrays), separator).sum()) for _, arrays in table.chunks(rows))
    return UserError(
        f"{table.path}: {count} of {table.num_rows} rows are damaged (the first is row {first} of {length} tokens): "
        "they are empty, cut or padded, as the published converter leaves them under numpy 2 or newer, where its int8 "
        "sum of the mask overflows; convert the files again from the fixed-length ones (bert-mlperf prep convert)."
    )


def _unmasked(chunk: dict[str, _Rows], labels: np.ndarray) -> Samples:
    """Samples of rows that are not damaged, without the padding that a mask shows."""
    ids, segments = chunk["input_ids"], chunk["segment_ids"]
    if "input_mask" in chunk:
        real = chunk["input_mask"].values != 0
        ids, segments = ids.keep(real), segments.keep(real)
    weights = chunk["masked_lm_weights"].values if "masked_lm_weights" in chunk else chunk["masked_lm_positions"].values
    return _samples(ids, segments, chunk["masked_lm_positions"], chunk["masked_lm_ids"], weights != 0, labels)


def _samples(
    ids: _Rows, segments: _Rows, positions: _Rows, masked_ids: _Rows, predicted: np.ndarray, labels: np.ndarray
) -> Samples:
    """`predicted` (bool [predictions]) says which predictions are real."""
    real = positions.keep(predicted)
    return Samples(
        input_ids=ids.values,
        segment_ids=as_bytes(segments.values, "segment_ids"),
        offsets=ids.offsets,
        masked_positions=real.values,
        masked_ids=masked_ids.values[predicted],
        masked_offsets=real.offsets,
        next_sentence_labels=as_bytes(labels.reshape(len(ids.lengths)), _LABELS),
    )


def iter_packed(path: Path, *, rows: int) -> Iterator[Samples]:
    """The samples of a packed file in the order of its rows, those of `rows` rows at a time. UserError, naming the row,
    if the counts of a row contradict what it holds."""
    table = open_packed(path)
    for start, arrays in table.chunks(rows):
        yield _unpacked(path, _ragged(arrays), first_row=start)


def open_packed(path: Path) -> Table:
    """The rows of a packed file."""
    names = (*REQUIRED, *PACKED_COUNTS)
    return open_table(path, required=names, ragged=names)


def _unpacked(path: Path, chunk: dict[str, _Rows], *, first_row: int) -> Samples:
    """Rows taken apart."""
    tokens, counts = (chunk[name] for name in PACKED_COUNTS)
    ids, positions, labels = chunk["input_ids"], chunk["masked_lm_positions"], chunk[_LABELS]
    row_of_sample = np.repeat(np.arange(len(tokens.lengths)), tokens.lengths)
    contradictions = {
        "it has no samples": labels.lengths == 0,
        "packed_input_len, packed_masked_lm_len and next_sentence_labels have different lengths": (
            (tokens.lengths != labels.lengths) | (counts.lengths != labels.lengths)
        ),
        "a sample has no tokens": tokens.keep(tokens.values < 1).lengths > 0,
        "a sample has a negative number of predictions": counts.keep(counts.values < 0).lengths > 0,
        "packed_input_len does not add up to the tokens": (
            (_sums(tokens) != ids.lengths) | (_sums(tokens) != chunk["segment_ids"].lengths)
        ),
        "packed_masked_lm_len does not add up to the predictions": (
            (_sums(counts) != positions.lengths) | (_sums(counts) != chunk["masked_lm_ids"].lengths)
        ),
    }
    _raise_first(path, contradictions, first_row)
    samples = _Rows(ids.values, tokens.values.astype(np.int64))
    begins = samples.offsets[:-1] - ids.offsets[row_of_sample]  # tokens of the row before the sample
    per_sample = counts.values.astype(np.int64)
    relative = _Rows(positions.values - np.repeat(begins, per_sample), per_sample)
    outside = (relative.values < 0) | (relative.values >= np.repeat(samples.lengths, per_sample))
    row_outside = _Rows(positions.values, positions.lengths).keep(outside).lengths > 0
    _raise_first(path, {"a prediction lies outside its sample": row_outside}, first_row)
    return _samples(
        samples, chunk["segment_ids"], relative, chunk["masked_lm_ids"], relative.values != 0, labels.values
    )


def _sums(rows: _Rows) -> np.ndarray:
    """Sum of each row, int64 [n]."""
    totals = np.zeros(len(rows.values) + 1, dtype=np.int64)
    np.cumsum(rows.values, out=totals[1:])
    return np.diff(totals[rows.offsets])


def _raise_first(path: Path, contradictions: dict[str, np.ndarray], first_row: int) -> None:
    """UserError for the first row (bool [n] per reason) that has a contradiction."""
    wrong = np.logical_or.reduce(list(contradictions.values()))
    if wrong.any():
        row = int(np.argmax(wrong))
        reason = next(reason for reason, rows in contradictions.items() if rows[row])
        raise UserError(
            f"{path}: row {first_row + row} of the packed samples is damaged ({reason}); copy the file again or pack "
            "the samples anew."
        )
