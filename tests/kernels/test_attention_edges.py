"""Attention where a sample asks nothing, has no keys, or all scores are far below zero."""

import pytest
import torch

from bert_mlperf.kernels.attention import OPERATIONS
from tests.kernels.acceptance import check_kernel
from tests.kernels.inputs import FAST, FP32, values
from tests.kernels.test_attention import HEADS, of_torch, rows_of

ATTENTION = OPERATIONS["attention"]


@pytest.mark.parametrize("counts", [[2, 0, 3], [0, 0, 0]], ids=str)
@pytest.mark.parametrize("name", ["reference", *FAST])
def test_a_sample_may_ask_nothing(name, counts):
    rows = rows_of(counts, [5, 4, 9])
    check_kernel(
        lambda queries, keys: ATTENTION[name](keys, rows, queries_QND=queries),
        lambda queries, keys: of_torch(queries, keys, rows, None),
        [values(sum(counts), HEADS, 64, dtype=FP32), values(18, 2, HEADS, 64, dtype=FP32, seed=1)],
        values(sum(counts), HEADS, 64, dtype=FP32, seed=2),
    )


@pytest.mark.parametrize("name", FAST)
def test_keys_beyond_the_end_have_no_share_of_scores_far_below_zero(name):
    """Scores are about -128 and exp(128) is infinite: a missing key, whose score is 0, must reach no gradient."""
    packed, rows = values(20, 3, HEADS, 64, dtype=FP32, scale=0.1), rows_of([3, 17], [3, 17])
    packed[:, 0] += 4.0
    packed[:, 1] -= 4.0
    check_kernel(
        lambda x: ATTENTION[name](x, rows),
        lambda x: of_torch(x[:, 0], x[:, 1:], rows, None),
        [packed],
        values(20, HEADS, 64, dtype=FP32, seed=1),
    )


@pytest.mark.parametrize("name", ["reference", *FAST])
def test_without_keys_the_output_is_zero(name):
    queries, keys = values(5, HEADS, 64, dtype=FP32), values(4, 2, HEADS, 64, dtype=FP32, seed=1)
    leaves = [queries.requires_grad_(), keys.requires_grad_()]
    out = ATTENTION[name](keys, rows_of([2, 3], [0, 4]), queries_QND=queries)
    gradients = torch.autograd.grad(out.square().sum(), leaves)
    assert (out[:2] == 0).all() and (gradients[0][:2] == 0).all()
    assert all(g.isfinite().all() for g in gradients) and (gradients[0][2:] != 0).any()
