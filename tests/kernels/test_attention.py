"""Variable-length attention against its reference, forward and gradients."""

import pytest
import torch

from bert_mlperf.kernels.attention import RaggedRows, attention, attention_reference

CASES = [([5], [5]), ([1, 3], [1, 17]), ([2, 2], [8, 8]), ([1, 5, 2], [512, 5, 1])]


def offsets(lengths: list[int]) -> torch.Tensor:
    return torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)


def inputs(rows: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(rows, 2, 8, generator=torch.Generator().manual_seed(rows)).to(dtype).requires_grad_()


def run(queries: list[int], keys: list[int], dtype: torch.dtype, function) -> list[torch.Tensor]:
    q, k, v = inputs(sum(queries), dtype), inputs(sum(keys), dtype), inputs(sum(keys), dtype)
    out = function(q, k, v)
    upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    return [out, *torch.autograd.grad(out, (q, k, v), upstream)]


@pytest.mark.parametrize("queries, keys", CASES, ids=str)
def test_output_and_gradients_equal_the_reference(queries, keys):
    rows = [RaggedRows.from_offsets(offsets(n), sum(n), max(n)) for n in (queries, keys)]

    def ours(q, k, v):
        return attention(q, k, v, queries=rows[0], keys=rows[1], key_mask=rows[1].key_mask())

    def reference(q, k, v):
        return attention_reference(q, k, v, offsets(queries), offsets(keys))

    got = run(queries, keys, torch.float32, ours)
    wanted = run(queries, keys, torch.float64, reference)
    for g, w in zip(got, wanted, strict=True):
        assert (g - w).abs().max() <= 2e-6 * w.abs().max()


def test_full_samples_need_neither_mask_nor_copy():
    rows = RaggedRows.from_offsets(offsets([4, 4]), 8, 4)
    assert rows.rows is None and rows.key_mask() is None
