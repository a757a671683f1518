import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_mlperf.bench.samples import mlperf_like_lengths
from bert_mlperf.data.balance import BALANCES, Imbalance, deal

LENGTHS = np.array([5, 9, 2, 9, 7, 1, 8, 3])


@pytest.mark.parametrize(
    ("balance", "expected"),
    [
        ("none", [[9, 5], [9, 2], [7, 1], [8, 3]]),
        ("strided", [[9, 5], [9, 3], [8, 2], [7, 1]]),
        ("snake", [[9, 1], [9, 2], [8, 3], [7, 5]]),
    ],
)
def test_small_deals_by_hand(balance: str, expected: list[list[int]]) -> None:
    assert [LENGTHS[part].tolist() for part in deal(LENGTHS, 4, balance=balance)] == expected


@given(st.lists(st.integers(1, 512), max_size=60), st.integers(1, 9), st.sampled_from(BALANCES))
def test_every_position_once_longest_first_and_even(lengths: list[int], parts: int, balance: str) -> None:
    dealt = deal(np.array(lengths, dtype=np.int64), parts, balance=balance)
    assert sorted(np.concatenate(dealt).tolist()) == list(range(len(lengths)))
    sizes = [len(part) for part in dealt]
    assert len(sizes) == parts and max(sizes) - min(sizes) <= 1
    assert all(sorted(found, reverse=True) == found for part in dealt if (found := [lengths[i] for i in part]))


def test_samples_of_one_length_keep_their_order() -> None:
    assert [part.tolist() for part in deal(np.full(6, 7), 2, balance="strided")] == [[0, 2, 4], [1, 3, 5]]


@pytest.mark.parametrize(
    ("balance", "tokens", "attention"),
    [("none", 0.2245, 0.3481), ("strided", 0.0197, 0.0273), ("snake", 0.0018, 0.0042)],
)
def test_imbalance_of_64_ranks_with_48_samples(balance: str, tokens: float, attention: float) -> None:
    """MLPerf-like lengths; means over 50 global batches, and the bounds that the default keeps in each of them."""
    generator = np.random.default_rng(0)
    found = [
        Imbalance.of(lengths, deal(lengths, 64, balance=balance))
        for lengths in (mlperf_like_lengths(64 * 48, 512, generator) for _ in range(50))
    ]
    assert np.mean([i.tokens for i in found]) == pytest.approx(tokens, rel=0.15)
    assert np.mean([i.attention for i in found]) == pytest.approx(attention, rel=0.15)
    if balance == "snake":
        assert max(i.tokens for i in found) < 0.005 and max(i.attention for i in found) < 0.01


def test_imbalance_by_hand() -> None:
    """Tokens 3 and 1, squares 9 and 1."""
    assert Imbalance.of(np.array([3, 1]), [np.array([0]), np.array([1])]) == Imbalance(0.5, 0.8)
