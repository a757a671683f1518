"""Numbers that say something about ten runs: MLPerf's olympic mean, windows of more runs, and how sure one can be."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

RUNS = 10  # of a BERT result
RESAMPLES = 20_000
SEED = 0  # of the bootstrap: the same logs give the same interval


def olympic_mean(values: Sequence[float]) -> float:
    """Mean without the smallest and the largest. A run that did not converge is infinite: one is dropped as the
    largest, two make the mean infinite. ValueError with fewer than three values."""
    if len(values) < 3:
        raise ValueError(f"an olympic mean takes three values or more, got {len(values)}")
    inner = sorted(values)[1:-1]
    return math.fsum(inner) / len(inner) if math.isfinite(inner[-1]) else math.inf


def counted(values: Sequence[float]) -> list[int]:
    """Indices of the values that an olympic mean counts, in their order."""
    order = sorted(range(len(values)), key=lambda index: (values[index], index))
    return sorted(order[1:-1])


def median_window(values: Sequence[float], size: int = RUNS) -> tuple[int, int]:
    """First and last + 1 of the window that stands for more runs than a result has: of all windows of `size`
    consecutive runs the one whose olympic mean is the median; of two middle ones the slower."""
    windows = range(len(values) - size + 1)
    ranked = sorted(windows, key=lambda start: (olympic_mean(values[start : start + size]), start))
    start = ranked[len(ranked) // 2]
    return start, start + size


def bootstrap(values: Sequence[float], *, resamples: int = RESAMPLES) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Olympic means of resamples [resamples] of the values, drawn with replacement; infinite ones among them where
    runs did not converge."""
    generator = np.random.default_rng(SEED)
    drawn = np.sort(
        np.asarray(values, dtype=np.float64)[generator.integers(len(values), size=(resamples, len(values)))]
    )
    return drawn[:, 1:-1].mean(axis=1)


def interval(means: np.ndarray[Any, np.dtype[np.float64]], share: float = 0.95) -> tuple[float, float]:
    """The middle `share` of bootstrapped means, by percentiles that are values themselves."""
    low, high = np.quantile(means, [(1 - share) / 2, (1 + share) / 2], method="inverted_cdf")
    return float(low), float(high)
