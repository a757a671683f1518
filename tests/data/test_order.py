import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_mlperf.data.order import BLOCK_SAMPLES, SampleOrder, permuted, shuffle

FULL_CORPUS = 156_726_829
FROZEN = [137117164, 65702247, 121249881, 54434811]


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
        np.testing.assert_array_equal(SampleOrder(seed, num_samples).global_batch(step, batch), expected)


def test_order_depends_on_seed_and_epoch() -> None:
    orders = [epoch_order(1000, seed=s, epoch=e) for s, e in [(1, 0), (1, 1), (2, 0), (0, 1)]]
    for i, first in enumerate(orders):
        for second in orders[:i]:
            assert np.sum(first == second) < 10  # chance leaves 1 of 1,000 samples in place


def test_order_is_frozen() -> None:
    """A resumed run continues an order that another version of the program began: it must never change."""
    assert SampleOrder(7, 10).global_batch(0, 10).tolist() == [4, 1, 6, 2, 3, 9, 8, 7, 0, 5]
    assert SampleOrder(7, FULL_CORPUS).global_batch(123, 4).tolist() == FROZEN


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


@settings(deadline=None, max_examples=60)
@given(
    num_samples=st.integers(1, 700),
    block=st.integers(1, 20),
    blocks=st.integers(1, 20),
    seed=st.integers(0, 2**70),
    epoch=st.integers(0, 3),
)
def test_windows_of_any_size_hold_every_sample_once(
    num_samples: int, block: int, blocks: int, seed: int, epoch: int
) -> None:
    order = SampleOrder(seed, num_samples, block, blocks)
    first, end = epoch * num_samples, (epoch + 1) * num_samples
    assert sorted(order.ids(first, end)) == list(range(num_samples))
    position, sizes = first, []
    while position < end:
        start, stop = order.window(position)
        assert start == position and order.window(stop - 1) == (start, stop)
        sizes.append(stop - start)
        position = stop
    assert position == end
    assert max(sizes) < 2 * block * (blocks + 1)
    assert len(sizes) == 1 or min(sizes) > block * (blocks - 1)


def test_any_piece_of_the_line_is_the_same() -> None:
    order = SampleOrder(5, 1000, 8, 4)
    line = order.ids(0, 3000)
    for first, end in [(0, 1), (31, 33), (990, 1010), (999, 2001), (2999, 3000), (500, 500)]:
        np.testing.assert_array_equal(order.ids(first, end), line[first:end])


def test_every_sample_is_equally_likely_at_every_place_of_windows() -> None:
    """Also at the end of the epoch, where what is left of the blocks stands. Chi-square of 20 classes, 1,500 seeds."""
    num_samples = 997
    for place in (0, 500, 996):
        chosen = np.array([SampleOrder(seed, num_samples, 16, 3).ids(place, place + 1)[0] for seed in range(1500)])
        counts = np.bincount(chosen * 20 // num_samples, minlength=20)
        assert np.sum((counts - 75) ** 2 / 75) < 19 + 5 * np.sqrt(38)


class TestFullCorpus:
    """156,726,829 samples in 500 parts."""

    ORDER = SampleOrder(3, FULL_CORPUS)

    def test_blocks_are_a_bijection(self) -> None:
        count = FULL_CORPUS // BLOCK_SAMPLES
        images = shuffle(np.arange(count), count, keys=np.arange(12, dtype=np.uint64))
        assert np.array_equal(np.sort(images), np.arange(count))

    def test_samples_of_windows_and_of_places_all_over_are_distinct(self) -> None:
        start, end = self.ORDER.window(10**8)
        near = self.ORDER.ids(start - 200_000, end + 200_000)
        places = np.random.default_rng(0).integers(0, FULL_CORPUS, 3000)
        far = np.array([self.ORDER.ids(place, place + 1)[0] for place in np.unique(places).tolist()])
        last = self.ORDER.ids(FULL_CORPUS - 1000, FULL_CORPUS)
        for ids in (near, far, last):
            assert len(np.unique(ids)) == len(ids) and ids.min() >= 0 and ids.max() < FULL_CORPUS
        assert abs(far.mean() / FULL_CORPUS - 0.5) < 5 * 0.29 / np.sqrt(len(far))

    def test_a_window_is_read_in_few_runs(self) -> None:
        ids = np.sort(self.ORDER.ids(*self.ORDER.window(10**7)))
        assert 500 < 1 + np.sum(np.diff(ids) > 1) <= 515

    def test_neighbours_are_far_apart(self) -> None:
        """Samples of one part follow each other no more often than in a uniform order (1/500), and neighbours of the
        corpus that share a window lie a third of it apart."""
        start, end = self.ORDER.window(10**7)
        ids = self.ORDER.ids(start, end)
        part = ids // (FULL_CORPUS // 500)
        mean_run = len(part) / (1 + np.sum(np.diff(part) != 0))
        assert mean_run < 1.006  # uniform: 1.002
        by_id = np.argsort(ids)
        distance = np.abs(np.diff(by_id))[np.diff(ids[by_id]) == 1]
        assert len(distance) > 100_000
        assert abs(distance.mean() / (end - start) - 1 / 3) < 0.01 and np.mean(distance < 3072) < 0.06
        assert abs(np.corrcoef(ids[1:], ids[:-1])[0, 1]) < 0.02
