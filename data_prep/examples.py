"""Masked examples for pre-training from documents, as the published reference makes them.

Every document is cut into chunks of about the target length (max_seq_length - 3 tokens; for a share short_seq_prob of
the documents a random shorter one). A chunk is cut into segments A and B; in about half of the examples B is replaced
by a passage of another document ("random next"). The pair is shortened to fit, [CLS] A [SEP] B [SEP] is masked, and
this is done dupe_factor times over all documents with fresh random numbers; at the end the examples are shuffled.

The examples equal the reference's one by one, because random numbers are drawn from Python's Mersenne Twister in the
same order: every call of `rng` below counts, also those whose result looks unused. This is the readable version, for
small texts; part_examples.py makes the same examples of a large one with examples.c.
"""

import random
from dataclasses import dataclass

import numpy as np

from bert_mlperf.data.samples import Samples, offsets_of
from bert_mlperf.data_prep.wordpiece import CLS, MASK, SEP, Vocabulary
from bert_mlperf.errors import UserError

Document = list[list[int]]  # sentences of token ids, none empty
_TRIES_FOR_ANOTHER_DOCUMENT = 10
_LONGEST_EXAMPLE = 1 << 16  # tokens; positions in an example are 16 bits wide


@dataclass(frozen=True)
class ExampleOptions:
    """How examples are made; the defaults are those of MLPerf. UserError if one of them is out of range."""

    max_seq_length: int = 512  # tokens of an example at most, [CLS] and both [SEP] included
    max_predictions: int = 76  # masked tokens of an example at most
    masked_lm_prob: float = 0.15  # masked tokens as a share of all tokens
    short_seq_prob: float = 0.1  # share of chunk sequences that are made shorter on purpose
    dupe_factor: int = 10  # times that every document is used
    seed: int = 12345

    def __post_init__(self) -> None:
        for name, lowest, highest in (
            ("max_seq_length", 5, _LONGEST_EXAMPLE),
            ("max_predictions", 1, _LONGEST_EXAMPLE),
            ("dupe_factor", 1, 1000),
            ("masked_lm_prob", 0.0, 1.0),
            ("short_seq_prob", 0.0, 1.0),
        ):
            value = getattr(self, name)
            if not lowest <= value <= highest:  # nor is NaN
                raise UserError(f"{name} is {value}, expected {lowest:,} to {highest:,}; give another {name}.")


@dataclass
class _Rows:
    """The examples so far, as growing ragged columns."""

    input_ids: list[np.ndarray]
    segment_a_lengths: list[int]
    masked_positions: list[list[int]]
    masked_ids: list[list[int]]
    next_sentence_labels: list[int]


def make_examples(documents: list[Document], *, vocabulary: Vocabulary, options: ExampleOptions) -> Samples:
    """The examples of `documents` (sentences of token ids, see `wordpiece.encode_documents`) in their final order.

    Raises UserError if there is no document.
    """
    if not documents:
        raise UserError("the text holds no document with a token; expected one sentence a line: give another file.")
    rng = random.Random(options.seed)
    documents = list(documents)
    rng.shuffle(documents)
    rows = _Rows([], [], [], [], [])
    for _ in range(options.dupe_factor):
        for index in range(len(documents)):
            _add_document(rows, documents, index, vocabulary, options, rng)
    order = list(range(len(rows.input_ids)))
    rng.shuffle(order)
    return _as_samples(rows, vocabulary).take(np.array(order))


def _add_document(
    rows: _Rows,
    documents: list[Document],
    index: int,
    vocabulary: Vocabulary,
    options: ExampleOptions,
    rng: random.Random,
) -> None:
    """Adds the examples that begin in document `index`."""
    document = documents[index]
    room = options.max_seq_length - 3
    target = room
    if rng.random() < options.short_seq_prob:
        target = rng.randint(2, room)
    first, end, length = 0, 0, 0
    while end < len(document):
        length += len(document[end])
        end += 1
        if end < len(document) and length < target:
            continue
        a_end = first + (rng.randint(1, end - first - 1) if end - first >= 2 else 1)
        tokens_a = _joined(document[first:a_end])
        is_random = end - first == 1 or rng.random() < 0.5
        if is_random:
            tokens_b = _random_passage(documents, index, target - len(tokens_a), rng)
            end = a_end  # the sentences that were meant for B begin the next chunk
        else:
            tokens_b = _joined(document[a_end:end])
        tokens_a, tokens_b = _shortened(tokens_a, tokens_b, room, rng)
        _add_masked(rows, tokens_a, tokens_b, is_random, vocabulary, options, rng)
        first, length = end, 0


