"""The compiled example maker against the readable one, against the published reference, and in flat memory."""

import ctypes
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_mlperf.data.samples import Samples, offsets_of
from bert_mlperf.data.shard_file import map_samples, read_header
from bert_mlperf.data_prep import bench, evaluation, examples_command, native, part_examples
from bert_mlperf.data_prep.evaluation import eval_examples, picked
from bert_mlperf.data_prep.examples import ExampleOptions, make_examples
from bert_mlperf.data_prep.fingerprint import fingerprint
from bert_mlperf.data_prep.native import ExampleMaker, FlatExamples, FlatText, Gatherer
from bert_mlperf.data_prep.part_examples import count_examples, write_part_examples
from bert_mlperf.data_prep.stage import run_stage
from bert_mlperf.data_prep.wordpiece import (
    CLS,
    SEP,
    SPECIAL_TOKENS,
    Vocabulary,
    encode_documents,
    read_vocabulary,
    write_vocabulary,
)
from bert_mlperf.errors import UserError
from tests.data.files import assert_equal
from tests.data.test_published import reference_samples
from tests.data_prep.plain_text import make_vocabulary, odd_text, read_documents

SENTENCES = st.lists(st.integers(5, 40), min_size=1, max_size=12)
DOCUMENTS = st.lists(st.lists(SENTENCES, min_size=1, max_size=8), min_size=1, max_size=8)
OPTIONS = st.builds(
    ExampleOptions,
    max_seq_length=st.integers(5, 60),
    max_predictions=st.integers(1, 20),
    masked_lm_prob=st.sampled_from([0.0, 0.15, 0.5, 1.0]),
    short_seq_prob=st.sampled_from([0.0, 0.1, 1.0]),
    dupe_factor=st.integers(1, 3),
    seed=st.integers(0, 1 << 40),
)


def numbered_vocabulary(size: int) -> Vocabulary:
    tokens = (*SPECIAL_TOKENS, *(str(i) for i in range(5, size)))
    return Vocabulary(tokens, {token: i for i, token in enumerate(tokens)})


def flat_text(documents: Sequence[Sequence[Sequence[int]]]) -> FlatText:
    sentences = [sentence for document in documents for sentence in document]
    return FlatText(
        tokens=np.concatenate([np.array(sentence, np.int32) for sentence in sentences]),
        sentence_offsets=offsets_of(np.array([len(sentence) for sentence in sentences])),
        document_offsets=offsets_of(np.array([len(document) for document in documents])),
    )


def compiled_examples(
    documents: Sequence[Sequence[Sequence[int]]], vocabulary: Vocabulary, options: ExampleOptions
) -> Samples:
    maker = ExampleMaker(flat_text(documents), vocabulary=vocabulary, options=options)
    blocks = [{name: getattr(block, name).copy() for name in FlatExamples.__dataclass_fields__} for block in maker]
    made = FlatExamples(**{name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]})
    return Gatherer(made).take(maker.final_order(made.num_examples))


@settings(max_examples=300)
@given(documents=DOCUMENTS, options=OPTIONS, vocab_size=st.sampled_from([41, 70_000]))
def test_compiled_equals_readable(documents: list[list[list[int]]], options: ExampleOptions, vocab_size: int) -> None:
    vocabulary = numbered_vocabulary(vocab_size)
    made = compiled_examples(documents, vocabulary, options)
    assert made.input_ids.dtype == (np.uint16 if vocab_size < 65_537 else np.int32)
    assert_equal(made, make_examples(documents, vocabulary=vocabulary, options=options))


@given(documents=DOCUMENTS, options=OPTIONS)
def test_properties_of_examples(documents: list[list[list[int]]], options: ExampleOptions) -> None:
    vocabulary = numbered_vocabulary(41)
    made = compiled_examples(documents, vocabulary, options)
    made.validate(41, options.max_seq_length)  # offsets, lengths, masked positions inside the sample
    cls, sep = vocabulary.ids[CLS], vocabulary.ids[SEP]
    for i in range(made.num_samples):
        row = made.take(np.array([i]))
        original = row.input_ids.copy()
        original[row.masked_positions] = row.masked_ids
        ends = np.flatnonzero(original == sep)
        assert original[0] == cls and len(ends) == 2 and ends[1] == len(original) - 1 and np.sum(original == cls) == 1
        np.testing.assert_array_equal(row.segment_ids, np.arange(len(original)) > ends[0])
        assert not np.isin(row.masked_ids, (cls, sep)).any() and (np.diff(row.masked_positions.astype(int)) > 0).all()
        count = min(options.max_predictions, max(1, round(len(original) * options.masked_lm_prob)), len(original) - 3)
        assert row.num_masked == count
        others = np.setdiff1d(np.arange(len(original)), row.masked_positions)
        np.testing.assert_array_equal(row.input_ids[others], original[others])


