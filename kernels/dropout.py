"""Dropout masks that are a function of what they mask: a counter instead of a state, so nothing is stored.

    key      = Philox(key = seed; counter = step, layer, site), 62 bits
    hidden:    field(r, c)    = 16-bit field c % 8 of Philox(key; c // 8, position(r), sample(r), 0)
    attention: field(h, q, k) = 16-bit field k % 8 of Philox(key; k // 8, position(q), sample(q), h)
    keep     = field >= threshold,  threshold = round(probability 2^16);  kept values times 2^16 / (2^16 - threshold)

sample is the index in the global batch, position that in the sample: a sample has the same masks on any number of
ranks, in any order, in forward, in backward and when a layer is computed again. One call of Philox4x32-10 (Salmon et
al., Parallel random numbers: as easy as 1, 2, 3; SC 2011) gives eight masks: four words, the low half of each first.

Legend: R rows, C columns, G groups of eight columns.
"""

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TypeVar

import torch
from torch import Tensor

from bert_mlperf.kernels.jit import divide_up, jit, tl

FIELDS = 8  # masks of one call
RANGE = 2**16
_WORD = 2**32 - 1
_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)

Word = TypeVar("Word", int, Tensor)  # a uint32 as a Python int, or many of them in an int64 tensor


class Site(IntEnum):
    """Where in a layer values are dropped."""

    EMBEDDINGS = 0
    ATTENTION = 1
    ATTENTION_OUTPUT = 2
    OUTPUT = 3


@dataclass(frozen=True)
class Dropout:
    """The masks of one site of one layer in one step."""

    probability: float  # that a value is dropped, in [0, 1)
    key: int
    samples_R: Tensor  # int32: index in the global batch of the sample that a row belongs to
    positions_R: Tensor  # int32: position of the row in its sample

    def __post_init__(self) -> None:
        if not 0 <= self.probability * RANGE < RANGE - 0.5:
            raise ValueError(f"the dropout probability is {self.probability}, expected 0 to {1 - 1 / RANGE:.5f}")
        for name in ("samples_R", "positions_R"):  # the kernels read them one after the other
            object.__setattr__(self, name, getattr(self, name).contiguous())

    @property
    def threshold(self) -> int:
        return round(self.probability * RANGE)

    @property
    def scale(self) -> float:
        """What a kept value is multiplied with."""
        return RANGE / (RANGE - self.threshold)


@dataclass(frozen=True)
class StepDropout:
    """The masks of all layers in one step for rows whose samples and positions are given."""

    seed: int
    step: int
    samples_R: Tensor
    positions_R: Tensor

    def at(self, layer: int, site: Site, probability: float) -> Dropout | None:
        """None where nothing is dropped."""
        if round(probability * RANGE) == 0:
            return None
        return Dropout(probability, site_key(self.seed, self.step, layer, site), self.samples_R, self.positions_R)

    def of_rows(self, rows_Q: Tensor) -> "StepDropout":
        """The same for these rows only."""
        return replace(self, samples_R=self.samples_R[rows_Q], positions_R=self.positions_R[rows_Q])


def site_key(seed: int, step: int, layer: int, site: Site) -> int:
    """The key of one site, 2^62 <= key < 2^63 (so that Triton always takes it as 64 bits). `seed` has 64 bits."""
    low, high, *_ = philox((step & _WORD, step >> 32, layer, int(site)), seed)
    return (low | high << 32) & (2**62 - 1) | 2**62


def philox(counter: tuple[Word, Word, Word, Word], key: int) -> tuple[Word, Word, Word, Word]:
    """Philox4x32-10: four words (uint32) from a counter of four words and a key of 64 bits."""
    c0, c1, c2, c3 = counter
    k0, k1 = key & _WORD, key >> 32 & _WORD
    for _ in range(_ROUNDS):
        # an int64 tensor wraps: all 64 bits of the product are right, though the sign is not
        first, second = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            (second >> 32 & _WORD) ^ c1 ^ k0,
            second & _WORD,
            (first >> 32 & _WORD) ^ c3 ^ k1,
            first & _WORD,
        )
        k0, k1 = k0 + _WEYL[0] & _WORD, k1 + _WEYL[1] & _WORD
    return c0, c1, c2, c3


def keep_hidden(dropout: Dropout, num_columns: int) -> Tensor:
    """Bool [R, C], True where a value is kept."""
    positions_R1, samples_R1 = dropout.positions_R.long()[:, None], dropout.samples_R.long()[:, None]
    return _fields(dropout.key, positions_R1, samples_R1, 0, num_columns) >= dropout.threshold


def keep_attention(dropout: Dropout, head: int, num_keys: int) -> Tensor:
    """Bool [Q, keys] of one head: row q for the first `num_keys` keys of its sample."""
    positions_Q1, samples_Q1 = dropout.positions_R.long()[:, None], dropout.samples_R.long()[:, None]
    return _fields(dropout.key, positions_Q1, samples_Q1, head, num_keys) >= dropout.threshold


def _fields(key: int, positions_R1: Tensor, samples_R1: Tensor, last: int, num_columns: int) -> Tensor:
    """int64 [R, C], each in 0 .. 2^16 - 1."""
    groups_1G = torch.arange(divide_up(num_columns, FIELDS), device=positions_R1.device)[None, :]
    zeros_RG = torch.zeros_like(positions_R1 + groups_1G)
    counter = (groups_1G + zeros_RG, positions_R1 + zeros_RG, samples_R1 + zeros_RG, last + zeros_RG)
    words_RG4 = torch.stack(philox(counter, key), dim=-1)
    fields_RG42 = torch.stack([words_RG4 & 0xFFFF, words_RG4 >> 16], dim=-1)
    return fields_RG42.flatten(1)[:, :num_columns]


def triton_masks(dropout: Dropout | None) -> tuple[Tensor | None, Tensor | None, int, int, float]:
    """Samples, positions, key, threshold and scale for a Triton kernel; without dropout the tensors are None."""
    if dropout is None:
        return None, None, 2**62, 0, 1.0
    return dropout.samples_R, dropout.positions_R, dropout.key, dropout.threshold, dropout.scale


@jit
def keep_tile(key, groups_1G, positions_R1, samples_R1, last, threshold):
    """In Triton: bool [R, 8 G], True where a value is kept, for the groups of columns `groups_1G` (int32 [1, G]) of the
    rows `positions_R1`, `samples_R1` (int32 [R, 1]); `last` is the last word of the counter (0, or the head)."""
    zeros = (positions_R1 + groups_1G) * 0
    a, b, c, d = tl.philox(key, zeros + groups_1G, zeros + positions_R1, zeros + samples_R1, zeros + last)
    words = tl.interleave(tl.interleave(a, c), tl.interleave(b, d))
    return tl.interleave(words & 0xFFFF, words >> 16) >= threshold
