"""What would have been read or written outside of memory, or in another type, is refused or does not matter."""

import ctypes

import pytest
import torch

from bert_mlperf.kernels import native
from bert_mlperf.kernels.attention import AttentionRows
from bert_mlperf.kernels.dropout import Dropout
from bert_mlperf.kernels.lamb_table import LambPiece
from bert_mlperf.kernels.native import BuildError
from bert_mlperf.kernels.registry import KERNELS, select

NATIVE = select(torch.device("cpu"))


def int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.parametrize(
    "ids, positions, segments, sentence",
    [
        ([10**11, 3], [0, 1], [0, 1], r"ids_T holds 100000000000, expected 0 to 49"),
        ([50, 3], [0, 1], [0, 1], r"ids_T holds 50, expected 0 to 49"),
        ([-1, 3], [0, 1], [0, 1], r"ids_T holds -1, expected 0 to 49"),
        ([1, 3], [0, 40], [0, 1], r"positions_T holds 40, expected 0 to 39"),
        ([1, 3], [0, 1], [0, 2], r"segments_T holds 2, expected 0 to 1"),
    ],
)
def test_indices_outside_the_tables(ids, positions, segments, sentence):
    tables = [torch.randn(size, 8) for size in (50, 40, 2)]
    indices = [torch.tensor(values) for values in (ids, positions, segments)]
    with pytest.raises(IndexError, match=sentence):
        NATIVE.embedding_layer_norm(*tables, torch.ones(8), torch.zeros(8), *indices, epsilon=1e-12, dropout=None)


@pytest.mark.parametrize("label", [-1, -100, 30, 2**40])
def test_labels_outside_the_vocabulary(label):
    with pytest.raises(IndexError, match=f"labels_M holds {label}, expected 0 to 29"):
        NATIVE.linear_cross_entropy(torch.randn(2, 8), torch.randn(30, 8), torch.randn(30), torch.tensor([3, label]))


@pytest.mark.parametrize("default", [torch.bfloat16, torch.float64])
def test_the_default_dtype_does_not_matter(default):
    x, bias, labels = torch.randn(300, 96), torch.randn(96), torch.randint(0, 96, (300,))
    weight = torch.randn(96, 96)

    def results():
        leaves = [t.clone().requires_grad_() for t in (x, bias, weight)]
        y = NATIVE.bias_gelu(leaves[0], leaves[1])
        loss = NATIVE.linear_cross_entropy(y, leaves[2], leaves[1], labels)
        return [loss, *torch.autograd.grad(loss, leaves)]

    expected = results()
    torch.set_default_dtype(default)
    try:
        found = results()
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_autocast_does_not_matter():
    inputs = torch.randn(5, 8), torch.randn(30, 8), torch.randn(30), torch.arange(5)
    expected = NATIVE.linear_cross_entropy(*inputs)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(NATIVE.linear_cross_entropy(*inputs), expected)


@pytest.mark.parametrize("implementation", ["native", "reference"])
def test_samples_and_positions_of_dropout_may_be_strided(implementation):
    drop = KERNELS["dropout_add_layer_norm"].OPERATIONS["dropout_add_layer_norm"][implementation]
    x, ones = torch.randn(40, 16), torch.ones(16)
    samples, positions = torch.arange(80, dtype=torch.int32) // 7, torch.arange(80, dtype=torch.int32) % 7
    strided = Dropout(0.3, 5, samples[::2], positions[::2])
    packed = Dropout(0.3, 5, samples[::2].clone(), positions[::2].clone())
    results = [drop(x, None, x, ones, ones, epsilon=1e-12, dropout=d) for d in (strided, packed)]
    assert torch.equal(*results)
    one = Dropout(0.3, 5, int32(3).expand(40), torch.arange(40, dtype=torch.int32))
    assert drop(x, None, x, ones, ones, epsilon=1e-12, dropout=one).isfinite().all()


@pytest.mark.parametrize("probability", [-0.1, 0.999995, 1.0, 1.5, float("nan")])
def test_probabilities_that_cannot_be(probability):
    with pytest.raises(ValueError, match="the dropout probability is"):
        Dropout(probability, 1, int32(0), int32(0))


def test_offsets_that_differ_from_the_bounds():
    with pytest.raises(ValueError, match="key_offsets_B1 and key_bounds differ"):
        AttentionRows(int32(0, 10, 20), int32(0, 5, 20), (0, 10, 20), (0, 10, 20))


def test_a_piece_before_its_buffer():
    with pytest.raises(ValueError, match="begins before its buffer"):
        LambPiece(0, -(10**9), 0, 0, 100)


def test_a_tensor_that_is_not_on_the_cpu():
    with pytest.raises(ValueError, match="the native kernels are for the CPU, got a tensor on meta"):
        native.call("bias_gelu_forward_f32", torch.empty(4, device="meta"))


@pytest.mark.parametrize("implementation", ["reference", "native"])
def test_the_sum_may_lie_in_any_of_its_parts(implementation):
    add_up = KERNELS["grad_norm_cast"].OPERATIONS["grad_norm_cast"][implementation]
    for target in range(3):
        parts = [torch.full((5,), value) for value in (1.0, 10.0, 100.0)]
        squares = add_up(parts, parts[target])
        assert parts[target].tolist() == 5 * [111.0] and squares.item() == 5 * 111.0**2


def test_a_foreign_library_under_the_name_of_ours(monkeypatch):
    library = ctypes.CDLL(None)
    monkeypatch.setattr(native.ctypes, "CDLL", lambda path: library)
    with pytest.raises(BuildError, match=r"is not the library of the kernels; remove it"):
        native.library.__wrapped__()


def test_a_compiler_that_cannot_be_run_or_says_nothing(tmp_path, monkeypatch):
    program = tmp_path / "compiler"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", str(program))
    program.write_bytes(b"\x7fELF of nothing")
    program.chmod(0o755)
    with pytest.raises(BuildError, match="cannot be made or loaded"):
        native.library.__wrapped__()
    program.write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(BuildError, match="cannot build it: exit code 3, without a word"):
        native.library.__wrapped__()
