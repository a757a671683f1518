"""Attention against torch's softmax and products, sample by sample, with the same masks."""

import math
from itertools import pairwise

import pytest
import torch

from bert_mlperf.kernels.attention import OPERATIONS, AttentionRows
from bert_mlperf.kernels.dropout import Dropout, keep_attention
from bert_mlperf.kernels.unsupported import Unsupported
from tests.kernels.acceptance import check_kernel
from tests.kernels.inputs import FAST, FP16, FP32, IMPLEMENTATIONS, values

ATTENTION = OPERATIONS["attention"]
HEADS = 2
LENGTHS = [[1], [3, 1, 17], [33, 64, 65, 128]]
SIZES = {"reference": [16, 64, 80], "triton": [16, 64], "native": [8, 16, 64, 80]}


def bounds_of(lengths):
    return tuple(torch.tensor([0, *lengths]).cumsum(0).tolist())


def rows_of(queries, keys):
    bounds = [bounds_of(queries), bounds_of(keys)]
    return AttentionRows(*(torch.tensor(b, dtype=torch.int32) for b in bounds), *bounds)


def some_of(keys):
    """How many queries each sample has in the last layer, and where they are in their sample."""
    counts = [max(1, n // 4) for n in keys]
    places = [torch.arange(count) * (n // count) for n, count in zip(keys, counts, strict=True)]
    return counts, torch.cat(places)


def dropout_of(counts, positions):
    samples = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts)) + 77
    return Dropout(0.2, 2**62 + 99, samples.int(), positions.int())


def of_torch(queries, keys, rows, dropout):
    """Output from queries [Q, N, D] and keys and values [T, 2, N, D]."""
    found = []
    for (q0, q1), (k0, k1) in zip(pairwise(rows.query_bounds), pairwise(rows.key_bounds), strict=True):
        scores = torch.einsum("qnd,knd->nqk", queries[q0:q1], keys[k0:k1, 0]) / math.sqrt(queries.shape[2])
        weights = scores.softmax(-1)
        if dropout is not None:
            of_sample = Dropout(dropout.probability, dropout.key, dropout.samples_R[q0:q1], dropout.positions_R[q0:q1])
            keep = torch.stack([keep_attention(of_sample, head, k1 - k0) for head in range(queries.shape[1])])
            weights = weights * (keep * dropout.scale).to(weights.dtype)
        found.append(torch.einsum("nqk,knd->qnd", weights, keys[k0:k1, 1]))
    return torch.cat(found)


def check_self(name, dtype, lengths, size, drops):
    rows, tokens = rows_of(lengths, lengths), sum(lengths)
    dropout = dropout_of(lengths, torch.cat([torch.arange(n) for n in lengths])) if drops else None
    check_kernel(
        lambda packed: ATTENTION[name](packed, rows, dropout=dropout),
        lambda packed: of_torch(packed[:, 0], packed[:, 1:], rows, dropout),
        [values(tokens, 3, HEADS, size, dtype=dtype)],
        values(tokens, HEADS, size, dtype=dtype, seed=1),
    )


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("drops", [True, False], ids=["dropout", ""])
@pytest.mark.parametrize("name, dtype", IMPLEMENTATIONS)
def test_every_token_asks(name, dtype, drops, lengths):
    for size in SIZES[name]:
        check_self(name, dtype, lengths, size, drops)


@pytest.mark.parametrize("name, dtype", IMPLEMENTATIONS)
def test_the_longest_sample(name, dtype):
    check_self(name, dtype, [2, 512, 511], 64, name != "triton")


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("drops", [True, False], ids=["dropout", ""])
@pytest.mark.parametrize("name, dtype", IMPLEMENTATIONS)
def test_some_tokens_ask(name, dtype, drops, lengths):
    counts, positions = some_of(lengths)
    rows = rows_of(counts, lengths)
    dropout = dropout_of(counts, positions) if drops else None
    check_kernel(
        lambda queries, keys: ATTENTION[name](keys, rows, queries_QND=queries, dropout=dropout),
        lambda queries, keys: of_torch(queries, keys, rows, dropout),
        [values(sum(counts), HEADS, 64, dtype=dtype), values(sum(lengths), 2, HEADS, 64, dtype=dtype, seed=1)],
        values(sum(counts), HEADS, 64, dtype=dtype, seed=2),
    )


@pytest.mark.parametrize("name", FAST)
def test_large_scores_stay_finite(name):
    packed = 30 * values(20, 3, HEADS, 64, dtype=FP32)
    rows = rows_of([20], [20])
    assert torch.allclose(ATTENTION[name](packed, rows), of_torch(packed[:, 0], packed[:, 1:], rows, None), atol=1e-3)


@pytest.mark.parametrize("name", ["reference", *FAST])
def test_no_samples(name):
    packed = torch.empty(0, 3, HEADS, 64, requires_grad=True)
    out = ATTENTION[name](packed, rows_of([], []))
    assert out.shape == (0, HEADS, 64)
    assert torch.autograd.grad(out.sum(), packed)[0].shape == packed.shape


@pytest.mark.parametrize("name", FAST)
def test_strided_inputs_are_the_same_numbers(name):
    wide, rows = values(9, 3, HEADS, 64, 2, dtype=FP32), rows_of([4, 5], [4, 5])
    assert torch.equal(ATTENTION[name](wide[..., 0], rows), ATTENTION[name](wide[..., 0].contiguous(), rows))


@pytest.mark.parametrize("name", ["reference", *FAST])
def test_bad_input_is_named(name):
    packed, rows = values(9, 3, HEADS, 64, dtype=FP32), rows_of([4, 5], [4, 5])
    queries = values(3, HEADS, 64, dtype=FP32)
    offsets = torch.tensor([0, 12, 9], dtype=torch.int32)
    for tensor, where, options, sentence in (
        (packed[:8], rows, {"queries_QND": None}, "expected"),
        (packed[:, :2], rows, {}, r"packed has shape \(9, 2, 2, 64\), expected \[tokens, 3, heads, size\]"),
        (packed, rows, {"queries_QND": queries}, r"expected \[tokens, 2, heads, size\]: key and value, beside"),
        (packed[:, :2], rows_of([1, 1], [4, 5]), {"queries_QND": queries}, r"queries_QND has shape \(3, 2, 64\)"),
        (packed[:, :2], rows_of([1, 2], [4, 5]), {"queries_QND": queries.half()}, "queries_QND is float16, expected"),
        (
            packed,
            AttentionRows(offsets, offsets, (0, 12, 9), (0, 12, 9)),
            {},
            r"query_bounds are \(0, 12, 9\), expected",
        ),
        (
            packed[:, :2],
            rows_of([3], [4, 5]),
            {"queries_QND": queries},
            "queries are those of 1 samples, the keys of 2",
        ),
        (
            packed,
            rows,
            {"dropout": dropout_of([4], torch.arange(4))},
            r"dropout.samples_R is torch.int32 \(4,\), expected torch.int32 \(9,\)",
        ),
    ):
        with pytest.raises(ValueError, match=sentence):
            ATTENTION[name](tensor, where, **options)


def test_what_the_native_kernel_does_not_do():
    rows = rows_of([2], [2])
    with pytest.raises(Unsupported, match="float16 has no native CPU kernel"):
        ATTENTION["native"](values(2, 3, 2, 16, dtype=FP16), rows)
    with pytest.raises(Unsupported, match="head size 257 is above 256"):
        ATTENTION["native"](values(2, 3, 2, 257, dtype=FP32), rows)