@given(documents=DOCUMENTS, dupe_factor=st.integers(1, 3), seed=st.integers(0, 1 << 40))
def test_no_sentence_is_lost_or_doubled(documents: list[list[list[int]]], dupe_factor: int, seed: int) -> None:
    """Every token is numbered. Where nothing is shortened each stands in A, or in B of a real pair, once in a pass."""
    numbers = iter(range(5, 10_000))
    documents = [[[next(numbers) for _ in sentence] for sentence in document] for document in documents]
    total = next(numbers)
    options = ExampleOptions(max_seq_length=2000, max_predictions=1, dupe_factor=dupe_factor, seed=seed)
    made = compiled_examples(documents, numbered_vocabulary(total), options)
    counts = np.zeros(total, int)
    for i in range(made.num_samples):
        row = made.take(np.array([i]))
        row.input_ids[row.masked_positions] = row.masked_ids
        is_new = (row.segment_ids == 0) | (row.next_sentence_labels[0] == 0)
        np.add.at(counts, row.input_ids[is_new], 1)
    assert (counts[5:] == dupe_factor).all()


@pytest.mark.parametrize("seed", [0, 12345, 1 << 70])
@pytest.mark.parametrize("kind", [0, 1, 2, 3, 255, 256, 257, 30522, (1 << 31) - 1])
def test_random_numbers_are_those_of_python(kind: int, seed: int) -> None:
    rng, twister = random.Random(seed), native.new_twister(seed)
    drawn = np.empty(3000)
    native.load().examples_draws(ctypes.byref(twister), kind, drawn.ctypes.data, len(drawn))
    assert drawn.tolist() == [float(rng.randrange(kind)) if kind else rng.random() for _ in range(3000)]
    order, expected = np.arange(2000, dtype=np.int32), list(range(2000))
    native.load().examples_shuffle(ctypes.byref(twister), order.ctypes.data, len(order))
    rng.shuffle(expected)
    assert order.tolist() == expected


def test_buffers_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    documents = [
        [rng.integers(5, 90, rng.integers(1, 20)).tolist() for _ in range(rng.integers(1, 9))] for _ in range(40)
    ]
    options = ExampleOptions(max_seq_length=64, dupe_factor=2)
    expected = compiled_examples(documents, numbered_vocabulary(90), options)
    for tokens in (1, 65, 1000):
        monkeypatch.setattr(native, "_TOKENS_AT_ONCE", tokens)
        assert_equal(compiled_examples(documents, numbered_vocabulary(90), options), expected)


STORED_OPTIONS = ExampleOptions(max_seq_length=128, max_predictions=20, dupe_factor=3)
STORED = {
    "input_ids": "d677a6f4a6c28d96ffc946cd5e1ba47c1c9c41f58edfdb6954cb8366faa08921",
    "segment_ids": "6a94de59e7a8ab99c6fdd3c03d9cbb65e8286828826832d04243cb4045ee718d",
    "offsets": "081ddfde382ac29b8cb97c7409b6f8b54266b12ad3a8eb732f1a72d9a00f7902",
    "masked_positions": "09d873da81be115d41c8ea68e88817082fd6102c5c015c983bf3fc5b38ec1313",
    "masked_ids": "47dba5d8ac457b501863a3d298c2c2b1cb753366a83158e96d9147b230376651",
    "masked_offsets": "f41040d99880741bb6b424bd3bf596fc37579bebfa5649b6fe6bf62af7f8e613",
    "next_sentence_labels": "3a7beec74261bba31c1b3774be5a9df2aa5cfa483aa5e4b1ee556f4401d240a3",
}


