"""The index of a data set: tokens and masked positions of every sample, and the files that they belong to.

With it every rank knows who reads what without asking the others and without opening all files. It lies beside the
shards as `samples.index` (or, where they cannot be written, in a folder of the user's cache) and is an HDF5 file with

    lengths, masked_counts   uint16 [num_samples], contiguous, so that they can be mapped
    files                    uint8, JSON: [name, number of samples, sha256 of the samples] of each file, in their order

and the attributes format "bert-mlperf-index", schema_version 1 and sha256 (hex) of the three. 157 million samples take
630 MB, of which a rank has the pages of a window in memory.
"""

import hashlib
import json
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import h5py
import numpy as np

from bert_mlperf.data.samples import offsets_of
from bert_mlperf.data.shard_file import plain_errors
from bert_mlperf.errors import UserError

FILE_NAME = "samples.index"
FORMAT = "bert-mlperf-index"
SCHEMA_VERSION = 1
_ARRAYS = ("lengths", "masked_counts")


@dataclass(frozen=True)
class IndexedFile:
    """A file of the set."""

    name: str
    num_samples: int
    sha256: str  # hex, of its samples (`shard_file.digest`); empty where nobody asked


@dataclass(frozen=True)
class SampleIndex:
    """Of all samples under their global ids: the files in their order, one behind the other."""

    files: tuple[IndexedFile, ...]
    lengths: np.ndarray  # integer [num_samples], tokens
    masked_counts: np.ndarray  # integer [num_samples]
    where: str = "the index"

    @cached_property
    def starts(self) -> np.ndarray:
        """First global id of each file, and the number of samples behind it; int64 [files + 1]."""
        return offsets_of(np.array([file.num_samples for file in self.files], dtype=np.int64))

    @property
    def num_samples(self) -> int:
        return int(self.starts[-1])

    def locate(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The file of each sample and its number in it, int64 [k] each."""
        files = np.searchsorted(self.starts, ids, side="right") - 1
        return files, ids - self.starts[files]

    def counts(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Tokens and masked positions of the samples `ids`, int64 [k] each."""
        found = self.lengths[ids].astype(np.int64), self.masked_counts[ids].astype(np.int64)
        for array in (self.lengths, self.masked_counts):
            release_pages(array)
        return found

    def first_difference(self, files: Sequence[IndexedFile]) -> str | None:
        """How `files`, as they are, differ from the files that the index is of; None if they do not."""
        if [file.name for file in files] != [file.name for file in self.files]:
            return f"it lists {len(self.files)} files, the folder has {len(files)}, or their names differ"
        for here, indexed in zip(files, self.files, strict=True):
            if here != indexed:
                return f"{here.name} is another file than the one it was made of"
        return None


def release_pages(array: np.ndarray) -> None:
    """Gives the pages of a mapped file that were read so far back to the system, which keeps them as its cache."""
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, mmap.mmap):
        base.madvise(mmap.MADV_DONTNEED)


def write_index(path: Path, index: SampleIndex) -> None:
    """Writes `index` to `path`; what was there is replaced in one go. OSError if it cannot be written."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    listed = np.frombuffer(json.dumps([[f.name, f.num_samples, f.sha256] for f in index.files]).encode(), np.uint8)
    arrays = {"lengths": index.lengths, "masked_counts": index.masked_counts, "files": listed}
    try:
        with plain_errors(), h5py.File(temporary, "w", locking=False) as file:
            for name, values in arrays.items():
                file.create_dataset(name, data=values.astype("|u1" if name == "files" else "<u2"), track_times=False)
            file.attrs.update({"format": FORMAT, "schema_version": SCHEMA_VERSION, "sha256": _digest(arrays)})
        temporary.rename(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_index(path: Path, *, verify: bool = False) -> SampleIndex:
    """The index in the file `path`, its arrays mapped. Raises UserError if it is damaged or of another version;
    `verify` compares its checksum."""
    try:
        with h5py.File(path, "r", locking=False) as file:
            if (file.attrs.get("format"), file.attrs.get("schema_version")) != (FORMAT, SCHEMA_VERSION):
                raise ValueError(f"format {file.attrs.get('format')!r}, version {file.attrs.get('schema_version')}")
            listed = file["files"][:]
            places = {name: (file[name].id.get_offset() or 0, len(file[name])) for name in _ARRAYS}
            expected = str(file.attrs["sha256"])
        lengths, masked_counts = (_map(path, *places[name]) for name in _ARRAYS)
        index = SampleIndex(
            tuple(IndexedFile(str(n), int(k), str(s)) for n, k, s in json.loads(bytes(listed))),
            lengths,
            masked_counts,
            where=str(path),
        )
        for file in index.files:
            if file.num_samples < 0 or file.name != Path(file.name).name:
                raise ValueError(f"it lists {file.num_samples} samples in {file.name!r}")
        if not len(lengths) == len(masked_counts) == index.num_samples:
            raise ValueError("its arrays do not have one value a sample")
        if verify and _digest({"lengths": lengths, "masked_counts": masked_counts, "files": listed}) != expected:
            raise ValueError("its content does not match its sha256")
    except (OSError, KeyError, TypeError, ValueError, AttributeError, RuntimeError, ArithmeticError) as error:
        told = " ".join(str(error).split())
        raise UserError(
            f"{path} is no index of samples or damaged ({told}); remove it, and it is made anew by the next run."
        ) from error
    return index


def _map(path: Path, offset: int, count: int) -> np.ndarray:
    """`count` values of uint16 from byte `offset` on; ValueError if the file is shorter."""
    if not count:
        return np.zeros(0, np.uint16)
    with open(path, "rb") as file:
        buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    if not offset or offset + 2 * count > len(buffer):
        raise ValueError("it is cut short")
    return np.ndarray((count,), "<u2", buffer=buffer, offset=offset)


def _digest(arrays: dict[str, np.ndarray]) -> str:
    total = hashlib.sha256()
    for name in (*_ARRAYS, "files"):
        values = np.ascontiguousarray(arrays[name], "|u1" if name == "files" else "<u2")
        total.update(f"{name} {len(values)}\n".encode())
        total.update(values.tobytes())
    return total.hexdigest()
