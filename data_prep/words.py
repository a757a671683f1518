"""Words to token ids: the uncased BERT tokenizer as the published reference runs it, with a memory of words.

    clean     NUL, U+FFFD and characters of the categories Cc and Cf are dropped; tab, LF, CR and category Zs are spaces
    CJK       every ideograph becomes a word of its own
    fold      of each word: lower case, canonical decomposition (NFD), characters of the category Mn are dropped
    split     at punctuation (ASCII that is neither letter nor digit, and the categories P*), each character by itself
    pieces    greedy longest match from the left, pieces inside a word begin with "##"; a word of more than 200
              characters, or one that no pieces make up, is [UNK]

All of it works inside what stands between two spaces, so a line is cut at ASCII spaces and each distinct word is
looked at once. Categories, case and decompositions are those of Python's unicodedata, which the reference uses too.
"""

import unicodedata
from array import array
from collections.abc import Mapping
from itertools import chain

UNK = "[UNK]"
_LONGEST_WORD = 200  # characters that the reference looks at
_REMEMBERED_LENGTH = 40  # characters; longer words hardly ever come again
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


class Words(dict[str, bytes]):
    """Token ids (int32, as bytes) of words without ASCII spaces, worked out when a word is asked for.

    `ids` are those of a vocabulary. At most `remembered` words are kept; what comes out does not depend on it.
    """

    def __init__(self, ids: Mapping[str, int], *, remembered: int = 1 << 18) -> None:
        super().__init__()
        self._ids = ids
        self._remembered = remembered
        self._longest_piece = max(map(len, ids))
        self._clean, self._split = _Clean(), _Split()

    def encode(self, line: str) -> bytes:
        """Token ids of `line`, int32 as bytes; no [CLS] or [SEP] is added."""
        return b"".join(map(self.__getitem__, line.split(" ")))

    def __missing__(self, word: str) -> bytes:
        encoded = array("i", chain.from_iterable(map(self._pieces, self._basic_words(word)))).tobytes()
        if len(word) <= _REMEMBERED_LENGTH:
            if len(self) >= self._remembered:
                self.clear()
            self[word] = encoded
        return encoded

    def _basic_words(self, word: str) -> list[str]:
        if word.isascii() and word.isalnum():
            return [word.lower()]
        parts = word.translate(self._clean).split()
        return " ".join(unicodedata.normalize("NFD", part.lower()).translate(self._split) for part in parts).split()

    def _pieces(self, word: str) -> list[int]:
        ids, length = self._ids, len(word)
        if length > _LONGEST_WORD:
            return [ids[UNK]]
        found: list[int] = []
        start, prefix = 0, ""
        while start < length:
            for end in range(min(length, start + self._longest_piece), start, -1):
                piece = ids.get(prefix + word[start:end])
                if piece is not None:
                    break
            else:
                return [ids[UNK]]
            found.append(piece)
            start, prefix = end, "##"
        return found
