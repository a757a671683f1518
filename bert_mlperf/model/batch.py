"""The unpadded batch: the samples of one micro-batch one behind the other, without padding.

Legend: B samples, T tokens, M masked tokens, Q = B + M query rows of the last layer.
"""

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bert_mlperf.data.samples import Samples
from bert_mlperf.kernels.attention import AttentionRows


@dataclass(frozen=True)
class Batch:
    """One micro-batch on one device. Every count that the host needs is a plain int from the data side.

    Only the [CLS] and the masked tokens of a sample are used behind the last attention, so the last layer computes
    queries and feed-forward for these rows alone. Their order is: sample by sample, [CLS] first, then the masked
    tokens; `query_offsets_B1` bounds each sample's rows.
    """

    input_ids_T: Tensor  # int64
    segment_ids_T: Tensor  # int64, 0 or 1
    positions_T: Tensor  # int64, position inside the sample
    samples_T: Tensor  # int32, index in the global batch of the sample that a token belongs to (dropout counts with it)
    offsets_B1: Tensor  # int32, sample b owns tokens [offsets[b], offsets[b + 1]) (flash-attention's cu_seqlens)
    query_tokens_Q: Tensor  # int64, token index of each query row of the last layer
    query_offsets_B1: Tensor  # int32, sample b owns query rows [query_offsets[b], query_offsets[b + 1])
    cls_rows_B: Tensor  # int64, query row of each [CLS]
    masked_rows_M: Tensor  # int64, query row of each masked token
    masked_labels_M: Tensor  # int64, original token ids
    next_sentence_labels_B: Tensor  # int64, 0 = real next segment, 1 = random
    bounds: tuple[int, ...]  # offsets_B1 on the host
    query_bounds: tuple[int, ...]

    @property
    def num_samples(self) -> int:
        return self.next_sentence_labels_B.numel()

    @property
    def num_tokens(self) -> int:
        return self.input_ids_T.numel()

    @property
    def num_masked(self) -> int:
        return self.masked_labels_M.numel()

    @cached_property
    def token_rows(self) -> AttentionRows:
        """Every token asks all tokens of its sample."""
        return AttentionRows(self.offsets_B1, self.offsets_B1, self.bounds, self.bounds)

    @cached_property
    def query_rows(self) -> AttentionRows:
        """In the last layer [CLS] and the masked tokens ask."""
        return AttentionRows(self.query_offsets_B1, self.offsets_B1, self.query_bounds, self.bounds)

    def to(self, device: torch.device) -> "Batch":
        """The same batch on another device (asynchronously from pinned memory)."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        moved: dict[str, Any] = {k: v.to(device, non_blocking=True) for k, v in values.items() if isinstance(v, Tensor)}
        return replace(self, **moved)


def make_batch(samples: Samples, indices_B: np.ndarray | None = None) -> Batch:
    """A `Batch` on the CPU from flat ragged `samples` (numpy). `indices_B`: their indices in the global batch (without
    them 0, 1, ...)."""
    indices_B = np.arange(samples.num_samples) if indices_B is None else indices_B
    offsets, lengths = samples.offsets, samples.lengths
    masked_counts = samples.masked_counts
    num_samples = samples.num_samples
    query_offsets = samples.masked_offsets + np.arange(num_samples + 1)
    cls_rows = query_offsets[:-1]
    masked_rows = np.arange(samples.num_masked) + np.repeat(np.arange(1, num_samples + 1), masked_counts)
    query_tokens = np.empty(num_samples + samples.num_masked, dtype=np.int64)
    query_tokens[cls_rows] = offsets[:-1]
    query_tokens[masked_rows] = samples.masked_positions + np.repeat(offsets[:-1], masked_counts)
    positions = np.arange(samples.num_tokens) - np.repeat(offsets[:-1], lengths)
    return Batch(
        input_ids_T=_int64(samples.input_ids),
        segment_ids_T=_int64(samples.segment_ids),
        positions_T=_int64(positions),
        samples_T=torch.from_numpy(np.repeat(indices_B, lengths).astype(np.int32)),
        offsets_B1=torch.from_numpy(offsets.astype(np.int32)),
        query_tokens_Q=_int64(query_tokens),
        query_offsets_B1=torch.from_numpy(query_offsets.astype(np.int32)),
        cls_rows_B=_int64(cls_rows),
        masked_rows_M=_int64(masked_rows),
        masked_labels_M=_int64(samples.masked_ids),
        next_sentence_labels_B=_int64(samples.next_sentence_labels),
        bounds=tuple(offsets.tolist()),
        query_bounds=tuple(query_offsets.tolist()),
    )


def _int64(array: np.ndarray) -> Tensor:
    return torch.from_numpy(array.astype(np.int64))
