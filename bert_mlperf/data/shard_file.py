"""One shard file of ours: HDF5 with the flat arrays of `Samples`, each contiguous, so that they can be memory-mapped.

Datasets are named like the fields of `Samples`, little-endian: offsets int64, segment_ids and next_sentence_labels
uint8, token ids and positions uint16 where they fit, else int32. Attributes of the file:

    format "bert-mlperf-samples", schema_version 1, num_samples, num_tokens, num_masked (counts),
    vocab_size (of the vocabulary the ids belong to), max_length (tokens of the longest sample),
    max_token_id (largest id in input_ids and masked_ids), sha256 (hex, see `digest`)

HDF5 handles live only inside the functions of this module; readers get memory maps, which survive fork and threads.
"""

import hashlib
import mmap
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import h5py
import numpy as np

from bert_mlperf.data.samples import Samples
from bert_mlperf.errors import UserError

LAYOUT = "bert-mlperf shards"
FORMAT = "bert-mlperf-samples"
SCHEMA_VERSION = 1
ARRAYS = tuple(field.name for field in fields(Samples))
_COUNTS = ("num_samples", "num_tokens", "num_masked", "vocab_size", "max_length", "max_token_id")


@dataclass(frozen=True)
class StoredArray:
    """Where an array lies in the file."""

    dtype: np.dtype[Any]
    length: int
    byte_offset: int

    @property
    def byte_end(self) -> int:
        return self.byte_offset + self.length * self.dtype.itemsize


@dataclass(frozen=True)
class ShardHeader:
    """What a shard says of itself, checked against the size of the file."""

    path: Path
    num_samples: int
    num_tokens: int
    num_masked: int
    vocab_size: int
    max_length: int
    max_token_id: int
    sha256: str
    arrays: dict[str, StoredArray]

    @property
    def num_bytes(self) -> int:
        return sum(array.byte_end - array.byte_offset for array in self.arrays.values())


def write_shard(path: str | Path, samples: Samples, *, vocab_size: int) -> None:
    """Writes `samples` (at least one, valid for `vocab_size`) to the new file `path`, as `ShardWriter` does."""
    with ShardWriter(
        path,
        num_samples=samples.num_samples,
        num_tokens=samples.num_tokens,
        num_masked=samples.num_masked,
        vocab_size=vocab_size,
        max_length=int(samples.lengths.max(initial=0)),
    ) as writer:
        writer.write(samples)


