"""What the global batches hold and who gets which part of them: order, index and balance put together.

Legend: G samples of a global batch, P = accumulation steps x ranks parts of it (micro-batches).
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bert_mlperf.data.balance import deal
from bert_mlperf.data.index import SampleIndex
from bert_mlperf.data.order import SampleOrder


@dataclass(frozen=True)
class GlobalBatch:
    """Everything about the samples of one step but their content; the same on every rank."""

    step: int  # 0-based
    ids_G: np.ndarray  # int64, sample ids in the order of training
    lengths_G: np.ndarray  # int64, tokens
    masked_counts_G: np.ndarray  # int64, masked positions
    parts: list[np.ndarray]  # int64, positions in the global batch of each part, longest sample first

    @cached_property
    def num_tokens(self) -> int:
        return int(self.lengths_G.sum())

    @cached_property
    def num_masked(self) -> int:
        return int(self.masked_counts_G.sum())


@dataclass(frozen=True)
class BatchPlan:
    """All global batches of a run, on all ranks: a pure function of its fields."""

    order: SampleOrder
    index: SampleIndex
    global_batch_size: int
    accumulation_steps: int
    world_size: int
    balance: str  # of balance.BALANCES

    def __post_init__(self) -> None:
        assert self.global_batch_size % (self.accumulation_steps * self.world_size) == 0
        assert self.order.num_samples == self.index.num_samples

    def batch(self, step: int) -> GlobalBatch:
        """Global batch `step` (0-based)."""
        ids = self.order.global_batch(step, self.global_batch_size)
        lengths, masked_counts = self.index.counts(ids)
        parts = deal(lengths, self.accumulation_steps * self.world_size, balance=self.balance)
        return GlobalBatch(step, ids, lengths, masked_counts, parts)

    def micro_batches(self, batch: GlobalBatch, rank: int) -> list[np.ndarray]:
        """Positions in the global batch of the micro-batches of `rank`, in their order."""
        return batch.parts[rank :: self.world_size]

    def ranks(self, batch: GlobalBatch) -> np.ndarray:
        """The rank that gets the sample at each position of the global batch, int64 [G]."""
        found = np.empty(self.global_batch_size, dtype=np.int64)
        for part, positions in enumerate(batch.parts):
            found[positions] = part % self.world_size
        return found
