"""Who gets which samples of a global batch: pure functions of their lengths.

A step takes as long as its slowest rank. The samples of a global batch are dealt so that every micro-batch has the same
number of samples and nearly the same work; which samples form the global batch never changes.

    none      each part takes the next samples in the order of training
    strided   sorted by length, longest first; part p takes every n-th from p (the deal of the published 64-GPU run)
    snake     as strided, but every second round runs backwards, so nobody is first twice in a row

Legend: G samples of a global batch, P parts (micro-batches of all ranks).
"""

import itertools
from dataclasses import dataclass

import numpy as np

BALANCES = ("none", "strided", "snake")


def deal(lengths_G: np.ndarray, num_parts: int, *, balance: str) -> list[np.ndarray]:
    """Positions in the global batch (int64) that each of `num_parts` parts gets: every position once, longest sample
    first. Parts differ by at most one sample, and by none if `num_parts` divides G.

    Part a * world_size + r is micro-batch a of rank r; ranks are balanced because all parts are.
    """
    assert balance in BALANCES and num_parts > 0
    total = len(lengths_G)
    if balance == "none":
        bounds = np.arange(num_parts + 1) * total // num_parts
        parts = [np.arange(start, end) for start, end in itertools.pairwise(bounds)]
        return [part[_longest_first(lengths_G[part])] for part in parts]
    order = _longest_first(lengths_G)
    rounds, seats = np.divmod(np.arange(total), num_parts)
    if balance == "snake":
        seats = np.where(rounds % 2 == 1, num_parts - 1 - seats, seats)
    return [order[seats == part] for part in range(num_parts)]


@dataclass(frozen=True)
class Imbalance:
    """By how much the part with the most work exceeds the mean, as a share: 0.02 is 2%."""

    tokens: float
    attention: float  # sum of squared lengths

    @classmethod
    def of(cls, lengths_G: np.ndarray, parts: list[np.ndarray]) -> "Imbalance":
        """That of a deal."""
        tokens = np.array([lengths_G[part].sum(dtype=np.int64) for part in parts])
        attention = np.array([np.square(lengths_G[part], dtype=np.int64).sum() for part in parts])
        return cls(*(float(work.max() / work.mean() - 1) for work in (tokens, attention)))


def _longest_first(lengths: np.ndarray) -> np.ndarray:
    """Indices by falling length; samples of one length keep their order."""
    return np.argsort(-lengths.astype(np.int64), kind="stable")
