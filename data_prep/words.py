"""Words to token ids: the uncased BERT tokenizer as the published reference runs it.

    clean     NUL, U+FFFD and characters of the categories Cc and Cf are dropped; tab, LF, CR and category Zs are spaces
    CJK       every ideograph becomes a word of its own
    fold      of each word: lower case, canonical decomposition (NFD), characters of the category Mn are dropped
    split     at punctuation (ASCII that is neither letter nor digit, and the categories P*), each character by itself
    pieces    greedy longest match from the left, pieces inside a word begin with "##"; a word of more than 200
              characters, or one that no pieces make up, is [UNK]

The first four steps (`basic_words`) follow Python's unicodedata, as the reference does; the package `tokenizers` treats
138,283 code points in another way (release 0.23, Python 3.11: those of private use, and what its older tables do
not know). It finds the pieces. All of this works inside what stands between two ASCII spaces, so each distinct word has
to be looked at only once.
"""

import unicodedata
from collections.abc import Iterable, Mapping

import numpy as np
from tokenizers import Tokenizer, models

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


_CLEAN, _SPLIT = _Clean(), _Split()


class Words:
    """Token ids of words for a vocabulary, given as token to id."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        self._pieces = Tokenizer(models.WordPiece(dict(ids), unk_token=UNK, max_input_chars_per_word=_LONGEST_WORD))

    def encode(self, words: Iterable[str]) -> tuple[np.ndarray, np.ndarray]:
        """Token ids of all `words` (what stands between two ASCII spaces), int32 [tokens], and how many of them each
        word has, int64 [words]; no [CLS] or [SEP] is added."""
        basic = [basic_words(word) for word in words]
        flat = [part for parts in basic for part in parts]
        if not flat:
            return np.empty(0, np.int32), np.zeros(len(basic), np.int64)
        encoding = self._pieces.encode(flat, is_pretokenized=True, add_special_tokens=False)
        word_of_part = np.repeat(np.arange(len(basic)), [len(parts) for parts in basic])
        counts = np.bincount(word_of_part[np.array(encoding.word_ids, np.int64)], minlength=len(basic))
        return np.array(encoding.ids, np.int32), counts


def basic_words(word: str) -> list[str]:
    """What stands between two ASCII spaces after the steps "clean" to "split"."""
    if word.isascii() and word.isalnum():
        return [word.lower()]
    parts = (unicodedata.normalize("NFD", part.lower()) for part in word.translate(_CLEAN).split())
    return " ".join(parts).translate(_SPLIT).split()
