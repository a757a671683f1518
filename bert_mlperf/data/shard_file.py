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
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

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
    """Writes `samples` (at least one, valid for `vocab_size`) to the new file `path`.

    The file appears under its name only when it is whole and on the disk. Raises UserError if the file exists, if the
    samples are not valid, or if the folder cannot be written.
    """
    path = Path(path)
    if path.exists():
        raise UserError(f"{path} exists already and is not overwritten; remove it or write to another folder.")
    max_length = int(samples.lengths.max(initial=0))
    samples.validate(vocab_size, max(max_length, 1), where=f"the samples for {path}")
    if not samples.num_samples:
        raise UserError(f"no samples to write to {path}: a shard holds at least one.")
    stored = canonical(samples, vocab_size=vocab_size)
    attributes = {
        "format": FORMAT,
        "schema_version": SCHEMA_VERSION,
        "num_samples": stored.num_samples,
        "num_tokens": stored.num_tokens,
        "num_masked": stored.num_masked,
        "vocab_size": vocab_size,
        "max_length": max_length,
        "max_token_id": max(int(stored.input_ids.max()), int(stored.masked_ids.max(initial=0))),
        "sha256": digest(stored),
    }
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with h5py.File(temporary, "w", locking=False) as file:
            file.attrs.update(attributes)
            for name in ARRAYS:
                file.create_dataset(name, data=getattr(stored, name))
        _sync(temporary)
        temporary.rename(path)
        _sync(path.parent)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error}; check the folder's permissions and free space.") from error
    finally:
        temporary.unlink(missing_ok=True)


def canonical(samples: Samples, *, vocab_size: int) -> Samples:
    """The same samples in the dtypes of a shard (see the top of this file), so that equal samples have equal bytes."""
    ids = "<u2" if vocab_size <= 1 << 16 else "<i4"
    positions = "<u2" if int(samples.lengths.max(initial=0)) <= 1 << 16 else "<i4"
    dtypes = {
        "offsets": "<i8",
        "masked_offsets": "<i8",
        "input_ids": ids,
        "masked_ids": ids,
        "masked_positions": positions,
    }
    return Samples(**{name: np.ascontiguousarray(getattr(samples, name), dtypes.get(name, "u1")) for name in ARRAYS})


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
            buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise UserError(f"{header.path} can no longer be read: {error}; put it back and start anew.") from error
    return Samples(
        **{
            name: np.ndarray((array.length,), array.dtype, buffer=buffer, offset=array.byte_offset)
            for name, array in header.arrays.items()
        }
    )


def _stored(dataset: h5py.Dataset) -> StoredArray:
    if dataset.ndim != 1 or dataset.chunks is not None:
        raise ValueError(f"dataset {dataset.name} is not one contiguous array")
    return StoredArray(dataset.dtype, len(dataset), dataset.id.get_offset() or 0)


def _check_extent(header: ShardHeader) -> None:
    expected = {
        "input_ids": header.num_tokens,
        "segment_ids": header.num_tokens,
        "offsets": header.num_samples + 1,
        "masked_positions": header.num_masked,
        "masked_ids": header.num_masked,
        "masked_offsets": header.num_samples + 1,
        "next_sentence_labels": header.num_samples,
    }
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
