"""linear_cross_entropy and count_correct against torch's linear and cross_entropy, in one chunk and in several."""

import pytest
import torch
import torch.nn.functional as F

from bert_mlperf.kernels import linear_cross_entropy
from bert_mlperf.kernels.linear_cross_entropy import OPERATIONS, chunks
from bert_mlperf.kernels.unsupported import Unsupported
from tests.kernels.acceptance import check_kernel
from tests.kernels.inputs import BF16, FAST, FP16, FP32, IMPLEMENTATIONS, values

LOSS, COUNT = OPERATIONS["linear_cross_entropy"], OPERATIONS["count_correct"]
SIZES = [(1, 64, 37), (3, 96, 1000), (17, 64, 2049), (130, 64, 37)]
SETTINGS = {
    "one chunk, kept": (2**26, 2**25),
    "one chunk": (2**26, 0),
    "chunks": (2000, 0),
    "chunks, kept": (2000, 2**25),
}


@pytest.fixture(params=SETTINGS)
def chunking(request, monkeypatch):
    chunk, kept = SETTINGS[request.param]
    monkeypatch.setattr(linear_cross_entropy, "CHUNK", chunk)
    monkeypatch.setattr(linear_cross_entropy, "KEPT", kept)


def of_torch(x, weight, bias, labels):
    logits = F.linear(x, weight, bias)
    return F.cross_entropy(logits if x.dtype == torch.float64 else logits.float(), labels, reduction="sum")


def inputs_of(rows, hidden, vocabulary, dtype):
    x, weight = values(rows, hidden, dtype=dtype), values(vocabulary, hidden, dtype=dtype, seed=1, scale=0.2)
    labels = torch.randint(0, vocabulary, (rows,), generator=torch.Generator().manual_seed(3))
    return [x, weight, values(vocabulary, dtype=dtype, seed=2), labels]


@pytest.mark.parametrize("upstream", [0.37, 4096.0])
@pytest.mark.parametrize("rows, hidden, vocabulary", SIZES)
@pytest.mark.parametrize("name, dtype", IMPLEMENTATIONS)
def test_loss_and_gradients(name, dtype, rows, hidden, vocabulary, upstream, chunking):
    check_kernel(LOSS[name], of_torch, inputs_of(rows, hidden, vocabulary, dtype), torch.tensor(upstream))


@pytest.mark.parametrize("name", ["reference", *FAST])
def test_without_masked_tokens_the_loss_is_zero_and_so_are_the_gradients(name, chunking):
    tensors = inputs_of(0, 64, 37, FP32)
    leaves = [tensor.requires_grad_() for tensor in tensors[:3]]
    loss = LOSS[name](*tensors)
    assert loss.item() == 0 and loss.dtype == FP32
    assert all((gradient == 0).all() for gradient in torch.autograd.grad(loss, leaves))
    assert COUNT[name](*tensors).item() == 0


@pytest.mark.parametrize("name", FAST)
def test_very_large_logits_give_a_finite_loss(name, chunking):
    x, weight, bias, labels = inputs_of(5, 64, 37, FP32)
    loss = LOSS[name](100 * x, weight, bias, labels)
    assert loss.item() == pytest.approx(of_torch(100 * x, weight, bias, labels).item(), rel=1e-5)


@pytest.mark.parametrize("name", ["reference", *FAST])
@pytest.mark.parametrize("dtype", [FP32, BF16])
def test_correct_ones_are_those_of_the_arg_max(name, dtype, chunking):
    x, weight, bias, labels = inputs_of(130, 64, 37, dtype)
    predicted = F.linear(x, weight, bias).argmax(-1)
    labels = torch.where(torch.arange(130) % 3 == 0, predicted, labels)
    expected = (predicted == labels).sum()
    found = COUNT[name](x, weight, bias, labels)
    assert 44 <= expected < 130 and torch.equal(found, expected) and found.dtype == torch.int64


@pytest.mark.parametrize("name", ["reference", *FAST])
def test_of_equal_logits_the_first_counts(name, chunking):
    x, weight = torch.ones(2, 8), torch.zeros(300, 8)
    weight[[7, 290]] = 1
    assert COUNT[name](x, weight, torch.zeros(300), torch.tensor([7, 290])).item() == 1


@pytest.mark.parametrize("rows, vocabulary", [(1, 1), (7, 30522), (300, 30522), (10_000, 30522), (10**9, 5), (0, 9)])
def test_chunks_cover_the_vocabulary_once_and_are_small(rows, vocabulary):
    parts = list(chunks(rows, torch.empty(vocabulary, 1, dtype=BF16)))
    assert [part.start for part in parts] == [0, *[part.stop for part in parts[:-1]]] and parts[-1].stop == vocabulary
    assert all((part.stop - part.start) * rows * 2 <= 2**26 or part.stop - part.start == 1 for part in parts)
    assert len(parts) == 1 or rows > 300


@pytest.mark.parametrize("name", FAST)
def test_bad_input_is_named(name):
    x, weight, bias, labels = inputs_of(6, 64, 37, FP32)
    for tensors, sentence in (
        ((x, weight[:, :32], bias, labels), r"weight_VH has shape \(37, 32\), expected \(37, 64\)"),
        ((x, weight, bias[:5], labels), r"bias_V has shape \(5,\), expected \(37,\)"),
        ((x, weight.half(), bias, labels), "weight_VH is float16, expected float32 like the others"),
        ((x, weight, bias, labels[:5]), r"labels_M has shape \(5,\), expected \(6,\)"),
        ((x, weight, bias, labels.int()), "labels_M is int32, expected int64"),
        ((x[0], weight, bias, labels), r"x_MH has shape \(64,\), expected two dimensions"),
    ):
        with pytest.raises(ValueError, match=sentence):
            LOSS[name](*tensors)
        if "is float16" not in sentence:
            with pytest.raises(ValueError, match=sentence):
                COUNT[name](*tensors)


def test_fp16_is_not_for_the_native_kernel():
    with pytest.raises(Unsupported, match="float16 has no native CPU kernel"):
        LOSS["native"](*inputs_of(3, 64, 37, FP16))
