"""What the published layouts have in common: the names of their fields, and how the rows of an HDF5 file are read.

A padded prediction has position 0, where [CLS] stands; so without weights a prediction is real where its position is
not 0, and with weights where its weight is not 0 (then even [CLS] may be predicted).
"""

import errno
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import h5py
import numpy as np

from bert_mlperf.errors import UserError

REQUIRED = ("input_ids", "segment_ids", "masked_lm_positions", "masked_lm_ids", "next_sentence_labels")
OPTIONAL = ("input_mask", "masked_lm_weights")
PACKED_COUNTS = ("packed_input_len", "packed_masked_lm_len")
# What reading damaged bytes may end in: HDF5 knows them as any of these, numpy and the protocol buffers as some.
UNREADABLE = (OSError, KeyError, TypeError, ValueError, AttributeError, RuntimeError, MemoryError)


@dataclass(frozen=True)
class Table:
    """An HDF5 file as rows of fields. The file is open only while rows are read, so no handle crosses a fork."""

    path: Path
    names: tuple[str, ...]
    num_rows: int

    def only(self, name: str) -> "Table":
        """The same rows with the field `name` alone."""
        return replace(self, names=(name,))

    def read(self, start: int, stop: int) -> dict[str, np.ndarray]:
        """Rows [start, stop) of every field: arrays [rows, ...], or object arrays of rows [rows] if they are ragged."""
        with h5py.File(self.path, "r", locking=False) as file:
            return {name: file[name][start:stop] for name in self.names}

    def chunks(self, rows: int) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        """The number of the first row, and the fields, of `rows` rows after the other."""
        for start in range(0, self.num_rows, rows):
            yield start, self.read(start, min(start + rows, self.num_rows))


def open_table(
    path: Path, *, required: Sequence[str], optional: Sequence[str] = (), ragged: Sequence[str] = ()
) -> Table:
    """The rows of the HDF5 file `path`: its `required` fields and those of `optional` that it has.

    Raises UserError, naming file and field, if a required one is missing, if one holds no whole numbers (weights may be
    fractions), if one that is `ragged` has no rows of variable length, or if they differ in the number of rows.
    """
    with h5py.File(path, "r", locking=False) as file:
        missing = [name for name in required if name not in file]
        if missing:
            raise missing_field(path, missing[0], present=list(file), expected=required)
        names = tuple(name for name in (*required, *optional) if name in file)
        for name in names:
            _check_field(path, file[name], is_ragged=name in ragged)
        num_rows = {name: len(file[name]) for name in names}
    for name, count in num_rows.items():
        if count != num_rows[names[0]]:
            raise damaged(path, f"{name} has {count:,} rows and {names[0]} {num_rows[names[0]]:,}")
    return Table(path, names, num_rows[names[0]])


def _check_field(path: Path, dataset: h5py.Dataset, *, is_ragged: bool) -> None:
    base = h5py.check_vlen_dtype(dataset.dtype)
    name = dataset.name.strip("/")
    if is_ragged != (base is not None):
        found, expected = ("", "out") if is_ragged else ("out", "")
        raise UserError(
            f"{path}: the rows of {name} are with{expected} padding, expected with{found} it as the other fields say; "
            "the file is of an unknown layout, remove it or make it anew."
        )
    kind = (base or dataset.dtype).kind
    if kind not in ("uif" if name == "masked_lm_weights" else "ui"):
        raise UserError(
            f"{path}: the field {name} is of type {base or dataset.dtype}, expected whole numbers; make the file anew."
        )


def missing_field(path: Path, name: str, *, present: Sequence[str], expected: Sequence[str]) -> UserError:
    """The error for a file without the field `name`."""
    return UserError(
        f"{path} has no {name}, only {', '.join(sorted(map(str, present))) or 'nothing'}; expected the fields "
        f"{', '.join(expected)}: the file is of another task or cut, remove it or make it anew."
    )


def damaged(path: Path, reason: object) -> UserError:
    """The error for a file that cannot be read as what it seems to be, or not at all."""
    if isinstance(reason, OSError) and reason.errno in (errno.EACCES, errno.EPERM):
        return UserError(f"{path} cannot be read: {os.strerror(reason.errno)}; check its permissions.")
    told = " ".join(str(reason).split()) or type(reason).__name__
    return UserError(f"{path} is truncated or damaged ({told}); copy it again or make it anew.")


def narrow(values: np.ndarray, name: str) -> np.ndarray:
    """Token ids or positions without the breadth of 64 bits: as they are, or int32. ValueError if one does not fit."""
    if values.dtype.itemsize < 8 or values.dtype.kind == "f":
        return values
    if values.size and (values.min() < 0 or values.max() >= 1 << 31):
        raise ValueError(f"{name} holds {values.min()} to {values.max()}")
    return values.astype(np.int32)


def as_bytes(values: np.ndarray, name: str) -> np.ndarray:
    """Segment ids or labels as uint8. ValueError if one does not fit."""
    if values.size and (values.min() < 0 or values.max() > 255):
        raise ValueError(f"{name} holds {values.min()} to {values.max()}")
    return values.astype(np.uint8)