class ShardWriter:
    """Writes a shard piece by piece: `with ShardWriter(...) as writer: writer.write(samples)`, as often as it takes.

    What all pieces hold together is said beforehand: samples, tokens, masked positions, tokens of the longest sample
    and, if it is known, the largest token id. The same samples give the same bytes, however they were cut into pieces.
    The file appears under its name only when it is whole and on the disk, at the end of the `with` block; after an
    error it does not. Raises UserError if the file exists, if samples are not valid or not what was said, or if it
    cannot be written.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        num_samples: int,
        num_tokens: int,
        num_masked: int,
        vocab_size: int,
        max_length: int,
        max_token_id: int | None = None,
    ) -> None:
        self._path = Path(path)
        self._temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}.tmp")
        self._announced = {
            "num_samples": num_samples,
            "num_tokens": num_tokens,
            "num_masked": num_masked,
            "vocab_size": vocab_size,
            "max_length": max_length,
        }
        if max_token_id is not None:
            self._announced["max_token_id"] = max_token_id
        self._written = {"num_samples": 0, "num_tokens": 0, "num_masked": 0, "max_length": 0, "max_token_id": 0}
        self._dtypes = sample_dtypes(vocab_size=vocab_size, max_length=max_length)
        self.sha256 = ""  # hex, see `digest`; known when the file is finished

    def __enter__(self) -> "ShardWriter":
        if self._path.exists():
            raise UserError(
                f"{self._path} exists already and is not overwritten; remove it or write to another folder."
            )
        if not self._announced["num_samples"]:
            raise UserError(f"no samples to write to {self._path}: a shard holds at least one.")
        try:
            self._arrays = _allocate(self._temporary, self._dtypes, _extents(**self._announced))
            self._file = open(self._temporary, "r+b")
        except OSError as error:
            self._temporary.unlink(missing_ok=True)
            raise self._unwritable(error) from error
        return self

    def write(self, samples: Samples) -> None:
        """Adds `samples` (maybe none) behind those written so far."""
        samples.validate(
            self._announced["vocab_size"],
            max(self._announced["max_length"], 1),
            where=f"the samples for {self._path}",
        )
        starts = _extents(**self._written)
        self._count(samples)
        try:
            for name in ARRAYS:
                values = np.ascontiguousarray(getattr(samples, name), self._dtypes[name])
                if name in ("offsets", "masked_offsets"):  # the first one of a piece is the last one of the one before
                    before = self._written["num_tokens" if name == "offsets" else "num_masked"] - values[-1]
                    self._put(name, starts[name] - 1, values + before)
                else:
                    self._put(name, starts[name], values)
        except OSError as error:
            raise self._unwritable(error) from error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._file.close()
            if kind is None:
                self._finish()
        except OSError as failure:
            raise self._unwritable(failure) from failure
        finally:
            self._temporary.unlink(missing_ok=True)

    def _count(self, samples: Samples) -> None:
        found = self._written
        for name in ("num_samples", "num_tokens", "num_masked"):
            found[name] += getattr(samples, name)
        found["max_length"] = max(found["max_length"], int(samples.lengths.max(initial=0)))
        for ids in (samples.input_ids, samples.masked_ids):
            found["max_token_id"] = max(found["max_token_id"], int(ids.max(initial=0)))
        for name in ("num_samples", "num_tokens", "num_masked"):
            if found[name] > self._announced[name]:
                raise self._contradiction(name)

    def _put(self, name: str, at: int, values: np.ndarray) -> None:
        array = self._arrays[name]
        self._file.seek(array.byte_offset + at * array.dtype.itemsize)
        self._file.write(values.data.cast("B") if len(values) else b"")

    def _finish(self) -> None:
        for name, value in self._written.items():
            if value != self._announced.setdefault(name, value):
                raise self._contradiction(name)
        with open(self._temporary, "rb") as mapped:
            self.sha256 = digest(_mapped(mapped, self._arrays))
        with plain_errors(), h5py.File(self._temporary, "r+", locking=False) as file:
            file.attrs.update({"format": FORMAT, "schema_version": SCHEMA_VERSION, **self._announced})
            file.attrs["sha256"] = self.sha256
        _sync(self._temporary)
        self._temporary.rename(self._path)
        _sync(self._path.parent)

    def _contradiction(self, name: str) -> UserError:
        return UserError(
            f"the samples for {self._path} have {name} {self._written[name]:,}, expected {self._announced[name]:,} as "
            "counted before; the input changed while it was read: run the command again."
        )

    def _unwritable(self, error: OSError) -> UserError:
        return UserError(f"{self._path} cannot be written: {error}; check the folder's permissions and free space.")


@contextmanager
def plain_errors() -> Iterator[None]:
    """Around what writes HDF5: where h5py cannot, it raises RuntimeError, too, and messages of several lines."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        number = re.search(r"errno = (\d+)", str(error))
        if number is None:
            raise OSError(" ".join(str(error).split())) from error
        raise OSError(int(number[1]), os.strerror(int(number[1]))) from error


def _allocate(path: Path, dtypes: dict[str, str], extents: dict[str, int]) -> dict[str, StoredArray]:
    """Makes the file with all its arrays, their content undefined, and says where each lies."""
    with plain_errors(), h5py.File(path, "w", locking=False) as file:
        layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        layout.set_layout(h5py.h5d.CONTIGUOUS)
        layout.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        layout.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        layout.set_obj_track_times(False)
        for name in ARRAYS:
            space = h5py.h5s.create_simple((extents[name],))
            h5py.h5d.create(file.id, name.encode(), h5py.h5t.py_create(np.dtype(dtypes[name])), space, layout)
        return {name: _stored(file[name]) for name in ARRAYS}


def canonical(samples: Samples, *, vocab_size: int) -> Samples:
    """The same samples in the dtypes of a shard (see the top of this file), so that equal samples have equal bytes."""
    dtypes = sample_dtypes(vocab_size=vocab_size, max_length=int(samples.lengths.max(initial=0)))
    return Samples(**{name: np.ascontiguousarray(getattr(samples, name), dtypes[name]) for name in ARRAYS})


