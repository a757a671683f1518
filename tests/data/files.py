"""Small random samples and files in the published layouts, for the tests of the data room."""

import struct
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np

from bert_mlperf.data.samples import Samples, offsets_of

CLS, SEP, MASK = 2, 3, 4
VOCAB_SIZE = 100
MAX_LENGTH = 512
PACKED_DTYPES = {
    "input_ids": "i2",
    "segment_ids": "i1",
    "masked_lm_positions": "i2",
    "masked_lm_ids": "i2",
    "next_sentence_labels": "i1",
    "packed_input_len": "i2",
    "packed_masked_lm_len": "i2",
}


def make_samples(lengths: list[int] | np.ndarray, *, seed: int = 0, vocab_size: int = VOCAB_SIZE) -> Samples:
    """Random samples of these lengths (at least 3): [CLS] ... [SEP], up to 15% masked but never the ends."""
    rng = np.random.default_rng(seed)
    offsets = offsets_of(np.asarray(lengths))
    ids = rng.integers(5, vocab_size, offsets[-1]).astype(np.uint16)
    ids[offsets[:-1]], ids[offsets[1:] - 1] = CLS, SEP
    masked = [np.sort(rng.permutation(np.arange(1, n - 1))[: max(1, int(0.15 * n))]) for n in lengths]
    counts = np.array([len(m) for m in masked])
    return Samples(
        input_ids=ids,
        segment_ids=(np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths) > 2).astype(np.uint8),
        offsets=offsets,
        masked_positions=np.concatenate(masked).astype(np.uint16),
        masked_ids=rng.integers(5, vocab_size, counts.sum()).astype(np.uint16),
        masked_offsets=offsets_of(counts),
        next_sentence_labels=rng.integers(0, 2, len(lengths)).astype(np.uint8),
    )


def assert_equal(actual: Samples, expected: Samples) -> None:
    for name in Samples.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(actual, name), getattr(expected, name), err_msg=name)


def padded(samples: Samples, *, length: int = 512, predictions: int = 76) -> dict[str, np.ndarray]:
    """The zero-padded arrays of the fixed-length layouts, with weights."""
    n = samples.num_samples
    arrays = {name: np.zeros((n, length), np.int64) for name in ("input_ids", "input_mask", "segment_ids")}
    arrays |= {name: np.zeros((n, predictions), np.int64) for name in ("masked_lm_positions", "masked_lm_ids")}
    arrays["masked_lm_weights"] = np.zeros((n, predictions), np.float32)
    arrays["next_sentence_labels"] = samples.next_sentence_labels.astype(np.int64)[:, None]
    for i in range(n):
        tokens = slice(samples.offsets[i], samples.offsets[i + 1])
        masked = slice(samples.masked_offsets[i], samples.masked_offsets[i + 1])
        arrays["input_ids"][i, : samples.lengths[i]] = samples.input_ids[tokens]
        arrays["input_mask"][i, : samples.lengths[i]] = 1
        arrays["segment_ids"][i, : samples.lengths[i]] = samples.segment_ids[tokens]
        arrays["masked_lm_positions"][i, : samples.masked_counts[i]] = samples.masked_positions[masked]
        arrays["masked_lm_ids"][i, : samples.masked_counts[i]] = samples.masked_ids[masked]
        arrays["masked_lm_weights"][i, : samples.masked_counts[i]] = 1.0
    return arrays


def write_fixed(path: Path, samples: Samples) -> None:
    dtypes = {"input_ids": "i2", "masked_lm_positions": "i2", "masked_lm_ids": "i2"}
    with h5py.File(path, "w") as file:
        for name, values in padded(samples).items():
            if name != "masked_lm_weights":
                stored = values[:, 0] if name == "next_sentence_labels" else values
                file.create_dataset(name, data=stored, dtype=dtypes.get(name, "i1"), compression="gzip")


