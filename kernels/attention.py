"""Variable-length self-attention on unpadded tokens.

    out[q] = sum_k dropout(softmax_k(q . k / sqrt(D))) v[k]      k over the tokens of the same sample

Legend: B samples, Q query rows, T key rows, N heads, D head size, S longest sample. Sample b owns query rows
[query_offsets[b], query_offsets[b + 1]) and key rows [key_offsets[b], key_offsets[b + 1]).
"""

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor


def attention_reference(
    q_QND: Tensor, k_TND: Tensor, v_TND: Tensor, query_offsets: Tensor, key_offsets: Tensor
) -> Tensor:
    """The equation above in the dtype of the inputs, sample by sample, without dropout: what the tests compare with."""
    out_QND = torch.empty_like(q_QND)
    for (q0, q1), (k0, k1) in zip(pairwise(query_offsets.tolist()), pairwise(key_offsets.tolist()), strict=True):
        scores = torch.einsum("qnd,knd->nqk", q_QND[q0:q1], k_TND[k0:k1]) / math.sqrt(q_QND.shape[-1])
        out_QND[q0:q1] = torch.einsum("nqk,knd->qnd", scores.softmax(-1), v_TND[k0:k1])
    return out_QND


@dataclass(frozen=True)
class RaggedRows:
    """Where the rows of unpadded samples lie in the dense [B, S] layout; made once per batch, used by every layer."""

    rows: Tensor | None  # int64 [rows]: index into [B * S], None when every sample has length S
    num_samples: int
    max_length: int
    lengths_B: Tensor

    @classmethod
    def from_offsets(cls, offsets_B1: Tensor, num_rows: int, max_length: int) -> "RaggedRows":
        """`offsets_B1`: int32 bounds of the samples; the host knows offsets[-1] and the longest sample."""
        num_samples = offsets_B1.numel() - 1
        lengths_B = (offsets_B1[1:] - offsets_B1[:-1]).long()
        rows = None
        if num_rows != num_samples * max_length:
            starts = torch.arange(num_samples, device=offsets_B1.device) * max_length - offsets_B1[:-1]
            shift = torch.repeat_interleave(starts, lengths_B, output_size=num_rows)
            rows = torch.arange(num_rows, device=offsets_B1.device) + shift
        return cls(rows=rows, num_samples=num_samples, max_length=max_length, lengths_B=lengths_B)

    def to_dense(self, x_RND: Tensor) -> Tensor:
        """[rows, N, D] -> [B, N, S, D], zero where there is no row."""
        if self.rows is not None:
            dense = x_RND.new_zeros(self.num_samples * self.max_length, *x_RND.shape[1:])
            x_RND = dense.index_copy(0, self.rows, x_RND)
        return x_RND.view(self.num_samples, self.max_length, *x_RND.shape[1:]).transpose(1, 2)

    def from_dense(self, x_BNSD: Tensor) -> Tensor:
        """[B, N, S, D] -> [rows, N, D]."""
        flat = x_BNSD.transpose(1, 2).flatten(0, 1)
        return flat if self.rows is None else flat.index_select(0, self.rows)

    def key_mask(self) -> Tensor | None:
        """Boolean [B, 1, 1, S], True where a key exists; None when every sample is full."""
        if self.rows is None:
            return None
        steps = torch.arange(self.max_length, device=self.lengths_B.device)
        return (steps < self.lengths_B[:, None])[:, None, None, :]


def attention(
    q_QND: Tensor,
    k_TND: Tensor,
    v_TND: Tensor,
    *,
    queries: RaggedRows,
    keys: RaggedRows,
    key_mask: Tensor | None,
    dropout: float = 0.0,
) -> Tensor:
    """The equation above through torch's scaled_dot_product_attention on the dense layout. Returns [Q, N, D]."""
    out_BNSD = F.scaled_dot_product_attention(
        queries.to_dense(q_QND), keys.to_dense(k_TND), keys.to_dense(v_TND), attn_mask=key_mask, dropout_p=dropout
    )
    return queries.from_dense(out_BNSD)
