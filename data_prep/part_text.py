"""One part of prepared text (one sentence a line, empty lines between documents) to flat token ids on disk.

As the reference reads it: only a line feed ends a line, every carriage return is deleted, lines are stripped of white
space, and a line that is empty then ends a document. A line of text without tokens is skipped and ends nothing.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bert_mlperf.data.samples import offsets_of
from bert_mlperf.data_prep.native import FlatText, WordNumbers, gather
from bert_mlperf.data_prep.spill import Spill
from bert_mlperf.data_prep.words import Words
from bert_mlperf.errors import UserError

MOST_WORDS = 80  # of a line on average; sentences of Wikipedia have about 20
_BLOCK_BYTES = 1 << 20
_MOST_LINE_BYTES = 1 << 24
_MOST_DISTINCT_WORDS = 1 << 20
_RAW = b"<doc "


@dataclass(frozen=True)
class EncodedBlock:
    """Some lines of a text."""

    tokens: np.ndarray  # int32, of all lines
    line_tokens: np.ndarray  # int64 [lines], tokens of each
    is_blank: np.ndarray  # bool [lines], nothing but white space
    num_words: int


class BlockEncoder:
    """Token ids of blocks of lines. Words are remembered from block to block; that changes nothing but the time."""

    def __init__(self, words: Words) -> None:
        self._words = words
        self._forget(0)

    def encode(self, text: bytes) -> EncodedBlock:
        """The lines of `text` (UTF-8, without CR; what stands behind the last LF is a line, too)."""
        if not self._numbers.has_room_for(len(text)):
            self._forget(len(text))
        numbers, line_ends = self._numbers.number(text)
        self._look_up_new_words()
        token_ends = offsets_of(self._offsets[numbers + 1] - self._offsets[numbers])
        line_tokens = np.diff(token_ends[line_ends], prepend=0)
        return EncodedBlock(
            tokens=gather(self._ids, self._offsets, numbers),
            line_tokens=line_tokens,
            is_blank=_blank_lines(text, line_tokens),
            num_words=len(numbers),
        )

    def _forget(self, block_bytes: int) -> None:
        """Room for a block, all words forgotten."""
        max_bytes = max(_MOST_DISTINCT_WORDS * 8, block_bytes)
        self._numbers = WordNumbers(max_words=max(_MOST_DISTINCT_WORDS, block_bytes // 2 + 2), max_bytes=max_bytes)
        self._ids, self._offsets = np.empty(0, np.int32), np.zeros(1, np.int64)

    def _look_up_new_words(self) -> None:
        new = self._numbers.words_from(len(self._offsets) - 1)
        ids, counts = self._words.encode(word.decode() for word in new)
        self._ids = np.concatenate([self._ids, ids])
        self._offsets = np.concatenate([self._offsets, self._offsets[-1] + np.cumsum(counts)])


def _blank_lines(text: bytes, line_tokens: np.ndarray) -> np.ndarray:
    is_blank = line_tokens == 0
    without_tokens = np.flatnonzero(is_blank)
    if len(without_tokens):
        line_ends = np.flatnonzero(np.frombuffer(text, np.uint8) == ord("\n")).tolist()
        begins, ends = [0, *(end + 1 for end in line_ends)], [*line_ends, len(text)]
        for line in without_tokens.tolist():
            is_blank[line] = not text[begins[line] : ends[line]].decode().strip()
    return is_blank


def encode_text(
    path: Path,
    *,
    words: Words,
    tokens: Spill,
    allow_long_lines: bool = False,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> FlatText:
    """The documents of the text `path`; the token ids (int32) go to `tokens`, the offsets stay in memory. on_bytes(n)
    hears of n more bytes that were read.

    Raises UserError, naming the file, if it cannot be read, is not UTF-8 (with the byte offset), holds no token, or is
    not one sentence a line.
    """
    encoder = BlockEncoder(words)
    sentence_lengths: list[np.ndarray] = []
    document_ends = [np.zeros(1, np.int64)]
    num_sentences, num_lines, num_words = 0, 0, 0
    for text in read_blocks(path, on_bytes=on_bytes):
        block = encoder.encode(text)
        tokens.write(block.tokens)
        sentence_lengths.append(block.line_tokens[block.line_tokens > 0])
        document_ends.append(num_sentences + np.cumsum(block.line_tokens > 0)[block.is_blank])
        num_sentences += len(sentence_lengths[-1])
        num_lines += int(np.sum(~block.is_blank))
        num_words += block.num_words
    if not num_sentences:
        raise UserError(f"the text {path} holds no token; expected one sentence a line: give another file.")
    if num_words > MOST_WORDS * num_lines and not allow_long_lines:
        raise _paragraphs(path, num_words / num_lines)
    return FlatText(
        tokens=tokens.mapped(),
        sentence_offsets=offsets_of(np.concatenate(sentence_lengths)),
        document_offsets=np.unique(np.concatenate([*document_ends, [num_sentences]])),
    )


def read_blocks(path: Path, *, on_bytes: Callable[[int], None] = lambda _: None) -> Iterator[bytes]:
    """The text `path` in blocks of whole lines, without CR and without the LF that ends a block."""
    offset, rest = 0, b""
    try:
        with open(path, "rb") as file:
            while block := file.read(_BLOCK_BYTES):
                head, line_end, tail = block.rpartition(b"\n")
                if line_end:
                    yield _checked(rest + head, path, offset)
                    offset += len(rest) + len(head) + 1
                    rest = tail
                else:
                    rest += block
                    if len(rest) > _MOST_LINE_BYTES:
                        raise _endless_line(path, offset)
                on_bytes(len(block))
    except OSError as error:
        raise UserError(f"the text {path} cannot be read: {error.strerror}; give a UTF-8 text file.") from error
    if rest:
        yield _checked(rest, path, offset)


def _checked(block: bytes, path: Path, offset: int) -> bytes:
    try:
        block.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"the text {path} is not UTF-8: byte {offset + error.start:,} (from 0) is 0x{block[error.start]:02x} "
            f"({error.reason}), expected UTF-8 throughout; convert the file or prepare it again."
        ) from error
    raw = (b"\n" + block).find(b"\n" + _RAW)
    if raw >= 0:
        raise UserError(
            f'the text {path} is raw extractor output (at byte {offset + raw:,} a line begins with "{_RAW.decode()}"), '
            "expected one sentence a line; run prep clean and prep segment on it first."
        )
    return block.replace(b"\r", b"")


def _endless_line(path: Path, offset: int) -> UserError:
    return UserError(
        f"the line of the text {path} that begins at byte {offset:,} has more than {_MOST_LINE_BYTES:,} bytes, "
        "expected one sentence a line; run prep segment on it first."
    )


def _paragraphs(path: Path, mean: float) -> UserError:
    return UserError(
        f"the lines of the text {path} have {mean:.0f} words on average, expected sentences (at most {MOST_WORDS}): it "
        "looks like paragraphs; run prep segment on it first, or say --allow-long-lines if these are sentences."
    )
