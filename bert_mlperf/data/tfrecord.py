"""TFRecord files of tf.train.Example messages, read without TensorFlow.

A record is its length (uint64), a checksum of the length, the message and a checksum of the message, all little-endian.
The checksum is CRC-32C (Castagnoli), rotated right by 15 bits plus a constant ("masked"). An Example is

    Example  { features: 1 }   Features { feature: 1 (map entries) }   entry { key: 1, value: 2 }
    Feature  { bytes_list: 1 | float_list: 2 | int64_list: 3 }         list { value: 1, packed or repeated }

in the protocol-buffer wire format: a tag (field number * 8 + wire type), then a varint (type 0), 8 bytes (1), a length
and that many bytes (2), or 4 bytes (5).
"""

import os
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from bert_mlperf.errors import UserError

_POLYNOMIAL = 0x82F63B78  # Castagnoli, reflected
_MASK_DELTA = 0xA282EAD8
_FRAME = struct.Struct("<QI")
_LEAST = 4  # bytes of a message; an Example with any feature is longer
FLOAT, INT64 = 2, 3  # field numbers of the lists in a Feature


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
_BYTE_TABLE = _TABLES[0].tolist()


def masked_crc32c(messages: Sequence[bytes]) -> np.ndarray:
    """Masked CRC-32C of each message (at least _LEAST bytes each), uint32 [len(messages)].

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
    return ((state >> 15) | (state << 17)) + np.uint32(_MASK_DELTA)


def is_tfrecord(path: Path) -> bool:
    """Whether the file begins with a record length and its checksum."""
    with open(path, "rb") as file:
        head = file.read(_FRAME.size)
    return len(head) == _FRAME.size and _checked_length(head) is not None


def read_records(path: Path, *, together: int) -> Iterator[list[bytes]]:
    """The messages of the file in order, up to `together` at a time, checksums verified; only these are in memory.

    Raises UserError, naming file and record, if it is truncated or damaged.
    """
    number = 0
    with open(path, "rb") as file:
        while block := _read_block(path, file, first=number, count=together):
            messages = [message for message, _ in block]
            wrong = masked_crc32c(messages) != np.array([checksum for _, checksum in block], dtype=np.uint32)
            if wrong.any():
                raise _damaged(path, number + int(np.argmax(wrong)), "its checksum is wrong")
            yield messages
            number += len(messages)


def count_records(path: Path) -> int:
    """Number of records, by their lengths. Raises UserError if the file is truncated or a length is damaged."""
    count = 0
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        while (length := _read_length(path, file, number=count, size=size)) is not None:
            file.seek(length + 4, os.SEEK_CUR)
            count += 1
    return count


def _read_block(path: Path, file: BinaryIO, *, first: int, count: int) -> list[tuple[bytes, int]]:
    """Up to `count` records from the position of `file` on: message and stored checksum."""
    size = os.fstat(file.fileno()).st_size
    block: list[tuple[bytes, int]] = []
    while len(block) < count:
        length = _read_length(path, file, number=first + len(block), size=size)
        if length is None:
            break
        block.append((file.read(length), int.from_bytes(file.read(4), "little")))
    return block


def _read_length(path: Path, file: BinaryIO, *, number: int, size: int) -> int | None:
    """Bytes of the message of the record that begins here; None at the end of the file, which has `size` bytes."""
    frame = file.read(_FRAME.size)
    if not frame:
        return None
    if len(frame) < _FRAME.size:
        raise _damaged(path, number, f"the file ends at byte {size:,}, inside the record's length")
    length = _checked_length(frame)
    if length is None:
        raise _damaged(path, number, "the checksum of its length is wrong")
    end = file.tell() + length + 4
    if length < _LEAST:
        raise _damaged(path, number, f"it has {length} bytes, expected at least {_LEAST}")
    if end > size:
        raise _damaged(path, number, f"it should end at byte {end:,}, the file has {size:,}")
    return length


def _checked_length(frame: bytes) -> int | None:
    """The length that a frame holds; None if its checksum is wrong. One at a time, as the next place depends on it."""
    state = 0xFFFFFFFF
    for byte in frame[:8]:
        state = _BYTE_TABLE[(state ^ byte) & 0xFF] ^ state >> 8
    state ^= 0xFFFFFFFF
    length, checksum = _FRAME.unpack(frame)
    return length if ((state >> 15 | state << 17) + _MASK_DELTA) & 0xFFFFFFFF == checksum else None


def parse_example(message: bytes) -> dict[str, tuple[int, bytes]]:
    """Features of a tf.train.Example by name: INT64 or FLOAT and the bytes of the values; ValueError if malformed."""
    features = {}
    for entries in _numbered(message, 1):
        for entry in _numbered(entries, 1):
            parts = dict(_fields(entry))
            if 1 not in parts or 2 not in parts:
                raise ValueError("a feature without name or value")
            for kind, values in _fields(parts[2]):
                if kind in (INT64, FLOAT):  # packed, or one field per value
                    features[parts[1].decode()] = kind, b"".join(_numbered(values, 1))
    return features


def stack_features(features: Sequence[tuple[int, bytes]]) -> np.ndarray:
    """The values of one feature of n examples (see `parse_example`), int64 or float32 [n, values].

    Raises ValueError if they are malformed or the examples differ in kind or number of values.
    """
    kinds = {kind for kind, _ in features}
    data = b"".join(payload for _, payload in features)
    ends = np.cumsum([len(payload) for _, payload in features])
    if kinds == {FLOAT}:
        values, counts = np.frombuffer(data, "<f4"), np.diff(ends, prepend=0) / 4
    elif kinds == {INT64}:
        values = varints(data)
        raw = np.frombuffer(data, np.uint8)
        counts = np.diff(np.searchsorted(np.flatnonzero(raw < 0x80), ends), prepend=0)
        if (raw[ends[ends > 0] - 1] >= 0x80).any():
            raise ValueError("an integer without end")
    else:
        raise ValueError("whole numbers and fractions are mixed")
    if (counts != counts[0]).any():
        at = int(np.argmax(counts != counts[0]))
        raise ValueError(f"the first holds {counts[0]:g} values, the one {at} behind it {counts[at]:g}")
    return values.reshape(len(features), -1)


def _damaged(path: Path, number: int, reason: str) -> UserError:
    return UserError(
        f"{path}: record {number} is truncated or damaged ({reason}); copy the file again or make it anew."
    )


def varints(data: bytes) -> np.ndarray:
    """All base-128 varints of `data`, int64: 7 bits a byte, lowest first, the top bit set on all bytes but the last."""
    raw = np.frombuffer(data, np.uint8)
    last = np.flatnonzero(raw < 0x80)
    if len(last) == len(raw):
        return raw.astype(np.int64)
    if not len(last) or last[-1] != len(raw) - 1:
        raise ValueError("an integer without end")
    sizes = np.diff(last, prepend=-1)
    if sizes.max() > 10:
        raise ValueError("an integer of more than ten bytes")
    values = (raw[last] & 0x7F).astype(np.uint64) << (7 * (sizes - 1)).astype(np.uint64)
    for behind in range(1, int(sizes.max())):  # the byte that lies so many before the last
        some = np.flatnonzero(sizes > behind)
        bits = (raw[last[some] - behind] & 0x7F).astype(np.uint64)
        values[some] |= bits << (7 * (sizes[some] - 1 - behind)).astype(np.uint64)
    return values.view(np.int64)


def _numbered(message: bytes, number: int) -> list[bytes]:
    """The payloads of the fields `number`."""
    return [payload for found, payload in _fields(message) if found == number]


def _fields(message: bytes) -> list[tuple[int, bytes]]:
    """(field number, payload) of each field; a varint's payload is its own bytes. ValueError if malformed."""
    fields, offset = [], 0
    while offset < len(message):
        tag, offset = _varint(message, offset)
        start = offset
        if tag & 7 == 2:
            length, start = _varint(message, offset)
            end = start + length
        elif tag & 7 == 0:
            _, end = _varint(message, offset)
        elif tag & 7 in (1, 5):
            end = start + (8 if tag & 7 == 1 else 4)
        else:
            raise ValueError(f"wire type {tag & 7}")
        if end > len(message):
            raise ValueError("a field behind the end of the message")
        fields.append((tag >> 3, message[start:end]))
        offset = end
    return fields


def _varint(message: bytes, offset: int) -> tuple[int, int]:
    """The varint at `offset` and the offset behind it."""
    if offset < len(message) and message[offset] < 0x80:
        return message[offset], offset + 1
    value, shift = 0, 0
    for byte in message[offset : offset + 10]:
        value |= (byte & 0x7F) << shift
        offset, shift = offset + 1, shift + 7
        if byte < 0x80:
            return value, offset
    raise ValueError("an integer without end")
