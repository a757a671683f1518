"""Words to token ids: the uncased BERT tokenizer as the published reference runs it.

    clean     NUL, U+FFFD and characters of the categories Cc and Cf are dropped; tab, LF, CR and category Zs are spaces
    CJK       every ideograph becomes a word of its own
    fold      of each word: lower case, canonical decomposition (NFD), characters of the category Mn are dropped
    split     at punctuation (ASCII that is neither letter nor digit, and the categories P*), each character by itself
    pieces    greedy longest match from the left, pieces inside a word begin with "##"; a word of more than 200
              characters, or one that no pieces make up, is [UNK]

All of it works inside what stands between two ASCII spaces, so each distinct word has to be looked at only once.
Categories, case and decompositions are those of Python's unicodedata, which the reference uses too.
"""

import unicodedata
from array import array
from collections.abc import Mapping
from functools import lru_cache

UNK = "[UNK]"
_LONGEST_WORD = 200  # characters that the reference looks at
_CJK = (
    range(0x4E00, 0xA000),
    range(0x3400, 0x4DC0),
    range(0x20000, 0x2A6E0),
    range(0x2A700, 0x2B740),
    range(0x2B740, 0x2B820),
    range(0x2B820, 0x2CEB0),
    range(0xF900, 0xFB00),
    range(0x2F800, 0x2FA20),
)


class _Clean(dict[int, str | None]):
    """A table for `str.translate` that fills itself: the steps "clean" and "CJK"."""

    def __missing__(self, code: int) -> str | None:
        character, category = chr(code), unicodedata.category(chr(code))
        if character in " \t\n\r" or category == "Zs":
            mapped: str | None = " "
        elif code in (0, 0xFFFD) or category in ("Cc", "Cf"):
            mapped = None
        else:
            mapped = f" {character} " if any(code in block for block in _CJK) else character
        self[code] = mapped
        return mapped


class _Split(dict[int, str | None]):
    """A table for `str.translate` that fills itself: drops accents and sets punctuation apart."""

    def __missing__(self, code: int) -> str | None:
        character, category = chr(code), unicodedata.category(chr(code))
        if category == "Mn":
            mapped = None
        elif category[0] == "P" or (33 <= code <= 126 and not character.isalnum()):
            mapped = f" {character} "
        else:
            mapped = character
        self[code] = mapped
        return mapped


class Words:
    """Token ids of words for a vocabulary, given as token to id."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        self._ids = ids
        self._longest_piece = max(map(len, ids))
        self._clean, self._split = _Clean(), _Split()
        self._remembered_pieces = lru_cache(maxsize=1 << 17)(self._pieces)
        self._remembered = lru_cache(maxsize=1 << 16)(self.encode_word)

    def encode(self, line: str) -> bytes:
        """Token ids of `line`, int32 as bytes; no [CLS] or [SEP] is added."""
        return b"".join(map(self._remembered, line.split(" ")))

    def encode_word(self, word: str) -> bytes:
        """Token ids of what stands between two ASCII spaces, int32 as bytes."""
        if word.isascii() and word.isalnum():
            return self._remembered_pieces(word.lower())
        parts = (unicodedata.normalize("NFD", part.lower()) for part in word.translate(self._clean).split())
        return b"".join(map(self._remembered_pieces, " ".join(parts).translate(self._split).split()))

    def _pieces(self, word: str) -> bytes:
        """Token ids of a word without accents and punctuation, or of one punctuation character."""
        ids, length = self._ids, len(word)
        whole = ids.get(word)
        if whole is not None and length <= _LONGEST_WORD:
            return array("i", (whole,)).tobytes()
        found = array("i")
        start, prefix = 0, ""
        while start < length <= _LONGEST_WORD:
            for end in range(min(length, start + self._longest_piece), start, -1):
                piece = ids.get(prefix + word[start:end])
                if piece is not None:
                    break
            else:
                break
            found.append(piece)
            start, prefix = end, "##"
        return found.tobytes() if start == length else array("i", (ids[UNK],)).tobytes()
