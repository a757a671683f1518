"""tf.train.Example messages and TFRecord frames, many at a time; the format is described in data/tfrecord.py.

Features stand in the order of their names, so equal samples have equal bytes (TensorFlow's own order varies).
"""

from functools import cache

import numpy as np

from bert_mlperf.data.tfrecord import FLOAT, INT64, masked_crc32c

_BITS = 7  # of a value in each byte of a varint


def frames(messages: list[bytes]) -> bytes:
    """The records of `messages` (at least one) as they lie in a file."""
    lengths = [len(message).to_bytes(8, "little") for message in messages]
    length_checksums = masked_crc32c(lengths).astype("<u4")
    checksums = masked_crc32c(messages).astype("<u4")
    parts = []
    for i, message in enumerate(messages):
        parts += [lengths[i], length_checksums[i].tobytes(), message, checksums[i].tobytes()]
    return b"".join(parts)


def example_messages(features: dict[str, np.ndarray]) -> list[bytes]:
    """n Example messages of `features` by name: integers (>= 0) or float32, each [n, values]."""
    names = sorted(features)
    kinds = [FLOAT if features[name].dtype.kind == "f" else INT64 for name in names]
    columns = [_payloads(features[name]) for name in names]
    messages = []
    for payloads in zip(*columns, strict=True):
        parts = []
        for name, kind, payload in zip(names, kinds, payloads, strict=True):
            parts += [_entry_head(name, kind, len(payload)), payload]
        entries = b"".join(parts)
        messages.append(_head(1, len(entries)) + entries)
    return messages


@cache
def _entry_head(name: str, kind: int, length: int) -> bytes:
    """All that stands before the packed values of a feature, `length` bytes, in a message."""
    key = _head(1, len(name)) + name.encode()
    packed = _head(1, length)
    values = _head(kind, len(packed) + length) + packed
    feature = _head(2, len(values) + length) + values
    return _head(1, len(key) + len(feature) + length) + key + feature


def _head(number: int, length: int) -> bytes:
    """Tag and length of a field of `length` bytes."""
    head = bytearray([number << 3 | 2])
    while length >= 0x80:
        head.append(length & 0x7F | 0x80)
        length >>= _BITS
    return bytes([*head, length])


def _payloads(values: np.ndarray) -> list[bytes]:
    """The packed values of each row of `values` [n, width]."""
    if values.dtype.kind == "f":
        data, sizes = values.astype("<f4").tobytes(), np.full(len(values), 4 * values.shape[1])
    else:
        data, sizes = _varints(values)
    ends = np.cumsum(sizes).tolist()
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def _varints(values: np.ndarray) -> tuple[bytes, np.ndarray]:
    """The varints of all `values` [n, width], and how many bytes each row takes."""
    flat = values.astype(np.uint32).ravel()
    largest = int(flat.max(initial=0))
    if largest < 1 << _BITS:
        return flat.astype(np.uint8).tobytes(), np.full(len(values), values.shape[1])
    sizes = np.ones(len(flat), dtype=np.uint8)
    for shift in range(_BITS, largest.bit_length(), _BITS):
        sizes += flat >= 1 << shift
    ends = np.cumsum(sizes, dtype=np.int64)
    starts = ends - sizes
    data = np.empty(int(ends[-1]), dtype=np.uint8)
    data[starts] = (flat & 0x7F) | np.where(sizes > 1, np.uint8(0x80), np.uint8(0))
    for place in range(1, int(sizes.max())):
        some = np.flatnonzero(sizes > place)
        more = np.where(sizes[some] > place + 1, np.uint8(0x80), np.uint8(0))
        data[starts[some] + place] = ((flat[some] >> (_BITS * place)) & 0x7F) | more
    return data.tobytes(), sizes.reshape(values.shape).sum(axis=1, dtype=np.int64)
