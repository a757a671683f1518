"""A set of shards: the samples of a folder (or one file) under global ids, in whatever layout they are stored."""

import hashlib
import resource
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from bert_mlperf.data.index import IndexedFile, SampleIndex, read_index
from bert_mlperf.data.parts import MappedPart, Part, open_part, open_parts
from bert_mlperf.data.published import detect_layout
from bert_mlperf.data.samples import Row, Samples, join_rows
from bert_mlperf.data.shard_file import write_shard
from bert_mlperf.data.shard_reader import ShardReader
from bert_mlperf.errors import UserError

__all__ = ["DataSummary", "ShardSet", "inspect_shards", "write_shard"]

VERIFY_BYTES = 1 << 30  # larger sets are not read twice: `inspect_shards` believes their headers
_OPEN_FILES = 4096  # at a time; half of what the system lets a process open is the most


class ShardSet:
    """Samples under global ids 0..num_samples-1: the files in sorted order of their names, one behind the other.

    `path` and `layout` say where they come from, `index` what is known of all samples. A file is opened when a sample
    of it is taken; any number of threads may take samples.
    """

    def __init__(
        self, path: Path, parts: Sequence[Part | Path], index: SampleIndex, *, vocab_size: int, max_length: int
    ) -> None:
        """`parts` are files, those of ours as paths: they are opened when a sample of theirs is taken."""
        self.path, self.index = path, index
        self._parts = parts
        self._files = [part if isinstance(part, Path) else part.path for part in parts]
        self._vocab_size, self._max_length = vocab_size, max_length
        self._reader = lru_cache(maxsize=_most_open_files())(self._open)
        self._reading: dict[int, Path] = {}  # by thread: the file that it reads

    @classmethod
    def open(cls, path: str | Path, *, vocab_size: int, max_length: int, index: Path | None = None) -> "ShardSet":
        """The samples of `path`, a folder of shards or one file: ours or a published layout (read whole into memory),
        for a model of `vocab_size` and `max_length` positions. `index` is the file of their index; without it all files
        are opened to make one.

        Raises UserError, naming the file, if it is missing, truncated, foreign or of another layout than the rest.
        """
        path = Path(path)
        size = {"vocab_size": vocab_size, "max_length": max_length}
        if index is None:
            _, parts = open_parts(path)
            return cls(path, parts, index_parts(parts), **size)
        indexed = read_index(index)
        files = [path / file.name for file in indexed.files] if path.is_dir() else [path]
        return cls(path, files, indexed, **size)

    @property
    def num_samples(self) -> int:
        return self.index.num_samples

    @property
    def reading(self) -> list[Path]:
        """The files that threads are reading just now."""
        return sorted(set(self._reading.values()))

    def take(self, ids: np.ndarray) -> Samples:
        """The samples with global `ids` (integer [k]) in that order, as arrays in memory.

        Raises UserError, naming the file, if it can no longer be read, is another than the index says or holds what the
        model cannot take (a token id outside the vocabulary, a sample that is too long).
        """
        ids = np.asarray(ids, dtype=np.int64)
        assert not len(ids) or (ids.min() >= 0 and ids.max() < self.num_samples)
        files, numbers = self.index.locate(ids)
        samples = join_rows(self._rows(files.tolist(), numbers.tolist()))
        self._check(samples, ids)
        return samples

    def close(self) -> None:
        """Lets go of the files; samples that were taken stay valid."""
        self._reader.cache_clear()

    def _rows(self, files: list[int], numbers: list[int]) -> Iterator[Row]:
        thread = threading.get_ident()
        try:
            for file, number in zip(files, numbers, strict=True):
                self._reading[thread] = self._files[file]
                yield self._reader(file).row(number)
        finally:
            self._reading.pop(thread, None)

    def _open(self, file: int) -> ShardReader | Samples:
        """What reads a file, which must be the one that was indexed."""
        part, indexed = self._parts[file], self.index.files[file]
        if isinstance(part, Path):
            if not part.is_file():
                raise UserError(f"{part}, which {self.index.where} lists, is not there; put it back and start anew.")
            part = open_part(part, detect_layout(part))
            if indexed_file(part) != indexed:
                raise UserError(
                    f"{part.path} is another file than the one that {self.index.where} was made of; put that back, or "
                    "remove the index and start anew."
                )
        return part.reader()

    def _check(self, samples: Samples, ids: np.ndarray) -> None:
        lengths, masked_counts = self.index.counts(ids)
        differs = (samples.lengths != lengths) | (samples.masked_counts != masked_counts)
        if differs.any():
            at = int(np.argmax(differs))
            file, number = (int(found[0]) for found in self.index.locate(ids[at : at + 1]))
            raise UserError(
                f"{self._files[file]}: sample {number} has {samples.lengths[at]} tokens, {lengths[at]} by "
                f"{self.index.where}; the file was changed: put it back and start anew."
            )
        try:
            samples.validate(self._vocab_size, self._max_length, where=str(self.path))
        except UserError:
            files = self.index.locate(ids)[0]
            for file in np.unique(files):  # which one is it?
                own = samples.take(np.flatnonzero(files == file))
                own.validate(self._vocab_size, self._max_length, where=str(self._files[file]))
            raise


