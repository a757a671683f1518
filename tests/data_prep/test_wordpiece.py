import json
import os
from pathlib import Path

import pytest

from bert_mlperf.data_prep.wordpiece import (
    SPECIAL_TOKENS,
    Vocabulary,
    encode_documents,
    encode_lines,
    read_vocabulary,
    train_vocabulary,
    write_vocabulary,
)
from bert_mlperf.errors import UserError
from tests.data_prep.plain_text import read_documents

WORDS = "the quick un ##aff ##able fox cafe . , [ ] cls \u03c3 ##\u03c2 ##\u03bf \u6771 \u4eac ##s a ##a".split()


@pytest.fixture
def vocabulary() -> Vocabulary:
    tokens = (*SPECIAL_TOKENS, *WORDS)
    return Vocabulary(tokens, {token: i for i, token in enumerate(tokens)})


@pytest.mark.parametrize(
    ("line", "tokens"),
    [
        ("The QUICK, unaffable fox.", "the quick , un ##aff ##able fox ."),
        ("Caf\u00e9 CAFE\u0301", "cafe cafe"),
        ("\u6771\u4eaccafe", "\u6771 \u4eac cafe"),
        ("\u03a3\u039f\u03a3", "\u03c3 ##\u03bf ##\u03c2"),  # sigma at the end of a word
        ("[CLS]", "[ cls ]"),  # names of special tokens in the text are text
        ("fo\u200bx \x00\ufffd the\u00a0fox\tfox", "fox the fox fox"),
        ("dog foxs fox", "[UNK] fox ##s fox"),
        ("a" * 200 + " " + "a" * 201, "a" + " ##a" * 199 + " [UNK]"),
        ("", ""),
    ],
)
def test_tokens(vocabulary: Vocabulary, line: str, tokens: str) -> None:
    (ids,) = encode_lines([line], vocabulary)
    assert [vocabulary.tokens[i] for i in ids] == tokens.split()


def test_documents_without_tokens_are_left_out(vocabulary: Vocabulary) -> None:
    documents = [["the fox", "\u200b", "fox"], ["\u200b"], [], ["a"]]
    assert encode_documents(documents, vocabulary) == [encode_lines(["the fox", "fox"], vocabulary), [[ids_of("a")]]]


def ids_of(word: str) -> int:
    return len(SPECIAL_TOKENS) + WORDS.index(word)


def test_vocabulary_file_round_trip(tmp_path: Path, vocabulary: Vocabulary) -> None:
    path = tmp_path / "vocab.txt"
    write_vocabulary(path, vocabulary)
    assert read_vocabulary(path) == vocabulary
    assert path.read_bytes().startswith(b"[PAD]\n[UNK]\n")


def test_an_empty_last_line_is_a_token(tmp_path: Path, vocabulary: Vocabulary) -> None:
    """As in the reference, which may draw it as a random token."""
    path = tmp_path / "vocab.txt"
    path.write_text("".join(f"{token}\n" for token in vocabulary.tokens) + "\n")
    assert read_vocabulary(path).tokens == (*vocabulary.tokens, "")


def test_a_pipe_is_no_vocabulary(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "vocab.txt")
    with pytest.raises(UserError, match=f"the vocabulary {tmp_path / 'vocab.txt'} is no file"):
        read_vocabulary(tmp_path / "vocab.txt")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\nb\n", r"lacks \[PAD\] among its 2 lines"),
        ("\n".join(SPECIAL_TOKENS) + "\na\nb\na\n", "holds 'a' twice"),
        (None, "cannot be read"),
    ],
)
def test_bad_vocabulary(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "vocab.txt"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserError, match=f"the vocabulary {path} {message}"):
        read_vocabulary(path)


def test_trained_vocabulary() -> None:
    lines = ["The farmers ploughed fields", "the farmer ploughs the field", "Fields, farms."] * 3
    vocabulary = train_vocabulary(lines, max_size=200)
    assert vocabulary.tokens[:5] == SPECIAL_TOKENS
    assert {"the", "farmer", "field", ",", ".", "##s"} <= set(vocabulary.tokens)
    assert "##," not in vocabulary.ids and "F" not in vocabulary.ids
    assert all(0 not in ids and 1 not in ids for ids in encode_lines(lines, vocabulary))
    small = train_vocabulary(lines, max_size=50)
    assert small.size == 50 and small.tokens == vocabulary.tokens[:50]


def test_training_depends_on_the_text_alone() -> None:
    """Many ties (every word once): the trainer alone breaks them by the order of a randomly seeded hash map."""
    lines = [f"{a}{b}{c}" for a in "abcdefg" for b in "hijklm" for c in "nopqrst"]
    first = train_vocabulary(lines, max_size=120)
    for _ in range(4):
        assert train_vocabulary(lines, max_size=120) == first


@pytest.mark.reference
def test_reference_tokens_of_tricky_text(reference_dir: Path) -> None:
    """1,003 lines of accents, CJK, emoji, control characters, exotic spaces, long words and many scripts."""
    vocabulary = read_vocabulary(reference_dir / "data" / "wiki" / "vocab.txt")
    expected = json.loads((reference_dir / "golden" / "tricky" / "tricky_tokens.json").read_text())
    lines = expected["lines"]
    ids = encode_lines([line["stripped"] for line in lines], vocabulary)
    assert [line["ids"] for line in lines] == ids
    documents = read_documents((reference_dir / "golden" / "tricky" / "tricky.txt").read_bytes())
    expected_documents = [[lines[i]["ids"] for i in document] for document in expected["documents"]]
    assert encode_documents(documents, vocabulary) == expected_documents
