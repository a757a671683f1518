import numpy as np
import pytest

from bert_mlperf.data_prep.examples import ExampleOptions
from bert_mlperf.data_prep.subset import check_subset, part_of_subset, shard_bytes
from bert_mlperf.errors import UserError


@pytest.mark.parametrize("counts", [[1000], [1, 998, 1], [300, 0, 700], [100] * 10])
@pytest.mark.parametrize("size", [1, 137, 999, 1000])
def test_the_same_samples_however_the_parts_are_cut(counts: list[int], size: int) -> None:
    firsts = np.cumsum([0, *counts])
    chosen = [
        first + part_of_subset(int(first), count, total=1000, size=size, seed=3)
        for first, count in zip(firsts, counts, strict=False)
    ]
    found = np.concatenate(chosen)
    assert len(found) == size and (np.diff(found) > 0).all()
    np.testing.assert_array_equal(found, part_of_subset(0, 1000, total=1000, size=size, seed=3))


def test_every_sample_is_equally_likely() -> None:
    """100 of 1,000 samples for 1,000 seeds: each is drawn 100 times, give or take five standard deviations; so is
    each pair of neighbours 10 times, on average within one."""
    drawn = np.zeros(1000)
    together = np.zeros(999)
    for seed in range(1000):
        is_drawn = np.zeros(1000, bool)
        is_drawn[part_of_subset(0, 1000, total=1000, size=100, seed=seed)] = True
        drawn += is_drawn
        together += is_drawn[1:] & is_drawn[:-1]
    assert drawn.sum() == 100_000
    assert np.abs(drawn - 100).max() < 5 * np.sqrt(90)
    assert abs(together.mean() - 100 * 99 / 999) < 1


def test_the_corpus_of_the_benchmark() -> None:
    """A part in the middle of 156,726,829 samples gets its share, without the others being looked at."""
    part = part_of_subset(100_000_000, 313_000, total=156_726_829, size=3_000_000, seed=0)
    assert abs(len(part) - 313_000 * 3_000_000 / 156_726_829) < 5 * np.sqrt(6000)


@pytest.mark.parametrize(("size", "total"), [(0, None), (-1, 10), (11, 10)])
def test_impossible_sizes(size: int, total: int | None) -> None:
    with pytest.raises(UserError, match=f"the subset has {size} samples, expected 1 to the "):
        check_subset(size, total)


def test_disk_for_the_whole_corpus() -> None:
    """13.4 GB of text: about 120 GB of shards with ids of 16 bits, against 365 GB of TFRecord."""
    needed = shard_bytes(13_400_000_000, vocab_size=30522, options=ExampleOptions())
    assert 100e9 < needed < 150e9
    few = shard_bytes(13_400_000_000, vocab_size=30522, options=ExampleOptions(), num_samples=3_000_000)
    assert 4e9 < few < 7e9