def index_parts(parts: Sequence[Part]) -> SampleIndex:
    """The index of these files, in memory. Raises UserError if the offsets of one are damaged."""
    lengths: list[np.ndarray] = []
    masked_counts: list[np.ndarray] = []
    for part in parts:
        samples = part.samples()
        samples.check_structure(where=str(part.path))
        for counts, column in ((samples.lengths, lengths), (samples.masked_counts, masked_counts)):
            if counts.max(initial=0) >= 1 << 16:
                raise UserError(f"{part.path} holds a sample of {counts.max():,} tokens, expected fewer than 65,536.")
            column.append(counts.astype(np.uint16))
    files = tuple(indexed_file(part, len(column)) for part, column in zip(parts, lengths, strict=True))
    return SampleIndex(files, np.concatenate(lengths), np.concatenate(masked_counts))


def indexed_file(part: Part, num_samples: int | None = None) -> IndexedFile:
    """A file as an index lists it; only shards of ours know their checksum without being read."""
    sha256 = part.header.sha256 if isinstance(part, MappedPart) else ""
    return IndexedFile(part.path.name, part.count_samples() if num_samples is None else num_samples, sha256)


def _most_open_files() -> int:
    """_OPEN_FILES, or half of what the system grants this process; its soft limit is raised if need and may be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    granted = 2 * _OPEN_FILES if hard == resource.RLIM_INFINITY else min(2 * _OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < granted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (granted, hard))
    return max(1, granted // 2)


@dataclass(frozen=True)
class DataSummary:
    """What `inspect_shards` found."""

    path: Path
    layout: str
    num_files: int
    num_samples: int
    num_tokens: int
    num_masked: int
    max_length: int  # tokens of the longest sample
    vocab_size: int | None  # of the vocabulary they were made with; None if the layout does not say
    fingerprint: str  # hex; equal for equal samples in equally cut files, whatever their layout
    verified: bool  # every sample was read and compared with its checksum; false: only headers and sizes were

    @property
    def mean_length(self) -> float:
        """Tokens per sample."""
        return self.num_tokens / self.num_samples

    def __str__(self) -> str:
        verified = "" if self.verified else " (from the headers: no sample was read)"
        return (
            f"{self.num_samples:,} samples, mean {self.mean_length:.0f} tokens, {self.num_files} "
            f"file{'s' * (self.num_files != 1)} of {self.layout}, fingerprint {self.fingerprint[:12]}{verified}"
        )


def inspect_shards(
    path: str | Path, *, vocab_size: int, max_length: int, min_samples: int, verify: bool = True
) -> DataSummary:
    """Looks for everything that could stop a run on the data of `path`, before any rank starts.

    Raises UserError, naming the file, if one is missing, truncated or foreign, if a token id lies outside [0,
    vocab_size), if a sample has more than `max_length` tokens, if shards differ in the size of their vocabulary, or if
    there are fewer than `min_samples` samples (one global batch). With `verify` shards of ours are compared with their
    sha256 up to VERIFY_BYTES in all; above that only headers and sizes are checked here, and the samples when they are
    taken.
    """
    layout, parts = open_parts(path)
    verify = verify and sum(part.num_bytes for part in parts) <= VERIFY_BYTES
    found = [part.inspect(vocab_size=vocab_size, max_length=max_length, verify=verify) for part in parts]
    num_samples = sum(part.num_samples for part in found)
    if num_samples < min_samples:
        raise UserError(
            f"{path} holds {num_samples:,} samples, expected at least one global batch of {min_samples:,}; add data or "
            "lower run.recipe.global_batch_size."
        )
    vocab_sizes = sorted({part.vocab_size for part in found if part.vocab_size is not None})
    if len(vocab_sizes) > 1:
        raise UserError(
            f"{path} mixes shards made with vocabularies of {vocab_sizes[0]:,} and {vocab_sizes[1]:,} tokens; keep one "
            "data set in a folder."
        )
    if not any(part.num_masked for part in found):
        raise UserError(
            f"{path} has no masked token in any of its samples, so nothing can be learned or counted; prepare it anew."
        )
    return DataSummary(
        path=Path(path),
        layout=layout,
        num_files=len(parts),
        num_samples=num_samples,
        num_tokens=sum(part.num_tokens for part in found),
        num_masked=sum(part.num_masked for part in found),
        max_length=max(part.max_length for part in found),
        vocab_size=vocab_sizes[0] if vocab_sizes else None,
        fingerprint=hashlib.sha256("".join(part.sha256 for part in found).encode()).hexdigest(),
        verified=verify,
    )
