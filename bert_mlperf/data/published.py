"""The three published layouts of BERT pre-training data, read as they are, whole into memory.

    fixed-length HDF5     input_ids, input_mask, segment_ids [n, 512], masked_lm_positions, masked_lm_ids [n, 76], all
                          zero-padded, next_sentence_labels [n] or [n, 1]; no weights
    variable-length HDF5  the same names without input_mask; rows without padding, next_sentence_labels [n]
    TFRecord              tf.train.Example with the fixed-length arrays as int64 lists and float masked_lm_weights

A padded prediction has position 0, where [CLS] stands; so without weights a prediction is real where its position is
not 0, and with weights where its weight is not 0 (then even [CLS] or token id 0 may be predicted).
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from bert_mlperf.data import tfrecord
from bert_mlperf.data.samples import Samples, concatenate, offsets_of
from bert_mlperf.data.shard_file import LAYOUT
from bert_mlperf.errors import UserError

FIXED = "fixed-length HDF5"
VARIABLE = "variable-length HDF5"
TFRECORD = "TFRecord"
_NAMES = ("input_ids", "segment_ids", "masked_lm_positions", "masked_lm_ids", "next_sentence_labels")
_TOGETHER = 1024  # TFRecord examples that are converted together


def detect_layout(path: Path) -> str:
    """LAYOUT, FIXED, VARIABLE or TFRECORD by the content of the file; UserError if it is none of them or unreadable."""
    try:
        if h5py.is_hdf5(path):
            with h5py.File(path, "r", locking=False) as file:
                return _detect_hdf5(path, file)
        if tfrecord.is_tfrecord(path):
            return TFRECORD
        with open(path, "rb") as raw:
            head = raw.read(16)
    except OSError as error:
        raise _damaged(path, error) from error
    raise UserError(
        f"{path} begins with {head!r}: it is neither HDF5 nor TFRecord; remove it from the data folder, or copy "
        "it again if it should be a shard."
    )


def read_published(path: Path, layout: str) -> Samples:
    """All samples of a file of a published `layout`. Raises UserError, naming the file, if it is damaged."""
    readers: dict[str, Callable[[Path], Samples]] = {
        FIXED: _read_fixed,
        VARIABLE: _read_variable,
        TFRECORD: _read_tfrecord,
    }
    try:
        samples = readers[layout](path)
    except UserError:
        raise
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise _damaged(path, error) from error
    if not samples.num_samples:
        raise UserError(f"{path} holds no samples; remove it from the folder or make it anew.")
    samples.check_structure(where=str(path))
    return samples


def _detect_hdf5(path: Path, file: h5py.File) -> str:
    if "format" in file.attrs:
        return LAYOUT
    if "packed_input_len" in file:
        raise UserError(
            f"{path} holds packed samples (several in a row), which are not read; give the unpacked "
            "variable-length set."
        )
    if all(name in file for name in _NAMES):
        ids = file["input_ids"]
        if ids.ndim == 2 and "input_mask" in file:
            return FIXED
        if ids.ndim == 1 and h5py.check_vlen_dtype(ids.dtype):
            return VARIABLE
    content = ", ".join(f"{name} {getattr(item, 'shape', '')}" for name, item in list(file.items())[:6]) or "nothing"
    raise UserError(
        f"{path} is HDF5 of an unknown layout (it holds {content}); expected our own shards, or the published ones "
        f"with {', '.join(_NAMES)}: remove it or convert it."
    )


def _read_fixed(path: Path) -> Samples:
    with h5py.File(path, "r", locking=False) as file:
        arrays = {name: file[name][:] for name in (*_NAMES, "input_mask")}
        if "masked_lm_weights" in file:
            arrays["masked_lm_weights"] = file["masked_lm_weights"][:]
    return _from_padded(path, arrays, first_row=0)


def _from_padded(path: Path, arrays: dict[str, np.ndarray], *, first_row: int) -> Samples:
    """Samples from zero-padded arrays [n, width]; `first_row` is the number of row 0 in the file, for messages."""
    ids, mask, positions = arrays["input_ids"], arrays["input_mask"], arrays["masked_lm_positions"]
    if not (
        ids.shape == mask.shape == arrays["segment_ids"].shape and positions.shape == arrays["masked_lm_ids"].shape
    ):
        raise ValueError(f"input_ids {ids.shape} and input_mask {mask.shape} or the predictions do not fit together")
    real = mask != 0
    lengths = real.sum(axis=1, dtype=np.int64)
    if not np.array_equal(real, np.arange(ids.shape[1]) < lengths[:, None]) or not lengths.all():
        row = int(np.argmax((real != (np.arange(ids.shape[1]) < lengths[:, None])).any(axis=1) | (lengths == 0)))
        raise ValueError(f"input_mask of row {first_row + row} is not a run of ones followed by zeros")
    predicted = arrays["masked_lm_weights"] != 0 if "masked_lm_weights" in arrays else positions != 0
    return Samples(
        input_ids=ids[real],
        segment_ids=arrays["segment_ids"][real].astype(np.uint8),
        offsets=offsets_of(lengths),
        masked_positions=positions[predicted],
        masked_ids=arrays["masked_lm_ids"][predicted],
        masked_offsets=offsets_of(predicted.sum(axis=1, dtype=np.int64)),
        next_sentence_labels=arrays["next_sentence_labels"].reshape(len(ids)).astype(np.uint8),
    )


def _read_variable(path: Path) -> Samples:
    with h5py.File(path, "r", locking=False) as file:
        rows = {name: file[name][:] for name in _NAMES}
    lengths = _row_lengths(rows["input_ids"])
    counts = _row_lengths(rows["masked_lm_positions"])
    ids, positions = _joined(rows["input_ids"]), _joined(rows["masked_lm_positions"])
    damaged = (
        (lengths == 0)
        | (lengths != _row_lengths(rows["segment_ids"]))
        | (counts != _row_lengths(rows["masked_lm_ids"]))
    )
    offsets = offsets_of(lengths)
    if not damaged.any():
        damaged = _wrong_ends(ids, offsets)
        behind_end = positions >= np.repeat(lengths, counts)
        damaged[np.repeat(np.arange(len(counts)), counts)[behind_end]] = True
    if damaged.any():
        row = int(np.argmax(damaged))
        raise UserError(
            f"{path}: {int(damaged.sum())} of {len(lengths)} rows are damaged (the first is row {row} of "
            f"{lengths[row]} tokens): they are empty, cut or padded, as the published converter leaves them under "
            "numpy 2 or newer, where its int8 sum of the mask overflows; convert the files again with numpy 1."
        )
    real = positions != 0
    owner = np.repeat(np.arange(len(counts)), counts)[real]
    return Samples(
        input_ids=ids,
        segment_ids=_joined(rows["segment_ids"]).astype(np.uint8),
        offsets=offsets,
        masked_positions=positions[real],
        masked_ids=_joined(rows["masked_lm_ids"])[real],
        masked_offsets=offsets_of(np.bincount(owner, minlength=len(counts))),
        next_sentence_labels=rows["next_sentence_labels"].reshape(len(lengths)).astype(np.uint8),
    )


def _wrong_ends(ids: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """bool [n]: rows that do not end in the separator. Every whole row does, as it is never masked; its id is the one
    that most rows end in."""
    ends = ids[offsets[1:] - 1]
    values, counts = np.unique(ends, return_counts=True)
    separator = values[np.argmax(np.where(values == 0, 0, counts))]
    return (ends == 0) | (ends != separator)


def _row_lengths(rows: np.ndarray) -> np.ndarray:
    return np.fromiter((len(row) for row in rows), dtype=np.int64, count=len(rows))


def _joined(rows: np.ndarray) -> np.ndarray[Any, Any]:
    return np.concatenate(list(rows)) if len(rows) else np.zeros(0, dtype=np.int16)


def _read_tfrecord(path: Path) -> Samples:
    parts: list[Samples] = []
    examples: list[dict[str, np.ndarray]] = []
    done = 0
    for message in tfrecord.read_records(path):
        examples.append(tfrecord.parse_example(message))
        if len(examples) == _TOGETHER:
            parts.append(_from_examples(path, examples, first_row=done))
            done += len(examples)
            examples = []
    if examples:
        parts.append(_from_examples(path, examples, first_row=done))
    return concatenate(parts)


def _from_examples(path: Path, examples: list[dict[str, np.ndarray]], *, first_row: int) -> Samples:
    names = (*_NAMES, "input_mask", "masked_lm_weights")
    missing = [name for name in names if any(name not in example for example in examples)]
    if missing:
        raise UserError(
            f"{path}: the examples have no {missing[0]}; expected the features {', '.join(names)}: the file is of "
            "another task, remove it."
        )
    stacked = {name: np.stack([example[name] for example in examples]) for name in names}
    for name, values in stacked.items():
        if values.dtype == np.int64:
            if values.size and (values.min() < 0 or values.max() >= 1 << 31):
                raise ValueError(f"{name} holds {values.min()} to {values.max()}")
            stacked[name] = values.astype(np.int32)
    return _from_padded(path, stacked, first_row=first_row)


def _damaged(path: Path, reason: object) -> UserError:
    return UserError(f"{path} is truncated or damaged ({reason}); copy it again or make it anew.")
