"""embedding_layer_norm against torch's own operations with the same masks."""

import pytest
import torch
import torch.nn.functional as F

from bert_mlperf.kernels.dropout import keep_hidden
from bert_mlperf.kernels.embedding_layer_norm import OPERATIONS
from bert_mlperf.kernels.unsupported import Unsupported
from tests.kernels.acceptance import check_kernel
from tests.kernels.inputs import FAST, FP16, FP32, IMPLEMENTATIONS, masks, values

EMBED = OPERATIONS["embedding_layer_norm"]
SIZES = [(1, 64), (3, 1024), (17, 96), (1023, 130)]
EPSILON = 1e-12
VOCABULARY, POSITIONS = 50, 40


def of_torch(word, position, segment, weight, shift, ids, positions, segments, dropout=None):
    z = F.embedding(ids, word) + F.embedding(positions, position) + F.embedding(segments, segment)
    y = F.layer_norm(z, z.shape[1:], weight, shift, EPSILON)
    return y if dropout is None else y * (keep_hidden(dropout, y.shape[1]) * dropout.scale).to(y.dtype)


def inputs_of(tokens, hidden, dtype):
    tables = [values(n, hidden, dtype=dtype, seed=n) for n in (VOCABULARY, POSITIONS, 2)]
    norm = [values(hidden, dtype=dtype, seed=3) + 1, values(hidden, dtype=dtype, seed=4)]
    generator = torch.Generator().manual_seed(tokens)
    indices = [torch.randint(0, n, (tokens,), generator=generator) for n in (VOCABULARY, POSITIONS, 2)]
    return [*tables, *norm, *indices]


@pytest.mark.parametrize("tokens, hidden", SIZES)
@pytest.mark.parametrize("drops", [True, False], ids=["dropout", ""])
@pytest.mark.parametrize("name, dtype", IMPLEMENTATIONS)
def test_output_and_gradients(name, dtype, drops, tokens, hidden):
    if name == "triton" and drops:
        tokens = min(tokens, 150)  # the counter is slow in the interpreter
    dropout = masks(tokens) if drops else None
    check_kernel(
        lambda *tensors: EMBED[name](*tensors, epsilon=EPSILON, dropout=dropout),
        lambda *tensors: of_torch(*tensors, dropout),
        inputs_of(tokens, hidden, dtype),
        values(tokens, hidden, dtype=dtype, seed=5),
    )


@pytest.mark.parametrize("name", ["reference", "triton", "native"])
def test_the_gradient_of_the_words_is_sparse_with_a_row_for_each_token(name):
    tensors = inputs_of(17, 64, FP32)
    tensors[0].requires_grad_()
    (gradient,) = torch.autograd.grad(EMBED[name](*tensors, epsilon=EPSILON, dropout=None).square().sum(), tensors[:1])
    assert gradient.is_sparse and gradient._values().shape == (17, 64)
    assert torch.equal(gradient._indices()[0], tensors[5])


@pytest.mark.parametrize("name", FAST)
def test_no_tokens(name):
    tensors = inputs_of(0, 64, FP32)
    for tensor in tensors[:5]:
        tensor.requires_grad_()
    out = EMBED[name](*tensors, epsilon=EPSILON, dropout=masks(0))
    gradients = torch.autograd.grad(out.sum(), tensors[:5])
    assert out.shape == (0, 64) and all((g.to_dense() == 0).all() for g in gradients)


@pytest.mark.parametrize("name", FAST)
def test_bad_input_is_named(name):
    good = inputs_of(6, 64, FP32)
    for place, bad, dropout, sentence in (
        (1, values(POSITIONS, 32, dtype=FP32), None, r"position_PH has shape \(40, 32\), expected \(40, 64\)"),
        (3, good[3].half(), None, "weight_H is float16, expected float32 like the others"),
        (5, good[5].int(), None, "ids_T is int32, expected int64"),
        (6, good[6][:3], None, r"positions_T has shape \(3,\), expected \(6,\)"),
        (0, good[0][0], None, r"word_VH has shape \(64,\), expected \[vocabulary, hidden\]"),
        (0, good[0], masks(7), r"dropout.samples_R is torch.int32 \(7,\), expected torch.int32 \(6,\)"),
    ):
        tensors = [*good[:place], bad, *good[place + 1 :]]
        with pytest.raises(ValueError, match=sentence):
            EMBED[name](*tensors, epsilon=EPSILON, dropout=dropout)


def test_what_is_unsupported_says_so():
    with pytest.raises(Unsupported, match="float16 has no native CPU kernel"):
        EMBED["native"](*inputs_of(3, 64, FP16), epsilon=EPSILON, dropout=None)
    with pytest.raises(Unsupported, match="hidden size 8,193 is above 8,192"):
        EMBED["triton"](*inputs_of(1, 8193, FP32), epsilon=EPSILON, dropout=None)
