from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from bert_mlperf.data.samples import Samples, offsets_of
from bert_mlperf.data_prep.examples import Document, ExampleOptions, make_examples
from bert_mlperf.data_prep.wordpiece import SPECIAL_TOKENS, Vocabulary
from bert_mlperf.errors import UserError
from tests.data.files import assert_equal

CLS, SEP, MASK = 2, 3, 4
OPTIONS = ExampleOptions(max_seq_length=48, max_predictions=6, dupe_factor=3)


def make_vocabulary(size: int) -> Vocabulary:
    tokens = (*SPECIAL_TOKENS, *(str(i) for i in range(5, size)))
    return Vocabulary(tokens, {token: i for i, token in enumerate(tokens)})


@pytest.fixture
def documents() -> list[Document]:
    """30 documents in which every token of the whole text is another id, counting up from 5."""
    rng = np.random.default_rng(0)
    next_id = 5
    documents = []
    for _ in range(30):
        document = []
        for length in rng.integers(1, 15, rng.integers(1, 12)).tolist():
            document.append(list(range(next_id, next_id + length)))
            next_id += length
        documents.append(document)
    return documents


def rows(samples: Samples) -> list[dict[str, np.ndarray]]:
    """Each example with its original tokens, segments A and B, and what was masked."""
    found = []
    for i in range(samples.num_samples):
        row = samples.take(np.array([i]))
        original = row.input_ids.copy()
        original[row.masked_positions] = row.masked_ids
        a_end = int(np.argmax(row.segment_ids))
        found.append(
            {
                "original": original,
                "shown": row.input_ids,
                "positions": row.masked_positions,
                "a": original[1 : a_end - 1].astype(int),
                "b": original[a_end:-1].astype(int),
                "segments": row.segment_ids,
                "label": row.next_sentence_labels[0],
            }
        )
    return found


def test_examples_are_pairs_of_passages(documents: list[Document]) -> None:
    document_of = {token: i for i, document in enumerate(documents) for sentence in document for token in sentence}
    vocabulary = make_vocabulary(len(document_of) + 5)
    samples = make_examples(documents, vocabulary=vocabulary, options=OPTIONS)
    samples.validate(vocabulary.size, 48)
    for row in rows(samples):
        original, a, b = row["original"], row["a"], row["b"]
        assert [original[0], original[len(a) + 1], original[-1]] == [CLS, SEP, SEP]
        assert len(a) and len(b) and (np.diff(a) == 1).all() and (np.diff(b) == 1).all()
        assert row["segments"].tolist() == [0] * (len(a) + 2) + [1] * (len(b) + 1)
        if row["label"] == 0:  # B follows in the same document; tokens go missing between them only to fit in 48
            assert document_of[a[0]] == document_of[b[0]] and b[0] > a[-1]
            assert b[0] == a[-1] + 1 or len(original) == 48
        else:
            assert document_of[a[0]] != document_of[b[0]]
    labels = samples.next_sentence_labels
    assert 0.35 < labels.mean() < 0.75
    assert samples.lengths.max() == 48


def test_every_sentence_is_used_as_often_as_asked(documents: list[Document]) -> None:
    """Without shortening, each sentence stands in A, or in B of a real pair, once in each pass over the documents."""
    total = sum(len(sentence) for document in documents for sentence in document)
    options = replace(OPTIONS, max_seq_length=2000, max_predictions=1)
    samples = make_examples(documents, vocabulary=make_vocabulary(total + 5), options=options)
    counts = np.zeros(total + 5, dtype=int)
    for row in rows(samples):
        counts[row["a"]] += 1
        if row["label"] == 0:
            counts[row["b"]] += 1
    assert (counts[5:] == 3).all()


def test_masking(documents: list[Document]) -> None:
    vocabulary = make_vocabulary(5000)
    options = replace(OPTIONS, dupe_factor=40)
    samples = make_examples(documents, vocabulary=vocabulary, options=options)
    kinds = np.zeros(3)
    for row in rows(samples):
        positions = row["positions"].astype(int)
        assert (np.diff(positions) > 0).all()
        assert not np.isin(row["original"][positions], (CLS, SEP)).any()
        assert len(positions) == min(6, max(1, round(0.15 * len(row["original"]))))
        shown, true = row["shown"][positions], row["original"][positions]
        kinds += [np.sum(shown == MASK), np.sum(shown == true), np.sum((shown != MASK) & (shown != true))]
    shares = kinds / kinds.sum()
    assert np.abs(shares - [0.8, 0.1, 0.1]).max() < 4 * np.sqrt(0.16 / kinds.sum())


def test_seed_decides(documents: list[Document]) -> None:
    vocabulary = make_vocabulary(5000)
    before = [[list(sentence) for sentence in document] for document in documents]
    first = make_examples(documents, vocabulary=vocabulary, options=OPTIONS)
    assert_equal(make_examples(documents, vocabulary=vocabulary, options=OPTIONS), first)
    other = make_examples(documents, vocabulary=vocabulary, options=replace(OPTIONS, seed=1))
    assert not np.array_equal(other.lengths, first.lengths)
    assert documents == before


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_seq_length", 4),
        ("max_seq_length", (1 << 16) + 1),
        ("max_predictions", 0),
        ("dupe_factor", 0),
        ("masked_lm_prob", float("nan")),
        ("short_seq_prob", 1.1),
    ],
)
def test_options_out_of_range(name: str, value: float) -> None:
    with pytest.raises(UserError, match=f"{name} is {value}, expected"):
        replace(OPTIONS, **{name: value})


def test_no_document() -> None:
    with pytest.raises(UserError, match="the text holds no document"):
        make_examples([], vocabulary=make_vocabulary(5000), options=OPTIONS)


def test_one_document_of_one_token() -> None:
    samples = make_examples([[[7]]], vocabulary=make_vocabulary(20), options=replace(OPTIONS, dupe_factor=1))
    (row,) = rows(samples)
    assert row["original"].tolist() == [CLS, 7, SEP, 7, SEP] and row["label"] == 1 and len(row["positions"]) == 1


def test_reference_examples_of_tricky_documents() -> None:
    """All 194 examples that the published reference makes of 21 odd documents (one token, over 512 tokens, ...)."""
    golden = np.load(Path(__file__).parent / "examples_tricky.npz")
    cut = [int(end) for end in offsets_of(golden["sentence_lengths"])]
    sentences = [golden["sentence_ids"][first:end].tolist() for first, end in pairwise(cut)]
    ends = offsets_of(golden["document_lengths"]).tolist()
    documents = [sentences[first:end] for first, end in pairwise(ends)]
    vocabulary = Vocabulary(("",) * 30522, {"[CLS]": 101, "[SEP]": 102, "[MASK]": 103})
    samples = make_examples(documents, vocabulary=vocabulary, options=ExampleOptions(dupe_factor=2))
    np.testing.assert_array_equal(samples.lengths, golden["lengths"])
    np.testing.assert_array_equal(samples.input_ids, golden["input_ids"])
    first_segment = samples.lengths - [
        segments.sum() for segments in np.split(samples.segment_ids, samples.offsets[1:-1])
    ]
    np.testing.assert_array_equal(first_segment, golden["segment_a_length"])
    np.testing.assert_array_equal(samples.masked_counts, golden["masked_counts"])
    np.testing.assert_array_equal(samples.masked_positions, golden["masked_lm_positions"])
    np.testing.assert_array_equal(samples.masked_ids, golden["masked_lm_ids"])
    np.testing.assert_array_equal(samples.next_sentence_labels, golden["next_sentence_labels"])
