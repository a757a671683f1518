"""WordPiece vocabularies (read, written, learned) and the token ids of small texts; words.py holds the tokenizer."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from bert_mlperf.data_prep.words import UNK, Words
from bert_mlperf.errors import UserError

PAD, CLS, SEP, MASK = "[PAD]", "[CLS]", "[SEP]", "[MASK]"
SPECIAL_TOKENS = (PAD, UNK, CLS, SEP, MASK)


@dataclass(frozen=True)
class Vocabulary:
    """A WordPiece vocabulary: line i of its file is the token with id i."""

    tokens: tuple[str, ...]
    ids: dict[str, int]

    @property
    def size(self) -> int:
        return len(self.tokens)


def read_vocabulary(path: str | Path) -> Vocabulary:
    """The vocabulary file `path` (UTF-8, one token a line). UserError if it is missing, lacks a special token or holds
    a token twice."""
    path = Path(path)
    if path.exists() and not path.is_file():
        raise UserError(
            f"the vocabulary {path} is no file, expected one token a line; give the vocab.txt of a BERT model."
        )
    try:
        tokens = tuple(line.strip() for line in path.read_text(encoding="utf-8").removesuffix("\n").split("\n"))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"the vocabulary {path} cannot be read: {error}; give a UTF-8 file with one token a line."
        ) from error
    ids = {token: i for i, token in enumerate(tokens)}
    missing = [token for token in SPECIAL_TOKENS if token not in ids]
    if missing:
        raise UserError(
            f"the vocabulary {path} lacks {missing[0]} among its {len(tokens):,} lines, expected "
            f"{', '.join(SPECIAL_TOKENS)}; give the vocab.txt of a BERT model."
        )
    if len(ids) != len(tokens):
        twice = next(token for i, token in enumerate(tokens) if ids[token] != i)
        raise UserError(
            f"the vocabulary {path} holds {twice!r} twice; every token stands on one line: repair the file."
        )
    return Vocabulary(tokens, ids)


def write_vocabulary(path: str | Path, vocabulary: Vocabulary) -> None:
    Path(path).write_text("".join(f"{token}\n" for token in vocabulary.tokens), encoding="utf-8", newline="\n")


def train_vocabulary(lines: Sequence[str], *, max_size: int) -> Vocabulary:
    """A WordPiece vocabulary of at most `max_size` tokens learned from `lines`: the five special tokens, the characters
    inside words ("##a"), those at their begin ("a"), then longer pieces, the most frequent merge first.

    A pure function of the text: the trainer alone would number the characters inside words in the order of a randomly
    seeded hash map and break ties by that, so they are given to it in sorted order.
    """
    tokenizer = _untrained()
    words = {word for line in lines for word in line.lower().split()}
    pieces = [piece for word in words for piece, _ in _split(tokenizer, word)]
    inner = sorted({f"##{character}" for piece in pieces for character in piece[1:]})
    trainer = trainers.WordPieceTrainer(
        vocab_size=max_size, min_frequency=1, special_tokens=[*SPECIAL_TOKENS, *inner], show_progress=False
    )
    tokenizer.train_from_iterator((line.lower() for line in lines), trainer)
    ids = tokenizer.get_vocab()
    tokens = tuple(sorted(ids, key=lambda token: ids[token]))
    return Vocabulary(tokens, {token: i for i, token in enumerate(tokens)})


def _split(tokenizer: Tokenizer, word: str) -> list[tuple[str, tuple[int, int]]]:
    """`word` normalised and split at punctuation."""
    return tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalizer.normalize_str(word))


def encode_lines(lines: Sequence[str], vocabulary: Vocabulary) -> list[list[int]]:
    """Token ids of each line (no [CLS] or [SEP] added); a line may have none."""
    words = [line.split(" ") for line in lines]
    numbers = {word: number for number, word in enumerate(dict.fromkeys(word for line in words for word in line))}
    ids, counts = Words(vocabulary.ids).encode(numbers)
    ids_of = [part.tolist() for part in np.split(ids, np.cumsum(counts)[:-1])]
    return [[token for word in line for token in ids_of[numbers[word]]] for line in words]


def encode_documents(documents: Sequence[Sequence[str]], vocabulary: Vocabulary) -> list[list[list[int]]]:
    """Token ids of documents of sentences; sentences without tokens and documents without sentences are left out."""
    encoded = iter(encode_lines([sentence for document in documents for sentence in document], vocabulary))
    with_empty = [[next(encoded) for _ in document] for document in documents]
    without_empty = [[sentence for sentence in document if sentence] for document in with_empty]
    return [document for document in without_empty if document]


def _untrained() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token=UNK))
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=True, lowercase=False
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer
