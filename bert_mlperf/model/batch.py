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


@dataclass(frozen=True)
class PackedBatch:
    """What a `Batch` is made of, on the host: its tensors by name as arrays of the narrowest dtype, and the bounds."""

    arrays: dict[str, np.ndarray]  # uint8, uint16 or int32
    bounds: tuple[int, ...]
    query_bounds: tuple[int, ...]

    def with_tensors(self, tensors: dict[str, Tensor]) -> Batch:
        """The `Batch` of these tensors, which hold `arrays` in the dtypes of TENSOR_DTYPES."""
        return Batch(**tensors, bounds=self.bounds, query_bounds=self.query_bounds)


TENSOR_DTYPES = {
    field.name: "int32" if field.name in ("samples_T", "offsets_B1", "query_offsets_B1") else "int64"
    for field in fields(Batch)
    if "bounds" not in field.name
}
_PLACES = np.arange(1 << 16, dtype=np.uint16)


def pack(samples: Samples, indices_B: np.ndarray | None = None) -> PackedBatch:
    """Packs flat ragged `samples`. `indices_B`: their indices in the global batch (without them 0, 1, ...)."""
    num_samples = samples.num_samples
    indices_B = np.arange(num_samples) if indices_B is None else indices_B
    offsets, lengths, masked_counts = samples.offsets, samples.lengths, samples.masked_counts
    query_offsets = samples.masked_offsets + np.arange(num_samples + 1)
    masked_rows = np.arange(samples.num_masked) + np.repeat(np.arange(1, num_samples + 1), masked_counts)
    query_tokens = np.empty(num_samples + samples.num_masked, dtype=np.int32)
    query_tokens[query_offsets[:-1]] = offsets[:-1]
    query_tokens[masked_rows] = samples.masked_positions + np.repeat(offsets[:-1], masked_counts)
    return PackedBatch(
        arrays={
            "input_ids_T": samples.input_ids,
            "segment_ids_T": samples.segment_ids,
            "positions_T": np.concatenate([_PLACES[:length] for length in lengths.tolist()] or [_PLACES[:0]]),
            "samples_T": np.repeat(indices_B.astype(np.int32), lengths),
            "offsets_B1": offsets.astype(np.int32),
            "query_tokens_Q": query_tokens,
            "query_offsets_B1": query_offsets.astype(np.int32),
            "cls_rows_B": query_offsets[:-1].astype(np.int32),
            "masked_rows_M": masked_rows.astype(np.int32),
            "masked_labels_M": samples.masked_ids,
            "next_sentence_labels_B": samples.next_sentence_labels,
        },
        bounds=tuple(offsets.tolist()),
        query_bounds=tuple(query_offsets.tolist()),
    )


def make_batch(samples: Samples, indices_B: np.ndarray | None = None) -> Batch:
    """A `Batch` on the CPU of what `pack` makes of the samples."""
    packed = pack(samples, indices_B)
    return packed.with_tensors(
        {name: torch.from_numpy(packed.arrays[name].astype(dtype)) for name, dtype in TENSOR_DTYPES.items()}
    )