def sample_dtypes(*, vocab_size: int, max_length: int) -> dict[str, str]:
    ids = "<u2" if vocab_size <= 1 << 16 else "<i4"
    return {
        "input_ids": ids,
        "segment_ids": "|u1",
        "offsets": "<i8",
        "masked_positions": "<u2" if max_length <= 1 << 16 else "<i4",
        "masked_ids": ids,
        "masked_offsets": "<i8",
        "next_sentence_labels": "|u1",
    }


def digest(samples: Samples) -> str:
    """sha256 (hex) of the arrays in the order of the fields of `Samples`, each after its name, dtype and length."""
    total = hashlib.sha256()
    for name in ARRAYS:
        array = getattr(samples, name)
        total.update(f"{name} {array.dtype.str} {len(array)}\n".encode())
        total.update(memoryview(array).cast("B") if len(array) else b"")
    return total.hexdigest()


def read_header(path: Path) -> ShardHeader:
    """The header of the HDF5 file `path`; UserError if it is truncated, of another schema, or contradicts itself."""
    try:
        with h5py.File(path, "r", locking=False) as file:
            if file.attrs.get("format") != FORMAT:
                raise UserError(
                    f"{path}: this HDF5 file is not a shard of ours (format is {file.attrs.get('format')!r}, expected "
                    f"{FORMAT!r}); remove it from the folder or prepare the data again."
                )
            version = file.attrs.get("schema_version")
            if version != SCHEMA_VERSION:
                raise UserError(
                    f"{path}: schema version is {version}, this program reads {SCHEMA_VERSION}; prepare the data again "
                    "with this program, or read it with the program that wrote it."
                )
            counts = {name: int(file.attrs[name]) for name in _COUNTS}
            arrays = {name: _stored(file[name]) for name in ARRAYS}
            header = ShardHeader(path=path, **counts, sha256=str(file.attrs["sha256"]), arrays=arrays)
    except UserError:
        raise
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise _unreadable(path, error) from error
    _check_extent(header)
    return header


def map_samples(header: ShardHeader) -> Samples:
    """The samples of a shard as read-only views of the mapped file: nothing is read before it is used."""
    try:
        with open(header.path, "rb") as file:
            if os.fstat(file.fileno()).st_size < max(array.byte_end for array in header.arrays.values()):
                raise UserError(f"{header.path} has become shorter since it was opened; copy it again and start anew.")
            return _mapped(file, header.arrays)
    except OSError as error:
        raise UserError(f"{header.path} can no longer be read: {error}; put it back and start anew.") from error


def _mapped(file: BinaryIO, arrays: dict[str, StoredArray]) -> Samples:
    buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return Samples(
        **{
            name: np.ndarray((array.length,), array.dtype, buffer=buffer, offset=array.byte_offset)
            for name, array in arrays.items()
        }
    )


def _stored(dataset: h5py.Dataset) -> StoredArray:
    if dataset.ndim != 1 or dataset.chunks is not None:
        raise ValueError(f"dataset {dataset.name} is not one contiguous array")
    return StoredArray(dataset.dtype, len(dataset), dataset.id.get_offset() or 0)


def _extents(*, num_samples: int, num_tokens: int, num_masked: int, **_: int) -> dict[str, int]:
    """How long each array is."""
    return {
        "input_ids": num_tokens,
        "segment_ids": num_tokens,
        "offsets": num_samples + 1,
        "masked_positions": num_masked,
        "masked_ids": num_masked,
        "masked_offsets": num_samples + 1,
        "next_sentence_labels": num_samples,
    }


def _check_extent(header: ShardHeader) -> None:
    expected = _extents(num_samples=header.num_samples, num_tokens=header.num_tokens, num_masked=header.num_masked)
    for name, array in header.arrays.items():
        if array.length != expected[name] or (array.length and not array.byte_offset) or array.dtype.kind not in "ui":
            raise _unreadable(
                header.path, f"{name} holds {array.length} {array.dtype}, expected {expected[name]} integers"
            )
        if array.byte_end > header.path.stat().st_size:
            raise _unreadable(header.path, f"{name} ends at byte {array.byte_end}, behind the end of the file")


def _unreadable(path: Path, reason: object) -> UserError:
    return UserError(
        f"{path}: the shard is truncated or damaged ({reason}; {path.stat().st_size:,} bytes); copy it again or "
        "prepare the data again."
    )


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