def write_variable(path: Path, samples: Samples, *, lengths: np.ndarray | None = None) -> None:
    """`lengths` replaces the true lengths as the cut of each padded row, as a faulty converter would."""
    arrays = padded(samples)
    lengths = samples.lengths if lengths is None else lengths
    counts = samples.masked_counts
    columns = {"input_ids": ("i2", lengths), "segment_ids": ("i1", lengths)}
    columns |= {"masked_lm_positions": ("i2", counts), "masked_lm_ids": ("i2", counts)}
    with h5py.File(path, "w") as file:
        for name, (dtype, cuts) in columns.items():
            dataset = file.create_dataset(name, (samples.num_samples,), dtype=h5py.vlen_dtype(np.dtype(dtype)))
            for i, cut in enumerate(cuts):
                dataset[i] = arrays[name][i, :cut].astype(dtype)
        file.create_dataset("next_sentence_labels", data=samples.next_sentence_labels.astype("i1"))


def write_packed(path: Path, samples: Samples, *, max_tokens: int = 512) -> None:
    """Up to three samples in a row, in their order, value by value from the description of the layout."""
    rows: list[list[int]] = [[]]
    for i in range(samples.num_samples):
        if len(rows[-1]) == 3 or sum(samples.lengths[rows[-1]]) + samples.lengths[i] > max_tokens:
            rows.append([])
        rows[-1].append(i)
    columns: dict[str, list[list[int]]] = {name: [] for name in PACKED_DTYPES}
    for row in rows if samples.num_samples else []:
        values: dict[str, list[int]] = {name: [] for name in PACKED_DTYPES}
        for i in row:
            tokens = slice(samples.offsets[i], samples.offsets[i + 1])
            masked = slice(samples.masked_offsets[i], samples.masked_offsets[i + 1])
            before = len(values["input_ids"])
            values["input_ids"] += samples.input_ids[tokens].tolist()
            values["segment_ids"] += samples.segment_ids[tokens].tolist()
            values["masked_lm_positions"] += [p + before for p in samples.masked_positions[masked].tolist()]
            values["masked_lm_ids"] += samples.masked_ids[masked].tolist()
            values["next_sentence_labels"].append(int(samples.next_sentence_labels[i]))
            values["packed_input_len"].append(int(samples.lengths[i]))
            values["packed_masked_lm_len"].append(int(samples.masked_counts[i]))
        for name, column in columns.items():
            column.append(values[name])
    with h5py.File(path, "w") as file:
        for name, column in columns.items():
            dataset = file.create_dataset(name, (len(column),), dtype=h5py.vlen_dtype(np.dtype(PACKED_DTYPES[name])))
            for i, row in enumerate(column):
                dataset[i] = np.array(row, dtype=PACKED_DTYPES[name])


def crc32c(data: bytes) -> int:
    """Bit by bit, from the definition; the reader under test uses tables."""
    state = 0xFFFFFFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = (state >> 1) ^ (0x82F63B78 if state & 1 else 0)
    return state ^ 0xFFFFFFFF


def masked_crc(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    data = bytearray()
    while value >= 0x80:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*data, value])


def field(number: int, payload: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def encode_example(features: dict[str, np.ndarray], *, packed: bool = True) -> bytes:
    entries = b""
    for name, values in features.items():
        if values.dtype == np.float32:
            feature = field(
                2, field(1, values.tobytes()) if packed else b"".join(b"\x0d" + v.tobytes() for v in values)
            )
        elif packed:
            feature = field(3, field(1, b"".join(varint(int(v)) for v in values)))
        else:
            feature = field(3, b"".join(b"\x08" + varint(int(v)) for v in values))
        entries += field(1, field(1, name.encode()) + field(2, feature))
    return field(1, entries)


def write_tfrecord(path: Path, rows: list[dict[str, np.ndarray]], *, packed: bool = True) -> None:
    with open(path, "wb") as file:
        for row in rows:
            message = encode_example(row, packed=packed)
            length = struct.pack("<Q", len(message))
            file.write(length + masked_crc(length) + message + masked_crc(message))


def write_tfrecord_samples(path: Path, samples: Samples) -> None:
    arrays = padded(samples)
    write_tfrecord(path, [{name: values[i] for name, values in arrays.items()} for i in range(samples.num_samples)])


LAYOUT_WRITERS: dict[str, Callable[[Path, Samples], None]] = {
    "fixed-length HDF5": write_fixed,
    "variable-length HDF5": write_variable,
    "packed variable-length HDF5": write_packed,
    "TFRecord": write_tfrecord_samples,
}
