"""Sums of gradients, rounded once, with their squared norm: in the order of the parts, and exact to 1e-7."""

import pytest
import torch
from torch import Tensor

from bert_mlperf.kernels import native
from bert_mlperf.kernels.grad_norm_cast import BLOCK, OPERATIONS
from bert_mlperf.kernels.jit import HAS_TRITON, is_interpreted
from bert_mlperf.kernels.unsupported import Unsupported

SIZES = (1, 3, 17, 1023, BLOCK, 65_537)
FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16
RIGHT = {"reference": (FP32, BF16, FP16), "triton": (FP32, FP16), "native": (FP32, BF16)}
CASES = [
    (name, of_parts, of_out)
    for name, dtypes in RIGHT.items()
    for of_parts in dtypes
    for of_out in dtypes
    if FP32 in (of_parts, of_out) or of_parts == of_out
]


def run(name: str, parts: list[Tensor], out: Tensor) -> Tensor:
    if name == "native" and native.unavailable() is not None:
        pytest.skip(f"native: {native.unavailable()}")
    if name == "triton" and not (HAS_TRITON and is_interpreted()):
        pytest.skip("Triton's interpreter is not on")
    return OPERATIONS["grad_norm_cast"][name](parts, out)


def parts_of(number: int, size: int, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1000 * number + size)
    return [(torch.randn(size, generator=generator) * 10.0 ** -(i % 3)).to(dtype) for i in range(number)]


@pytest.mark.parametrize("number", [1, 2, 3, 5])
@pytest.mark.parametrize("name, of_parts, of_out", CASES)
def test_the_sum_is_fp32_in_the_order_of_the_parts_and_rounded_once(name, of_parts, of_out, number):
    for size in SIZES:
        parts = parts_of(number, size, of_parts)
        kept = [part.clone() for part in parts]
        out = torch.full((size + 2,), -7.25, dtype=of_out)
        got = out[:-2]
        squared = run(name, parts, got)
        total = parts[0].float()
        for part in parts[1:]:
            total = total + part.float()
        assert torch.equal(got, total.to(of_out)), size
        assert (out[-2:] == -7.25).all(), "nothing is written behind it"
        assert all(torch.equal(part, copy) for part, copy in zip(parts, kept, strict=True))
        assert squared.dtype == torch.float64 and squared.dim() == 0
        assert float(squared) == pytest.approx(float(got.double().square().sum()), rel=1e-12)


@pytest.mark.parametrize("name, dtype", [(name, dtype) for name, dtypes in RIGHT.items() for dtype in dtypes])
def test_one_part_that_is_the_target_is_only_measured(name, dtype):
    (out,) = parts_of(1, 10_001, dtype)
    before = out.clone()
    squared = run(name, [out], out)
    assert torch.equal(out, before)
    assert float(squared) == pytest.approx(float(before.double().square().sum()), rel=1e-12)


@pytest.mark.parametrize("name", RIGHT)
def test_a_later_part_may_not_be_lost_to_the_target(name):
    """The target may be the first of several parts: each element is read before it is written."""
    first, second = parts_of(2, 5000, FP32)
    wanted = first + second
    run(name, [first, second], first)
    assert torch.equal(first, wanted)


@pytest.mark.parametrize("name", RIGHT)
def test_nothing_adds_up_to_nothing(name):
    out = torch.empty(0)
    assert run(name, [torch.empty(0), torch.empty(0)], out) == 0
    assert run(name, [out], out) == 0


@pytest.mark.parametrize("value", [float("inf"), -float("inf"), float("nan")])
@pytest.mark.parametrize("name", RIGHT)
def test_what_is_not_finite_reaches_the_norm(name, value):
    for of_out in (FP32, RIGHT[name][1]):
        first, second = parts_of(2, 5000, FP32)
        first[4999] = value
        out = torch.empty(5000, dtype=of_out)
        assert not run(name, [first, second], out).isfinite()
        assert not out[4999].isfinite() and out[:4999].isfinite().all()


@pytest.mark.parametrize("name", ["reference", "triton"])
def test_what_overflows_when_it_is_rounded_reaches_the_norm(name):
    out = torch.empty(2, dtype=FP16)
    assert run(name, [torch.tensor([6e4, 1.0]), torch.tensor([6e4, 1.0])], out).isinf()


@pytest.mark.parametrize("kind", ["normal", "equal", "rounded"])
@pytest.mark.parametrize("name", ["reference", "native"])
def test_norms_are_exact_for_as_many_numbers_as_the_word_embeddings(name, kind):
    size = 30_522 * 1024
    x = {"normal": lambda: torch.randn(size), "equal": lambda: torch.full((size,), 0.1)}.get(
        kind, lambda: torch.randn(size).mul_(300).round_().div_(512)
    )()
    wanted = sum(float(row.double().square().sum()) for row in x.split(2**20))
    assert float(run(name, [x], x)) == pytest.approx(wanted, rel=1e-7)


def test_any_number_of_threads_gives_the_same_bits():
    parts, found, threads = parts_of(3, 300_001, FP32), [], torch.get_num_threads()
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            out = torch.empty(300_001)
            found.append((run("native", parts, out), out))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(squared, found[0][0]) and torch.equal(out, found[0][1]) for squared, out in found)


@pytest.mark.parametrize("name", RIGHT)
def test_bad_input_is_named_before_anything_is_written(name):
    out, part = torch.full((8,), -7.25), torch.ones(8)
    for parts, message in (
        ([], "parts is empty"),
        ([part, part[:4]], r"parts\[1\] has shape \(4,\), expected \[8\]"),
        ([torch.ones(16)[::2]], r"parts\[0\] has shape \(8,\), expected \[8\], contiguous"),
        ([part.view(2, 4)], r"parts\[0\] has shape \(2, 4\)"),
        ([part, part.bfloat16()], r"parts\[1\] has torch.bfloat16, expected torch.float32"),
        ([part.double()], r"parts\[0\] has torch.float64"),
        ([part.to("meta")], r"parts\[0\] is on meta, expected cpu"),
    ):
        with pytest.raises(ValueError, match=message):
            run(name, parts, out)
    with pytest.raises(ValueError, match=r"out has torch.int32"):
        run(name, [part], torch.zeros(8, dtype=torch.int32))
    assert (out == -7.25).all()


@pytest.mark.parametrize("of_parts, of_out", [(FP16, FP32), (FP32, FP16)])
def test_fp16_is_refused_by_the_native_kernel_before_anything_is_written(of_parts, of_out):
    out = torch.full((8,), -7.25, dtype=of_out)
    with pytest.raises(Unsupported, match="float16 has no native CPU kernel"):
        run("native", [torch.ones(8, dtype=of_parts)], out)
    assert (out == -7.25).all()
