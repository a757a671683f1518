from dataclasses import replace

import numpy as np
import pytest

from bert_mlperf.data.samples import Samples, concatenate
from bert_mlperf.errors import UserError
from tests.data.files import MAX_LENGTH, VOCAB_SIZE, assert_equal, make_samples


def one_by_one(samples: Samples, ids: list[int]) -> list[tuple[list[int], ...]]:
    """The chosen samples as plain lists."""
    rows = []
    for i in ids:
        tokens = slice(samples.offsets[i], samples.offsets[i + 1])
        masked = slice(samples.masked_offsets[i], samples.masked_offsets[i + 1])
        arrays = [samples.input_ids[tokens], samples.segment_ids[tokens], samples.masked_positions[masked]]
        rows.append(
            (*[a.tolist() for a in arrays], samples.masked_ids[masked].tolist(), samples.next_sentence_labels[i])
        )
    return rows


def test_take_keeps_order_and_repeats(samples: Samples) -> None:
    ids = [7, 0, 39, 7, 3]
    taken = samples.take(np.array(ids))
    assert one_by_one(taken, range(5)) == one_by_one(samples, ids)
    assert taken.num_tokens == samples.lengths[ids].sum()
    taken.validate(VOCAB_SIZE, MAX_LENGTH)


def test_take_of_samples_without_masked_tokens() -> None:
    samples = make_samples([5, 9, 4])
    none = replace(samples, masked_positions=samples.masked_positions[:0], masked_ids=samples.masked_ids[:0])
    none = replace(none, masked_offsets=np.zeros(4, np.int64))
    assert none.take(np.array([2, 1])).masked_counts.tolist() == [0, 0]
    assert none.take(np.array([], dtype=np.int64)).num_samples == 0


def test_concatenate_then_take_gives_the_parts_back(samples: Samples) -> None:
    other = make_samples([10, 20], seed=5)
    both = concatenate([samples, other, samples])
    assert_equal(both.take(np.arange(40, 42)), other)
    assert_equal(both.take(np.arange(42, 82)), samples)


def broken(samples: Samples, name: str, at: int, value: int) -> Samples:
    values = getattr(samples, name).astype(np.int64)
    values[at] = value
    return replace(samples, **{name: values})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("input_ids", VOCAB_SIZE, "token id 100 lies outside the vocabulary"),
        ("input_ids", -1, "token id -1 lies outside the vocabulary"),
        ("masked_ids", VOCAB_SIZE, "token id 100 lies outside the vocabulary"),
        ("masked_positions", 5, "masked position 5 of sample 0 lies outside its 5 tokens"),
        ("masked_positions", -1, "masked position -1 of sample 0"),
        ("segment_ids", 2, "a segment id is 2, expected 0 or 1"),
        ("next_sentence_labels", 3, "a next-sentence label is 3, expected 0 or 1"),
        ("offsets", 1, "the offsets do not cut 14 tokens"),
    ],
)
def test_validate_names_the_place_and_the_value(name: str, value: int, message: str) -> None:
    samples = make_samples([5, 9])
    samples.validate(VOCAB_SIZE, 9)
    with pytest.raises(UserError, match=f"shard x: {message}"):
        broken(samples, name, 0, value).validate(VOCAB_SIZE, 9, where="shard x")


def test_validate_refuses_long_and_empty_samples() -> None:
    with pytest.raises(UserError, match="sample 1 has 9 tokens, expected 1 to 8"):
        make_samples([5, 9]).validate(VOCAB_SIZE, 8)
    with pytest.raises(UserError, match="sample 0 has 0 tokens"):
        broken(make_samples([5, 9]), "offsets", 1, 0).validate(VOCAB_SIZE, 16)