@pytest.fixture
def stored_text(tmp_path: Path) -> tuple[Path, Path]:
    text, vocabulary = tmp_path / "text", tmp_path / "vocab.txt"
    text.write_bytes(odd_text(200))
    write_vocabulary(vocabulary, make_vocabulary("the", "cafe", "mask", "field", "\u6771", "##ing", "##ed"))
    return text, vocabulary


def test_stored_examples(stored_text: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """sha256 of each field, of a program whose examples of a Wikipedia part and of the tricky text (below) were the
    published reference's."""
    text, vocabulary = stored_text
    monkeypatch.setattr(part_examples, "_SAMPLES_AT_ONCE", 100)
    heard: list[int] = []
    facts = write_part_examples(
        text, tmp_path / "shard.hdf5", vocabulary=vocabulary, options=STORED_OPTIONS, progress=heard.append
    )
    samples = map_samples(read_header(tmp_path / "shard.hdf5"))
    assert fingerprint([samples]) == STORED
    assert facts["samples"] == samples.num_samples and facts["tokens"] == samples.num_tokens
    assert sum(heard) == text.stat().st_size and min(heard) >= 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["shard.hdf5", "text", "vocab.txt"]
    assert count_examples(text, tmp_path, vocabulary=vocabulary, options=STORED_OPTIONS) == samples.num_samples


def test_stored_examples_are_those_of_the_readable_program(stored_text: tuple[Path, Path], tmp_path: Path) -> None:
    words = read_vocabulary(stored_text[1])
    documents = encode_documents(read_documents(stored_text[0].read_bytes()), words)
    assert fingerprint([make_examples(documents, vocabulary=words, options=STORED_OPTIONS)]) == STORED


def test_selected_examples(stored_text: tuple[Path, Path], tmp_path: Path) -> None:
    text, vocabulary = stored_text
    bound = {"vocabulary": vocabulary, "options": STORED_OPTIONS}
    write_part_examples(text, tmp_path / "all.hdf5", **bound)
    every = map_samples(read_header(tmp_path / "all.hdf5"))
    places = np.array([7, 3, every.num_samples - 1])
    write_part_examples(text, tmp_path / "some.hdf5", select=lambda count: places, **bound)
    assert_equal(map_samples(read_header(tmp_path / "some.hdf5")), every.take(places))


def test_evaluation_samples(stored_text: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, vocabulary = stored_text
    write_part_examples(text, tmp_path / "all.hdf5", vocabulary=vocabulary, options=STORED_OPTIONS)
    every = map_samples(read_header(tmp_path / "all.hdf5"))
    bound = {"vocabulary": vocabulary, "options": STORED_OPTIONS, "own_vocabulary": True}
    manifest = eval_examples(text, out=tmp_path / "eval", num_samples=37, **bound)
    expected = every.take(np.array([int(i * (every.num_samples / 37)) for i in range(37)]))
    (shard,) = (tmp_path / "eval").glob("*.hdf5")
    assert_equal(map_samples(read_header(shard)), expected)
    facts = manifest["outputs"][0]["facts"]
    assert facts["fingerprints"] == fingerprint([expected])
    printed = capsys.readouterr().out
    assert all(f"{name:20s} sha256 {value}" in printed for name, value in facts["fingerprints"].items())
    assert f"md5 {facts['official_input_ids_md5']}, not that of the published evaluation set" in printed
    with pytest.raises(UserError, match=f"gives {every.num_samples:,} examples, expected at least 100,000"):
        eval_examples(text, out=tmp_path / "many", num_samples=100_000, **bound)
    assert not list((tmp_path / "many").glob("*.hdf5"))


@pytest.mark.parametrize("step", ["examples", "eval"])
def test_a_vocabulary_that_changes_meanwhile(
    stored_text: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    text, vocabulary = stored_text
    module = examples_command if step == "examples" else evaluation

    def run_later(*arguments: Any, **options: Any) -> Any:
        vocabulary.write_bytes(vocabulary.read_bytes() + b"another\n")
        return run_stage(*arguments, **options)

    monkeypatch.setattr(module, "run_stage", run_later)
    bound = {"vocabulary": vocabulary, "options": STORED_OPTIONS, "own_vocabulary": True, "out": tmp_path / "out"}
    with pytest.raises(UserError, match=f"vocabulary {vocabulary} changed while examples were made with it"):
        if step == "examples":
            examples_command.examples([text], **bound)
        else:
            eval_examples(text, num_samples=5, **bound)
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_picks_in_float64() -> None:
    """int(i * (N / n)): where the product is near a whole number rounding decides, as in the reference."""
    for num_examples in (10_000, 10_001, 29_999, 30_000, 157_077):
        assert picked(num_examples, 10_000).tolist() == [int(i * (num_examples / 10_000)) for i in range(10_000)]


def test_memory_does_not_grow_with_the_text(tmp_path: Path) -> None:
    """Eight times the text in less than 1.2 times the memory (anonymous pages) and 48 bytes an example."""
    text, vocabulary = tmp_path / "text", tmp_path / "vocab.txt"
    text.write_bytes(odd_text(600))
    write_vocabulary(vocabulary, make_vocabulary("the"))
    small = bench.measure(bench.our_examples, bench.repeated(text, 1.0, tmp_path), vocabulary, tmp_path)
    large = bench.measure(bench.our_examples, bench.repeated(text, 8.0, tmp_path), vocabulary, tmp_path)
    assert large.samples > 7 * small.samples
    assert large.peak_anonymous < 1.2 * small.peak_anonymous + 48 * large.samples


def test_missing_or_old_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_NAME", "_other")
    with pytest.raises(UserError, match=r"compiled example maker _other is missing beside .* needs a C compiler"):
        native.load.__wrapped__()
    monkeypatch.undo()
    monkeypatch.setattr(native, "VERSION", native.VERSION + 1)
    with pytest.raises(UserError, match=f"is version {native.VERSION - 1}, expected {native.VERSION}; build it"):
        native.load.__wrapped__()


@pytest.mark.reference
def test_reference_examples_of_wikipedia(reference_dir: Path, tmp_path: Path) -> None:
    """From the text: all 19,828 examples that the published reference makes of one part, field by field, in order."""
    wiki = reference_dir / "data" / "wiki"
    write_part_examples(
        wiki / "part-00000-of-00500",
        tmp_path / "shard.hdf5",
        vocabulary=wiki / "vocab.txt",
        options=ExampleOptions(),
    )
    expected = reference_samples(reference_dir / "golden" / "dataprep" / "examples_part0.npz", 19_828)
    assert expected.num_samples == 19_828
    assert_equal(map_samples(read_header(tmp_path / "shard.hdf5")), expected)


@pytest.mark.reference
def test_reference_examples_of_tricky_text(reference_dir: Path, tmp_path: Path) -> None:
    tricky = reference_dir / "golden" / "tricky"
    write_part_examples(
        tricky / "tricky.txt",
        tmp_path / "shard.hdf5",
        vocabulary=reference_dir / "data" / "wiki" / "vocab.txt",
        options=replace(ExampleOptions(), dupe_factor=2),
    )
    expected = reference_samples(tricky / "examples_tricky.npz", 194)
    assert_equal(map_samples(read_header(tmp_path / "shard.hdf5")), expected)


@pytest.mark.reference
def test_reference_picks_of_evaluation_text(reference_dir: Path, tmp_path: Path) -> None:
    """100 of the 7,953 examples of the withheld articles, and the official vocabulary passes as such."""
    wiki, golden = reference_dir / "data" / "wiki", reference_dir / "golden" / "dataprep"
    eval_examples(
        wiki / "eval.txt",
        vocabulary=wiki / "vocab.txt",
        out=tmp_path / "eval",
        options=ExampleOptions(),
        num_samples=100,
    )
    (shard,) = (tmp_path / "eval").glob("*.hdf5")
    assert_equal(map_samples(read_header(shard)), reference_samples(golden / "eval_pick100.npz", 100))
    np.testing.assert_array_equal(picked(7953, 100), np.load(golden / "eval_pick100_indices.npz")["indices"])


def test_bench_names_the_text_of_the_user(tmp_path: Path) -> None:
    text, vocabulary = tmp_path / "text", tmp_path / "vocab.txt"
    text.write_bytes(b"The sea is wide.\nIt is \xff deep.\n\n")
    vocabulary.write_text("".join(f"{token}\n" for token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "sea")))
    with pytest.raises(UserError, match=rf"{text} is not UTF-8: byte 23 "):
        bench.bench_prep(text=text, vocabulary=vocabulary, megabytes=[0.001])
