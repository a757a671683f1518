"""Samples as flat ragged arrays: how training examples travel from shards to the model.

Legend: n samples, T tokens of all of them, M masked positions of all of them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bert_mlperf.errors import UserError


class Row(NamedTuple):
    """One sample: the values of `Samples` that belong to it."""

    input_ids: np.ndarray  # [tokens]
    segment_ids: np.ndarray  # [tokens]
    masked_positions: np.ndarray  # [predictions]
    masked_ids: np.ndarray  # [predictions]
    next_sentence_label: int


@dataclass(frozen=True)
class Samples:
    """Flat ragged samples: sample i owns tokens [offsets[i], offsets[i+1]) and predictions
    [masked_offsets[i], masked_offsets[i+1])."""

    input_ids: np.ndarray  # unsigned or signed integer [T]
    segment_ids: np.ndarray  # uint8 [T], 0 or 1
    offsets: np.ndarray  # int64 [n+1], offsets[0] = 0
    masked_positions: np.ndarray  # integer [M], position inside the sample
    masked_ids: np.ndarray  # integer [M], the original token ids
    masked_offsets: np.ndarray  # int64 [n+1], masked_offsets[0] = 0
    next_sentence_labels: np.ndarray  # uint8 [n]; 0 = real next segment, 1 = random one

    @property
    def num_samples(self) -> int:
        return len(self.next_sentence_labels)

    @property
    def num_tokens(self) -> int:
        return len(self.input_ids)

    @property
    def num_masked(self) -> int:
        return len(self.masked_ids)

    @property
    def lengths(self) -> np.ndarray:
        """Tokens per sample, int64 [n]."""
        return np.diff(self.offsets)

    @property
    def masked_counts(self) -> np.ndarray:
        """Masked positions per sample, int64 [n]."""
        return np.diff(self.masked_offsets)

    def row(self, number: int) -> Row:
        """One sample, as views."""
        tokens = slice(self.offsets[number], self.offsets[number + 1])
        masked = slice(self.masked_offsets[number], self.masked_offsets[number + 1])
        return Row(
            self.input_ids[tokens],
            self.segment_ids[tokens],
            self.masked_positions[masked],
            self.masked_ids[masked],
            int(self.next_sentence_labels[number]),
        )

    def take(self, ids: np.ndarray) -> "Samples":
        """The samples `ids` (integer [k], each in [0, n), repeats allowed) in that order, as new arrays."""
        return join_rows(map(self.row, np.asarray(ids).tolist()))

    def validate(self, vocab_size: int, max_length: int, *, where: str = "the samples", first_sample: int = 0) -> None:
        """Raises UserError, naming `where` and the first bad sample, unless every sample has 1..max_length tokens,
        every token id (masked ones included) is in [0, vocab_size), every masked position lies inside its sample, and
        segment ids and next-sentence labels are 0 or 1. `first_sample` is the number that sample 0 has in `where`."""
        self.check_structure(where=where)
        self._check_lengths(max_length, where, first_sample)
        for ids in (self.input_ids, self.masked_ids):
            if len(ids):
                check_token_ids(int(ids.min()), int(ids.max()), vocab_size, where=where)
        outside = (self.masked_positions < 0) | (self.masked_positions >= np.repeat(self.lengths, self.masked_counts))
        if outside.any():
            at = int(np.argmax(outside))
            sample = int(np.searchsorted(self.masked_offsets, at, side="right")) - 1
            raise UserError(
                f"{where}: masked position {self.masked_positions[at]} of sample {first_sample + sample} lies outside "
                f"its {self.lengths[sample]} tokens; the file is damaged, prepare it again."
            )
        for name, values in (("segment id", self.segment_ids), ("next-sentence label", self.next_sentence_labels)):
            if len(values) and (values.min() < 0 or values.max() > 1):
                raise UserError(
                    f"{where}: a {name} is {values.max() if values.max() > 1 else values.min()}, expected 0 or 1; "
                    "the file is damaged or of another task, prepare it again."
                )

    def check_structure(self, *, where: str) -> None:
        """Raises UserError, naming `where`, unless the offsets cut the other arrays into samples."""
        n = self.num_samples
        consistent = (
            len(self.offsets) == len(self.masked_offsets) == n + 1
            and len(self.segment_ids) == self.num_tokens
            and len(self.masked_positions) == self.num_masked
            and _is_partition(self.offsets, self.num_tokens)
            and _is_partition(self.masked_offsets, self.num_masked)
        )
        if not consistent:
            raise UserError(
                f"{where}: the offsets do not cut {self.num_tokens} tokens and {self.num_masked} masked positions into "
                f"{n} samples; the file is damaged, prepare it again."
            )

    def _check_lengths(self, max_length: int, where: str, first_sample: int) -> None:
        lengths = self.lengths
        bad = (lengths > max_length) | (lengths < 1)
        if bad.any():
            sample = int(np.argmax(bad))
            raise UserError(
                f"{where}: sample {first_sample + sample} has {lengths[sample]} tokens, expected 1 to {max_length} "
                f"(the positions of the model); prepare the data with --max-seq-length {max_length} or choose another "
                "model."
            )


def check_token_ids(lowest: int, highest: int, vocab_size: int, *, where: str) -> None:
    """Raises UserError, naming `where`, unless token ids from `lowest` to `highest` are in [0, vocab_size)."""
    if lowest < 0 or highest >= vocab_size:
        raise UserError(
            f"{where}: token id {highest if highest >= vocab_size else lowest} lies outside the vocabulary of the "
            f"model (0 to {vocab_size - 1}); use the data that belongs to this model or the model of this data."
        )


def concatenate(parts: Sequence[Samples]) -> Samples:
    """All samples of `parts` (at least one) in that order."""
    assert parts, "nothing to concatenate"
    if len(parts) == 1:
        return parts[0]
    return Samples(
        input_ids=np.concatenate([part.input_ids for part in parts]),
        segment_ids=np.concatenate([part.segment_ids for part in parts]),
        offsets=offsets_of(np.concatenate([part.lengths for part in parts])),
        masked_positions=np.concatenate([part.masked_positions for part in parts]),
        masked_ids=np.concatenate([part.masked_ids for part in parts]),
        masked_offsets=offsets_of(np.concatenate([part.masked_counts for part in parts])),
        next_sentence_labels=np.concatenate([part.next_sentence_labels for part in parts]),
    )


def join_rows(rows: Iterable[Row]) -> Samples:
    """The given samples one behind the other, as new arrays."""
    columns = list(zip(*rows, strict=True)) or [()] * len(Row._fields)
    ids, segments, positions, masked_ids, labels = columns
    return Samples(
        input_ids=_joined(ids),
        segment_ids=_joined(segments).astype(np.uint8, copy=False),
        offsets=offsets_of(np.fromiter(map(len, ids), np.int64, len(ids))),
        masked_positions=_joined(positions),
        masked_ids=_joined(masked_ids),
        masked_offsets=offsets_of(np.fromiter(map(len, positions), np.int64, len(ids))),
        next_sentence_labels=np.array(labels, dtype=np.uint8),
    )


def _joined(pieces: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(pieces) if pieces else np.zeros(0, np.uint16)


def offsets_of(lengths: np.ndarray) -> np.ndarray:
    """int64 [n+1]: 0 and the running sums of `lengths` (integer [n])."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _is_partition(offsets: np.ndarray, total: int) -> bool:
    return bool(offsets[0] == 0 and offsets[-1] == total and (np.diff(offsets) >= 0).all())
