"""Single samples out of one shard file of ours (see shard_file.py), for training."""

import os

import numpy as np

from bert_mlperf.data.samples import Row
from bert_mlperf.data.shard_file import ShardHeader, StoredArray
from bert_mlperf.errors import UserError


class ShardReader:
    """Reads single samples of a shard with pread: no page of the file stays in this process, threads and forked
    processes may share it, and a file that became shorter or a storage that fails is an error and no SIGBUS."""

    def __init__(self, header: ShardHeader) -> None:
        """Raises UserError if the file cannot be opened."""
        self._header = header
        try:
            self._file = open(header.path, "rb", buffering=0)
            self._changed_at = os.fstat(self._file.fileno()).st_mtime_ns
        except OSError as error:
            raise self._unreadable(error) from error

    def row(self, number: int) -> Row:
        """Sample `number`. Raises UserError, naming the file, if it cannot be read or is damaged."""
        arrays = self._header.arrays
        start, end = self._read(arrays["offsets"], number, number + 2).tolist()
        first, last = self._read(arrays["masked_offsets"], number, number + 2).tolist()
        if not (0 <= start <= end <= self._header.num_tokens and 0 <= first <= last <= self._header.num_masked):
            self._check_unchanged()
            raise UserError(
                f"{self._header.path}: the offsets of sample {number} are damaged; copy the file again or prepare the "
                "data again."
            )
        row = Row(
            self._read(arrays["input_ids"], start, end),
            self._read(arrays["segment_ids"], start, end),
            self._read(arrays["masked_positions"], first, last),
            self._read(arrays["masked_ids"], first, last),
            int(self._read(arrays["next_sentence_labels"], number, number + 1)[0]),
        )
        self._check_unchanged()
        return row

    def _read(self, array: StoredArray, start: int, end: int) -> np.ndarray:
        size = array.dtype.itemsize
        count = (end - start) * size
        try:
            content = os.pread(self._file.fileno(), count, array.byte_offset + start * size)
        except OSError as error:
            raise self._unreadable(error) from error
        if len(content) != count:
            raise UserError(
                f"{self._header.path} has become shorter since it was opened; copy it again and start anew."
            )
        return np.frombuffer(content, array.dtype)

    def _check_unchanged(self) -> None:
        """Raises UserError if somebody has written to the file since it was opened."""
        if os.fstat(self._file.fileno()).st_mtime_ns != self._changed_at:
            raise UserError(
                f"{self._header.path} was changed since it was opened; put the right file back and start anew."
            )

    def _unreadable(self, error: OSError) -> UserError:
        return UserError(f"{self._header.path} can no longer be read: {error}; put it back and start anew.")
