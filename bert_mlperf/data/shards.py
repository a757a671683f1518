"""A set of shards: the samples of a folder (or one file) under global ids, in whatever layout they are stored."""

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from bert_mlperf.data.parts import open_parts
from bert_mlperf.data.samples import Samples, concatenate, offsets_of
from bert_mlperf.data.shard_file import write_shard
from bert_mlperf.errors import UserError

__all__ = ["DataSummary", "ShardSet", "inspect_shards", "write_shard"]

VERIFY_BYTES = 1 << 30  # larger sets are not read twice: `inspect_shards` believes their headers
_OPEN_MAPS = 256  # files mapped at a time: well below the usual limit of 1,024 open files


class ShardSet:
    """Samples under global ids 0..num_samples-1: the files in sorted order of their names, one behind the other.

    `path` and `layout` say where they come from; `lengths` and `masked_counts` (int32 [num_samples]) are tokens and
    masked positions of each sample.
    """

    def __init__(self, path: str | Path, *, vocab_size: int, max_length: int) -> None:
        self.path = Path(path)
        self.layout, self._parts = open_parts(path)
        self._vocab_size = vocab_size
        self._max_length = max_length
        self._samples_of = lru_cache(maxsize=_OPEN_MAPS)(lambda part: self._parts[part].samples())
        lengths, masked_counts = [], []
        for part in self._parts:
            samples = part.samples()
            samples.check_structure(where=str(part.path))
            lengths.append(samples.lengths.astype(np.int32))
            masked_counts.append(samples.masked_counts.astype(np.int32))
        self._starts = offsets_of(np.array([len(part) for part in lengths]))
        self.lengths = np.concatenate(lengths)
        self.masked_counts = np.concatenate(masked_counts)

    @classmethod
    def open(cls, path: str | Path, *, vocab_size: int, max_length: int) -> "ShardSet":
        """The samples of `path`, a folder of shards or one file: ours (memory-mapped) or a published layout (read whole
        into memory), for a model of `vocab_size` and `max_length` positions.

        Raises UserError, naming the file, if it is missing, truncated, foreign or of another layout than the rest.
        """
        return cls(path, vocab_size=vocab_size, max_length=max_length)

    @property
    def num_samples(self) -> int:
        return int(self._starts[-1])

    def take(self, ids: np.ndarray) -> Samples:
        """The samples with global `ids` (integer [k]) in that order, as arrays in memory.

        Raises UserError, naming the file, if it can no longer be read or holds what the model cannot take (a token id
        outside the vocabulary, a sample that is too long).
        """
        ids = np.asarray(ids, dtype=np.int64)
        assert not len(ids) or (ids.min() >= 0 and ids.max() < self.num_samples)
        part_of = np.searchsorted(self._starts, ids, side="right") - 1
        used = np.unique(part_of) if len(ids) else np.zeros(1, dtype=np.int64)
        taken = [self._samples_of(int(part)).take(ids[part_of == part] - self._starts[part]) for part in used]
        together = concatenate(taken)
        try:
            together.validate(self._vocab_size, self._max_length, where=str(self.path))
        except UserError:
            for part, samples in zip(used, taken, strict=True):  # which file is it?
                samples.validate(self._vocab_size, self._max_length, where=str(self._parts[part].path))
            raise
        return together if len(taken) == 1 else together.take(np.argsort(np.argsort(part_of, kind="stable")))

    def close(self) -> None:
        """Lets go of the mapped files; samples that were taken stay valid."""
        self._samples_of.cache_clear()


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
        verified = "" if self.verified else " (from the headers: the set is too large to be read twice)"
        return (
            f"{self.num_samples:,} samples, mean {self.mean_length:.0f} tokens, {self.num_files} "
            f"file{'s' * (self.num_files != 1)} of {self.layout}, fingerprint {self.fingerprint[:12]}{verified}"
        )


def inspect_shards(path: str | Path, *, vocab_size: int, max_length: int, min_samples: int) -> DataSummary:
    """Looks for everything that could stop a run on the data of `path`, before any rank starts.

    Raises UserError, naming the file, if one is missing, truncated or foreign, if a token id lies outside [0,
    vocab_size), if a sample has more than `max_length` tokens, if shards differ in the size of their vocabulary, or if
    there are fewer than `min_samples` samples (one global batch). Shards of ours are compared with their sha256 up to
    VERIFY_BYTES in all; above that only headers and sizes are checked here, and the samples when they are taken.
    """
    layout, parts = open_parts(path)
    verify = sum(part.num_bytes for part in parts) <= VERIFY_BYTES
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
