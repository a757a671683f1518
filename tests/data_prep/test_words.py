"""The tokenizer against one written straight from the description of the reference's, for every code point."""

import itertools
import sys
import unicodedata
from collections.abc import Iterator
from functools import lru_cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_mlperf.data_prep.words import Words, basic_words

CJK_BLOCKS = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)
SURROGATES = range(0xD800, 0xE000)
ODD = (
    "a",
    "\u03a3",  # capital sigma: lower case depends on what stands around it
    "\u0130",  # its lower case is two characters
    "\u00df",
    "\u01c5",
    "\u02b0",  # modifier letter, ignored when the place of a sigma is judged
    "\u0345",  # a mark that is a letter in upper case
    "\u0301",
    "\u0903",
    "\u20dd",
    "\u00e9",
    "\uac01",  # decomposes to three letters
    "\u00b7",
    "'",
    "^",
    "_",
    "\u2019",
    "\u20ac",
    "\u4e00",
    "\U0002f800",  # an ideograph that decomposes to another
    "\x00",
    "\x01",
    "\t",
    "\r",
    "\x1c",
    "\x85",
    "\u00a0",
    "\u00ad",
    "\u200b",
    "\u2028",
    "\u2029",
    "\u3000",
    "\ufeff",
    "\ufffd",
    "\ue000",
    "\u0378",  # not assigned
)


@lru_cache(maxsize=1 << 12)
def is_ideograph(code: int) -> bool:
    return any(first <= code <= last for first, last in CJK_BLOCKS)


def is_dropped(character: str) -> bool:
    if character in "\t\n\r":
        return False
    return character in "\x00\ufffd" or unicodedata.category(character) in ("Cc", "Cf")


def is_punctuation(character: str) -> bool:
    code = ord(character)
    in_ascii = 33 <= code <= 47 or 58 <= code <= 64 or 91 <= code <= 96 or 123 <= code <= 126
    return in_ascii or unicodedata.category(character)[0] == "P"


def reference_words(text: str) -> Iterator[str]:
    cleaned = []
    for character in text:
        if is_dropped(character):
            continue
        if character in " \t\n\r" or unicodedata.category(character) == "Zs":
            cleaned.append(" ")
        elif character >= "\u3400" and is_ideograph(ord(character)):
            cleaned.append(f" {character} ")
        else:
            cleaned.append(character)
    for word in "".join(cleaned).split():
        folded = unicodedata.normalize("NFD", word.lower())
        split = [f" {c} " if is_punctuation(c) else c for c in folded if unicodedata.category(c) != "Mn"]
        yield from "".join(split).split()


def reference_ids(text: str, vocabulary: dict[str, int]) -> list[int]:
    """Greedy longest match, word by word."""
    found: list[int] = []
    for word in reference_words(text):
        pieces: list[int] = []
        start = 0
        while start < len(word) <= 200:
            prefix = "##" if start else ""
            end = next((end for end in range(len(word), start, -1) if prefix + word[start:end] in vocabulary), None)
            if end is None:
                break
            pieces.append(vocabulary[prefix + word[start:end]])
            start = end
        found += pieces if start == len(word) else [vocabulary["[UNK]"]]
    return found


def words_of(text: str) -> list[str]:
    return [part for word in text.split(" ") for part in basic_words(word)]


def ids_of(vocabulary: dict[str, int], text: str) -> list[int]:
    return Words(vocabulary).encode(text.split(" "))[0].tolist()


def test_every_code_point() -> None:
    for code in range(sys.maxunicode + 1):
        if code not in SURROGATES:
            assert words_of(chr(code)) == list(reference_words(chr(code))), hex(code)


@pytest.mark.parametrize("context", ["{}", "a{}", "{}a", "a{}b", "a {} b", "A\u03a3{}", "{}\u03a3a"])
def test_characters_in_context(context: str) -> None:
    """All of the categories that are treated specially, some of the others."""
    plain = {"Lo", "Cn", "Co"}
    for code in itertools.chain(range(0x3000), range(0x3000, sys.maxunicode + 1, 7)):
        if code not in SURROGATES and (unicodedata.category(chr(code)) not in plain or code % 97 == 0):
            text = context.format(chr(code))
            assert words_of(text) == list(reference_words(text)), hex(code)


@pytest.mark.parametrize("first", ODD)
def test_odd_characters_together(first: str) -> None:
    for second, third in itertools.product(ODD, ODD):
        for text in (first + second + third, f"b{first}{second}{third}c"):
            assert words_of(text) == list(reference_words(text)), ascii(text)


def test_a_control_character_beside_a_sigma() -> None:
    """It is dropped before the word is put in lower case, so the sigma behind it is still the last letter."""
    assert words_of("A\u03a3\x01") == words_of("A\x01\u03a3") == ["a\u03c2"]
    assert words_of("A\u03a3\u200bA") == ["a\u03c3a"]


@pytest.mark.parametrize(
    "text",
    [
        "unaffable",
        "un aff",
        "unx",
        "affx unaff",
        "u" * 200,
        "u" * 201,
        "U" * 199 + "\u0301\u0301",
        "\U0001d49e" * 200,  # characters are counted, not bytes or UTF-16 units
        "\U0001d49e" * 201,
        "aff" * 66 + "aff",
        "",
    ],
)
def test_longest_pieces_first(text: str) -> None:
    tokens = ["[UNK]", "un", "u", "##u", "##aff", "##a", "##f", "##able", "aff", "unaffa", "##ble", "##x", "un" * 101]
    vocabulary = {token: i for i, token in enumerate([*tokens, "\U0001d49e", "##\U0001d49e"])}
    assert ids_of(vocabulary, text) == reference_ids(text, vocabulary)


PIECES = st.text("ab\u00e9c\u0301", min_size=1, max_size=3)


@given(
    heads=st.lists(PIECES, unique=True),
    tails=st.lists(PIECES, unique=True),
    text=st.text("aAb\u00e9\u00c9c\u0301 ,\t\u4e00", max_size=40),
)
def test_any_vocabulary(heads: list[str], tails: list[str], text: str) -> None:
    tokens = ["[UNK]", ",", *heads, *(f"##{tail}" for tail in tails)]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    assert ids_of(vocabulary, text) == reference_ids(text, vocabulary)


def test_special_tokens_and_pieces_in_the_text_are_text() -> None:
    tokens = ["[UNK]", "[MASK]", "[", "]", "mask", "#", "##s", "s"]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    assert [tokens[i] for i in ids_of(vocabulary, "[MASK] ##s")] == ["[", "mask", "]", "#", "#", "s"]


def test_tokens_of_each_word_are_counted() -> None:
    vocabulary = {token: i for i, token in enumerate(["[UNK]", "a", "##b", ","])}
    ids, counts = Words(vocabulary).encode(["ab,", "", "\u200b", "a", "x"])
    assert (ids.tolist(), counts.tolist()) == ([1, 2, 3, 1, 0], [3, 0, 0, 1, 1])
    assert [part.tolist() for part in Words(vocabulary).encode(["", "\x00"])] == [[], [0, 0]]
    assert [part.tolist() for part in Words(vocabulary).encode([])] == [[], []]
