"""The published layouts with zero-padded rows: fixed-length HDF5 and TFRecord.

    fixed-length HDF5     input_ids, input_mask, segment_ids [n, 512], masked_lm_positions, masked_lm_ids [n, 76],
                          next_sentence_labels [n] or [n, 1]; no weights
    TFRecord              the same as int64 lists of tf.train.Example messages, and float masked_lm_weights [76]

input_mask may lack: then a sample ends with its last token id that is not 0. So may the weights, see fields.py.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bert_mlperf.data import tfrecord
from bert_mlperf.data.fields import OPTIONAL, REQUIRED, as_bytes, missing_field, narrow, open_table
from bert_mlperf.data.samples import Samples, offsets_of


def iter_fixed(path: Path, *, rows: int) -> Iterator[Samples]:
    """The samples of a fixed-length HDF5 file, `rows` at a time. UserError or ValueError if it is damaged."""
    for start, arrays in open_table(path, required=REQUIRED, optional=OPTIONAL).chunks(rows):
        yield from_padded(arrays, first_row=start)


def iter_tfrecord(path: Path, *, rows: int) -> Iterator[Samples]:
    """The samples of a TFRecord file, `rows` at a time. UserError or ValueError if it is damaged."""
    first = 0
    for messages in tfrecord.read_records(path, together=rows):
        examples = [_parse(message, number) for number, message in enumerate(messages, start=first)]
        yield from_padded(_stack(path, examples, first_record=first), first_row=first)
        first += len(messages)


def _parse(message: bytes, number: int) -> dict[str, tuple[int, bytes]]:
    try:
        return tfrecord.parse_example(message)
    except ValueError as error:
        raise ValueError(f"record {number}: {error}") from error


def _stack(path: Path, examples: list[dict[str, tuple[int, bytes]]], *, first_record: int) -> dict[str, np.ndarray]:
    """The features of examples as arrays [n, width]."""
    arrays = {}
    for name in (*REQUIRED, *OPTIONAL):
        having = [name in example for example in examples]
        if all(having):
            try:
                arrays[name] = _whole(name, tfrecord.stack_features([example[name] for example in examples]))
            except ValueError as error:
                raise ValueError(f"{name} of records {first_record} onwards: {error}") from error
        elif name in REQUIRED or any(having):
            record = having.index(False)
            where = Path(f"{path}: record {first_record + record}")
            raise missing_field(where, name, present=list(examples[record]), expected=REQUIRED)
    return arrays


def _whole(name: str, values: np.ndarray) -> np.ndarray:
    """`values` as they are. ValueError if they are fractions, which only weights may be."""
    if values.dtype.kind == "f" and name != "masked_lm_weights":
        raise ValueError("they are fractions, expected whole numbers")
    return values


def from_padded(arrays: dict[str, np.ndarray], *, first_row: int) -> Samples:
    """Samples from zero-padded arrays [n, width] by the names of the published fields.

    `first_row` is the number of row 0 in the file. Raises ValueError, naming the row, if a row has no tokens, a hole in
    its mask or a weight that is not 0 or 1, and if the arrays do not fit together.
    """
    ids, positions = arrays["input_ids"], arrays["masked_lm_positions"]
    _check_shapes(arrays)
    places = np.arange(ids.shape[1])
    if "input_mask" in arrays:
        real = arrays["input_mask"] != 0
        lengths = real.sum(axis=1, dtype=np.int64)
        wrong = (real != (places < lengths[:, None])).any(axis=1) | (lengths == 0)
        if wrong.any():
            raise ValueError(
                f"input_mask of row {first_row + int(np.argmax(wrong))} is not a run of ones followed by zeros"
            )
    else:
        lengths = ((ids != 0) * (places + 1)).max(axis=1, initial=0)
        if not lengths.all():
            raise ValueError(f"row {first_row + int(np.argmin(lengths))} has no token")
        real = places < lengths[:, None]
    predicted = _predicted(arrays["masked_lm_weights"], first_row) if "masked_lm_weights" in arrays else positions != 0
    return Samples(
        input_ids=narrow(ids[real], "input_ids"),
        segment_ids=as_bytes(arrays["segment_ids"][real], "segment_ids"),
        offsets=offsets_of(lengths),
        masked_positions=narrow(positions[predicted], "masked_lm_positions"),
        masked_ids=narrow(arrays["masked_lm_ids"][predicted], "masked_lm_ids"),
        masked_offsets=offsets_of(predicted.sum(axis=1, dtype=np.int64)),
        next_sentence_labels=as_bytes(arrays["next_sentence_labels"].reshape(len(ids)), "next_sentence_labels"),
    )


def _predicted(weights: np.ndarray, first_row: int) -> np.ndarray:
    """Where a prediction is real, bool like `weights`."""
    wrong = (weights != 0) & (weights != 1)  # NaN is neither
    if wrong.any():
        row = int(np.argmax(wrong.any(axis=1)))
        raise ValueError(
            f"a masked_lm_weights of row {first_row + row} is {weights[row][wrong[row]][0]}, expected 0 or 1"
        )
    return weights != 0


def _check_shapes(arrays: dict[str, np.ndarray]) -> None:
    for like, names in (
        ("input_ids", ("segment_ids", "input_mask")),
        ("masked_lm_positions", ("masked_lm_ids", "masked_lm_weights")),
    ):
        for name in names:
            if name in arrays and (arrays[name].ndim != 2 or arrays[name].shape != arrays[like].shape):
                raise ValueError(f"{like} {arrays[like].shape} and {name} {arrays[name].shape} do not fit together")
