import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_mlperf.data.order import global_batch_ids, permuted


def epoch_order(num_samples: int, *, seed: int = 1, epoch: int = 0) -> np.ndarray:
    return permuted(np.arange(num_samples), num_samples, seed=seed, epoch=epoch)


@settings(deadline=None)
@given(num_samples=st.integers(1, 3000), seed=st.integers(0, 2**70), epoch=st.integers(0, 1000))
def test_an_epoch_holds_every_sample_once(num_samples: int, seed: int, epoch: int) -> None:
    assert sorted(epoch_order(num_samples, seed=seed, epoch=epoch)) == list(range(num_samples))


@settings(deadline=None, max_examples=40)
@given(num_samples=st.integers(1, 60), batch=st.integers(1, 100), seed=st.integers(0, 99))
def test_batches_are_the_concatenated_epochs_cut_in_pieces(num_samples: int, batch: int, seed: int) -> None:
    steps = 2 * num_samples // batch + 3  # across at least two borders; batch > num_samples spans several epochs
    epochs = -(-steps * batch // num_samples)
    line = np.concatenate([epoch_order(num_samples, seed=seed, epoch=epoch) for epoch in range(epochs)])
    for step in range(steps):
        expected = line[step * batch : (step + 1) * batch]
        np.testing.assert_array_equal(global_batch_ids(seed, step, num_samples, batch), expected)


def test_order_depends_on_seed_and_epoch() -> None:
    orders = [epoch_order(1000, seed=s, epoch=e) for s, e in [(1, 0), (1, 1), (2, 0), (0, 1)]]
    for i, first in enumerate(orders):
        for second in orders[:i]:
            assert np.sum(first == second) < 10  # chance leaves 1 of 1,000 samples in place


def test_order_is_frozen() -> None:
    """A resumed run continues an order that another version of the program began: it must never change."""
    assert global_batch_ids(7, 0, 10, 10).tolist() == [4, 1, 6, 2, 3, 9, 8, 7, 0, 5]
    assert global_batch_ids(7, 123, 156_726_829, 4).tolist() == [143379092, 131627845, 14803910, 45735386]


@pytest.mark.parametrize("num_samples", [5, 12, 300])
def test_every_sample_is_equally_likely_at_every_place(num_samples: int) -> None:
    """Chi-square of the sample at the first, middle and last place over 1,500 seeds: mean n - 1, deviation sqrt(2n)."""
    places = np.array([0, num_samples // 2, num_samples - 1])
    chosen = np.array([permuted(places, num_samples, seed=seed, epoch=3) for seed in range(1500)])
    for column in chosen.T:
        counts = np.bincount(column, minlength=num_samples)
        expected = len(chosen) / num_samples
        chi_square = np.sum((counts - expected) ** 2 / expected)
        assert abs(chi_square - (num_samples - 1)) < 5 * np.sqrt(2 * num_samples)


def test_neighbours_come_from_everywhere() -> None:
    """Consecutive samples of a batch lie in different parts of the data (no runs from one shard or document)."""
    ids = global_batch_ids(3, 5, 1_000_000, 4096)
    steps = np.abs(np.diff(ids))
    assert abs(steps.mean() / 1_000_000 - 1 / 3) < 0.02  # mean distance of two independent places
    assert np.sum(steps < 1000) < 25  # 0.2% expected: 8
    assert abs(np.corrcoef(ids[1:], ids[:-1])[0, 1]) < 0.08


def test_a_batch_of_the_full_corpus_needs_no_table() -> None:
    ids = global_batch_ids(3, 10_000, 156_726_829, 8192)
    assert len(np.unique(ids)) == 8192
    assert ids.min() >= 0 and ids.max() < 156_726_829