def _random_passage(documents: list[Document], index: int, length: int, rng: random.Random) -> list[int]:
    """Sentences from a random place of a document that is (almost surely) not `index`, until they have `length` tokens
    or the document ends."""
    for _ in range(_TRIES_FOR_ANOTHER_DOCUMENT):
        other = rng.randint(0, len(documents) - 1)
        if other != index:
            break
    document = documents[other]
    start = rng.randint(0, len(document) - 1)
    tokens: list[int] = []
    for sentence in document[start:]:
        tokens.extend(sentence)
        if len(tokens) >= length:
            break
    return tokens


def _shortened(a: list[int], b: list[int], room: int, rng: random.Random) -> tuple[list[int], list[int]]:
    """Takes tokens off the longer of the two (B if they are equal), at a random end, until both fit into `room`."""
    a_start, a_end, b_start, b_end = 0, len(a), 0, len(b)
    for _ in range(len(a) + len(b) - room):
        at_front = rng.random() < 0.5
        if a_end - a_start > b_end - b_start:
            a_start, a_end = a_start + at_front, a_end - (not at_front)
        else:
            b_start, b_end = b_start + at_front, b_end - (not at_front)
    return a[a_start:a_end], b[b_start:b_end]


def _add_masked(
    rows: _Rows,
    tokens_a: list[int],
    tokens_b: list[int],
    is_random: bool,
    vocabulary: Vocabulary,
    options: ExampleOptions,
    rng: random.Random,
) -> None:
    """Masks [CLS] A [SEP] B [SEP]: of the chosen tokens 80% become [MASK], 10% stay, 10% become a random token."""
    cls, sep, mask = vocabulary.ids[CLS], vocabulary.ids[SEP], vocabulary.ids[MASK]
    tokens = [cls, *tokens_a, sep, *tokens_b, sep]
    candidates = [i for i, token in enumerate(tokens) if token not in (cls, sep)]
    rng.shuffle(candidates)
    count = min(options.max_predictions, max(1, round(len(tokens) * options.masked_lm_prob)))
    masked = list(tokens)
    chosen = candidates[:count]
    for position in chosen:
        if rng.random() < 0.8:
            masked[position] = mask
        elif rng.random() >= 0.5:
            masked[position] = rng.randint(0, vocabulary.size - 1)
    chosen.sort()
    rows.input_ids.append(np.array(masked, dtype=np.int32))
    rows.segment_a_lengths.append(len(tokens_a) + 2)
    rows.masked_positions.append(chosen)
    rows.masked_ids.append([tokens[i] for i in chosen])
    rows.next_sentence_labels.append(int(is_random))


def _joined(sentences: list[list[int]]) -> list[int]:
    return [token for sentence in sentences for token in sentence]


def _as_samples(rows: _Rows, vocabulary: Vocabulary) -> Samples:
    lengths = np.array([len(ids) for ids in rows.input_ids])
    offsets = offsets_of(lengths)
    positions = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
    id_type = np.uint16 if vocabulary.size <= 1 << 16 else np.int32
    return Samples(
        input_ids=np.concatenate(rows.input_ids).astype(id_type),
        segment_ids=(positions >= np.repeat(rows.segment_a_lengths, lengths)).astype(np.uint8),
        offsets=offsets,
        masked_positions=np.array(_joined(rows.masked_positions), dtype=np.int32),
        masked_ids=np.array(_joined(rows.masked_ids), dtype=id_type),
        masked_offsets=offsets_of(np.array([len(positions) for positions in rows.masked_positions])),
        next_sentence_labels=np.array(rows.next_sentence_labels, dtype=np.uint8),
    )
