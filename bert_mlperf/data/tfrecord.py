"""TFRecord files of tf.train.Example messages, read without TensorFlow.

A record is its length (uint64), a checksum of the length, the message and a checksum of the message, all little-endian.
The checksum is CRC-32C (Castagnoli), rotated right by 15 bits plus a constant ("masked"). An Example is

    Example  { features: 1 }   Features { feature: 1 (map entries) }   entry { key: 1, value: 2 }
    Feature  { bytes_list: 1 | float_list: 2 | int64_list: 3 }         list { value: 1, packed or repeated }

in the protocol-buffer wire format: a tag (field number * 8 + wire type), then a varint (type 0), 8 bytes (1), a length
and that many bytes (2), or 4 bytes (5).
"""

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from bert_mlperf.errors import UserError

_POLYNOMIAL = 0x82F63B78  # Castagnoli, reflected
_FRAME = struct.Struct("<QI")
_CHECKED_AT_ONCE = 1024  # records


def _make_tables() -> np.ndarray:
    """uint32 [4, 256]: row k is the checksum state of a byte with k zero bytes behind it."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = (table >> np.uint32(1)) ^ np.where(table & np.uint32(1), np.uint32(_POLYNOMIAL), np.uint32(0))
    tables = [table]
    for _ in range(3):
        tables.append((tables[-1] >> np.uint32(8)) ^ table[tables[-1] & np.uint32(0xFF)])
    return np.stack(tables)


_TABLES = _make_tables()


def masked_crc32c(messages: Sequence[bytes]) -> np.ndarray:
    """Masked CRC-32C of each message (at least 4 bytes each), uint32 [len(messages)].

    The messages are right-aligned in one matrix: leading zeros do not change a checksum that starts from 0, and the
    prescribed start 0xFFFFFFFF equals inverting the first four bytes. So all messages advance together, 4 bytes a time.
    """
    width = -(-max(len(message) for message in messages) // 4) * 4
    matrix = np.zeros((len(messages), width), dtype=np.uint8)
    for row, message in zip(matrix, messages, strict=True):
        row[width - len(message) :] = np.frombuffer(message, np.uint8)
        row[width - len(message) : width - len(message) + 4] ^= 0xFF
    state = np.zeros(len(messages), dtype=np.uint32)
    for word in np.ascontiguousarray(matrix.view("<u4").T):
        state = state ^ word
        state = (
            _TABLES[3][state & 0xFF]
            ^ _TABLES[2][(state >> 8) & 0xFF]
            ^ _TABLES[1][(state >> 16) & 0xFF]
            ^ _TABLES[0][state >> 24]
        )
    state = ~state
    return ((state >> 15) | (state << 17)) + np.uint32(0xA282EAD8)


def is_tfrecord(path: Path) -> bool:
    """Whether the file begins with a record length and its checksum."""
    with open(path, "rb") as file:
        head = file.read(_FRAME.size)
    return len(head) == _FRAME.size and masked_crc32c([head[:8]])[0] == _FRAME.unpack(head)[1]


def read_records(path: Path) -> Iterator[bytes]:
    """The messages of the file in order, checksums verified. Raises UserError if it is truncated or damaged."""
    content = path.read_bytes()
    offset, number = 0, 0
    while offset < len(content):
        lengths: list[bytes] = []
        messages: list[bytes] = []
        checksums: list[tuple[int, int]] = []
        while offset < len(content) and len(messages) < _CHECKED_AT_ONCE:
            end_of_frame = offset + _FRAME.size
            length, length_checksum = _FRAME.unpack(content[offset:end_of_frame].ljust(_FRAME.size, b"\0"))
            end = end_of_frame + length + 4
            if end > len(content) or length < 4:
                raise _damaged(
                    path, number + len(messages), f"it should end at byte {end:,}, the file has {len(content):,}"
                )
            lengths.append(content[offset : offset + 8])
            messages.append(content[end_of_frame : end - 4])
            checksums.append((length_checksum, int.from_bytes(content[end - 4 : end], "little")))
            offset = end
        actual = np.stack([masked_crc32c(lengths), masked_crc32c(messages)], axis=1)
        wrong = (actual != np.array(checksums, dtype=np.uint32)).any(axis=1)
        if wrong.any():
            raise _damaged(path, number + int(np.argmax(wrong)), "its checksum is wrong")
        number += len(messages)
        yield from messages


def parse_example(message: bytes) -> dict[str, np.ndarray]:
    """Int64 and float features of a tf.train.Example by name (int64 or float32 [values]); ValueError if malformed."""
    features = {}
    for _, entries in _fields(message, wanted=1):
        for _, entry in _fields(entries, wanted=1):
            parts = dict(_fields(entry))
            if 1 not in parts or 2 not in parts:
                raise ValueError("a feature without name or value")
            for kind, values in _fields(parts[2]):
                if kind == 3:
                    features[parts[1].decode()] = _int64_list(values)
                elif kind == 2:
                    features[parts[1].decode()] = np.frombuffer(b"".join(v for _, v in _fields(values)), "<f4")
    return features


def _damaged(path: Path, number: int, reason: str) -> UserError:
    return UserError(
        f"{path}: record {number} is truncated or damaged ({reason}); copy the file again or make it anew."
    )


def _int64_list(message: bytes) -> np.ndarray:
    """Values of an Int64List: packed varints, or one field per value."""
    return varints(b"".join(payload for _, payload in _fields(message)))


def varints(data: bytes) -> np.ndarray:
    """All base-128 varints of `data`, int64: 7 bits a byte, lowest first, the top bit set on all bytes but the last."""
    raw = np.frombuffer(data, np.uint8)
    last = np.flatnonzero(raw < 0x80)
    if not len(raw):
        return np.zeros(0, dtype=np.int64)
    if not len(last) or last[-1] != len(raw) - 1:
        raise ValueError("an integer without end")
    first = np.concatenate([[0], last[:-1] + 1])
    if (last - first).max() > 9:
        raise ValueError("an integer of more than ten bytes")
    place = np.arange(len(raw)) - np.repeat(first, last - first + 1)
    values = (raw & 0x7F).astype(np.uint64) << (7 * place).astype(np.uint64)
    return np.bitwise_or.reduceat(values, first).view(np.int64)


def _fields(message: bytes, *, wanted: int | None = None) -> Iterator[tuple[int, bytes]]:
    """(field number, payload) of each field; a varint's payload is its own bytes. ValueError if malformed."""
    offset = 0
    while offset < len(message):
        tag, offset = _varint(message, offset)
        start = offset
        if tag & 7 == 0:
            _, end = _varint(message, offset)
        elif tag & 7 == 2:
            length, start = _varint(message, offset)
            end = start + length
        elif tag & 7 in (1, 5):
            end = start + (8 if tag & 7 == 1 else 4)
        else:
            raise ValueError(f"wire type {tag & 7}")
        if end > len(message):
            raise ValueError("a field behind the end of the message")
        if wanted is None or tag >> 3 == wanted:
            yield tag >> 3, message[start:end]
        offset = end


def _varint(message: bytes, offset: int) -> tuple[int, int]:
    """The varint at `offset` and the offset behind it."""
    value, shift = 0, 0
    while True:
        if offset >= len(message) or shift > 63:
            raise ValueError("an integer without end")
        byte = message[offset]
        value |= (byte & 0x7F) << shift
        offset, shift = offset + 1, shift + 7
        if byte < 0x80:
            return value, offset
