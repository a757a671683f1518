"""What the writers of the published layouts share: the `with` block, and the check that a layout can hold a sample."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

import h5py
import numpy as np

from bert_mlperf.data.samples import Samples
from bert_mlperf.errors import UserError

LARGEST_INT16 = 32767


class LayoutWriter(ABC):
    """Writes a new file chunk by chunk in constant memory: `with Writer(path) as writer: writer.write(samples)`.

    The file is whole when the block ends; if it ends in an error, the file is removed. `where` names the samples in
    errors. Raises UserError if the file exists or cannot be written, and for a sample that the layout cannot hold: more
    than `max_length` tokens or `max_predictions` predictions, or see `_unfit`. The samples are valid otherwise.
    """

    layout: ClassVar[str]
    largest_id: ClassVar[int] = LARGEST_INT16  # token id
    has_weights: ClassVar[bool] = False  # so that a prediction at position 0 differs from padding

    def __init__(
        self, path: str | Path, *, max_length: int = 512, max_predictions: int = 76, where: str | None = None
    ) -> None:
        assert max_length <= LARGEST_INT16 + 1
        self.path = Path(path)
        self.max_length = max_length
        self.max_predictions = max_predictions
        self.num_samples = 0  # written so far
        self._where = where or f"the samples for {path}"

    def __enter__(self) -> Self:
        if self.path.exists():
            raise UserError(f"{self.path} exists already and is not overwritten; remove it or write to another folder.")
        try:
            with self._failures():
                self._open()
        except UserError:
            self.path.unlink(missing_ok=True)
            raise
        return self

    def write(self, samples: Samples) -> None:
        """Adds `samples` (maybe none) behind those written so far."""
        if not samples.num_samples:
            return
        self._check(samples)
        with self._failures():
            self._append(samples)
        self.num_samples += samples.num_samples

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        whole = False
        try:
            with self._failures():
                try:
                    if kind is None:
                        self._finish()
                finally:
                    self._close()  # HDF5 crashes with the process if a file is left open
            whole = kind is None
        finally:
            if not whole:
                self.path.unlink(missing_ok=True)

    @abstractmethod
    def _open(self) -> None:
        """Makes the file."""

    @abstractmethod
    def _append(self, samples: Samples) -> None:
        """Writes samples that were checked."""

    def _finish(self) -> None:  # noqa: B027 - most writers have nothing left to write
        """Writes what can only be written when all samples are there."""

    @abstractmethod
    def _close(self) -> None:
        """Closes the file, whole or not."""

    def _unfit(self, samples: Samples) -> dict[str, np.ndarray]:
        """Reasons why a sample cannot be written, each with the samples (bool [n]) that it holds for."""
        predictions, tokens = samples.masked_counts, samples.lengths
        wide = samples.input_ids > self.largest_id
        unfit = {
            f"has more than {self.max_length} tokens": tokens > self.max_length,
            "has no tokens": tokens < 1,
            f"has more than {self.max_predictions} predictions": predictions > self.max_predictions,
            f"has a token id above {self.largest_id:,}": (
                any_of(wide, tokens) | any_of(samples.masked_ids > self.largest_id, predictions)
            ),
        }
        if not self.has_weights:
            unfit["predicts position 0, which means padding there"] = any_of(samples.masked_positions == 0, predictions)
        return unfit

    def _check(self, samples: Samples) -> None:
        for reason, wrong in self._unfit(samples).items():
            if wrong.any():
                raise UserError(
                    f"{self._where}: sample {self.num_samples + int(np.argmax(wrong))} {reason}; {self.layout} cannot "
                    "hold it, choose another layout or prepare the samples anew."
                )

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except (OSError, RuntimeError) as error:  # h5py closes a file on a full disk with a RuntimeError
            raise UserError(
                f"{self.path} cannot be written: {error}; check the folder's permissions and free space."
            ) from error


def any_of(values: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """bool [n]: rows that have a true value; `values` (bool) of all rows stand one behind the other."""
    owner = np.repeat(np.arange(len(lengths)), lengths)
    return np.bincount(owner[values], minlength=len(lengths)) > 0


def padded(samples: Samples, *, max_length: int, max_predictions: int) -> dict[str, np.ndarray]:
    """The zero-padded arrays of the published layouts: int32 [n, max_length] or [n, max_predictions], the weights
    float32, next_sentence_labels [n]."""
    real = np.arange(max_length) < samples.lengths[:, None]
    predicted = np.arange(max_predictions) < samples.masked_counts[:, None]
    arrays = {"input_mask": real.astype(np.int32), "masked_lm_weights": predicted.astype(np.float32)}
    for name, values, places in (
        ("input_ids", samples.input_ids, real),
        ("segment_ids", samples.segment_ids, real),
        ("masked_lm_positions", samples.masked_positions, predicted),
        ("masked_lm_ids", samples.masked_ids, predicted),
    ):
        arrays[name] = np.zeros(places.shape, dtype=np.int32)
        arrays[name][places] = values
    return arrays | {"next_sentence_labels": samples.next_sentence_labels}


def append_rows(dataset: h5py.Dataset, rows: np.ndarray) -> None:
    """Adds `rows` [n, ...] to a dataset that can grow."""
    start = len(dataset)
    dataset.resize(start + len(rows), axis=0)
    dataset[start:] = rows


def append_ragged(dataset: h5py.Dataset, values: np.ndarray, offsets: np.ndarray) -> None:
    """Adds rows `values[offsets[i]:offsets[i+1]]` to a dataset of variable-length rows that can grow.

    h5py's own assignment takes rows of equal length for a matrix and fails, so this is its lower level.
    """
    rows = np.empty(len(offsets) - 1, dtype=dataset.dtype)
    values = values.astype(h5py.check_vlen_dtype(dataset.dtype))
    ends = offsets.tolist()
    for i in range(len(rows)):
        rows[i] = values[ends[i] : ends[i + 1]]
    start = len(dataset)
    dataset.resize(start + len(rows), axis=0)
    place = dataset.id.get_space()
    place.select_hyperslab((start,), (len(rows),))
    dataset.id.write(h5py.h5s.create_simple((len(rows),)), place, rows, h5py.h5t.py_create(dataset.dtype))
