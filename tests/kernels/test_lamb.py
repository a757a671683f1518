"""Both passes of LAMB on a shard are what torch gives in float64; what lies between tensors is left alone."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from bert_mlperf.kernels import lamb, native
from bert_mlperf.kernels.jit import HAS_TRITON, is_interpreted
from bert_mlperf.kernels.lamb import OPERATIONS
from bert_mlperf.kernels.lamb_table import BLOCK, LambPiece, LambTable
from bert_mlperf.kernels.unsupported import Unsupported
from tests.kernels.acceptance import assert_within

CPU = torch.device("cpu")
NUMBERS = (0.7, 0.1, 1e-3, 2e-6, 0.03)  # c, a, b, e, d
GAP = 5  # elements between tensors: nobody looks at them
SENTINEL = -7.25
SIZES = {
    "small": (1, 3, 17, 64, 1023),
    "one": (1,),
    "blocks": (BLOCK - 1, BLOCK, BLOCK + 1, 16),
    "large": (65_537, 2),
}


@pytest.fixture(params=["reference", "triton", "native"])
def implementation(request) -> str:
    if request.param == "native" and native.unavailable() is not None:
        pytest.skip(f"native: {native.unavailable()}")
    if request.param == "triton" and not (HAS_TRITON and is_interpreted()):
        pytest.skip("Triton's interpreter is not on")
    return request.param


@dataclass
class Shard:
    """State of a shard, updated in place, and what it is updated with."""

    table: LambTable
    gradient: Tensor
    first_moment: Tensor
    second_moment: Tensor
    weights: Tensor
    numbers: Tensor
    factors: Tensor

    def copy(self, dtype: torch.dtype = torch.float32) -> "Shard":
        """Of another dtype, float64 or fp32, or only copied."""
        names = ("gradient", "first_moment", "second_moment", "weights")
        return replace(self, **{name: getattr(self, name).to(dtype, copy=True) for name in names})

    def directions(self, implementation: str, *, zero_not_finite: bool = False) -> Tensor:
        return OPERATIONS["lamb_directions"][implementation](
            self.table, self.gradient, self.weights, self.first_moment, self.second_moment, self.numbers,
            zero_not_finite=zero_not_finite,
        )  # fmt: skip

    def apply(self, implementation: str, rounded: Tensor | None = None) -> None:
        OPERATIONS["lamb_apply"][implementation](self.table, self.gradient, self.weights, self.factors, rounded)


def shard_of(sizes: tuple[int, ...], *, alignment: int = 1) -> Shard:
    """Tensor i has sizes[i] elements, is adapted if i is even, begins at a multiple of `alignment`, and lies elsewhere
    in the weights than in the gradient. The last one is there in two runs, tensor len(sizes) not at all."""
    pieces, at = [], GAP
    for i, size in [*enumerate(sizes), (len(sizes) - 1, 33)]:
        start = -(-at // alignment) * alignment
        pieces.append(LambPiece(i, start, start + 2 * alignment, start + 3 * alignment, size))
        at = start + size + GAP
    adapted = [i % 2 == 0 for i in range(len(sizes) + 1)]
    generator = torch.Generator().manual_seed(sum(sizes))
    num_elements = at + 4 * alignment

    def normal(scale: float) -> Tensor:
        return scale * torch.randn(num_elements, generator=generator)

    shard = Shard(
        table=LambTable.of(pieces[::-1], adapted, CPU),
        gradient=normal(0.1),
        first_moment=normal(0.05),
        second_moment=normal(0.05).square(),
        weights=normal(0.3),
        numbers=torch.tensor(NUMBERS, dtype=torch.float64),
        factors=-torch.rand(len(adapted), dtype=torch.float64, generator=generator),
    )
    for x, which in ((shard.gradient, 0), (shard.first_moment, 0), (shard.second_moment, 0), (shard.weights, 1)):
        x[between(shard.table, num_elements, which)] = SENTINEL
    return shard


def between(table: LambTable, num_elements: int, which: int) -> Tensor:
    """Bool [elements]: what is in no tensor of the shard (0), the weights (1) or the buffer (2)."""
    mask = torch.ones(num_elements, dtype=torch.bool)
    for p in table.pieces:
        start = (p.shard_start, p.weight_start, p.buffer_start)[which]
        mask[start : start + p.length] = False
    return mask


def torch_step(shard: Shard) -> Tensor:
    """The equations in plain torch, in place, one run of elements after the other; the squares [2, T]."""
    clip, a, b, epsilon, decay = NUMBERS
    squares = torch.zeros(2, len(shard.table.adapted), dtype=torch.float64)
    for p in shard.table.pieces:
        here = slice(p.shard_start, p.shard_start + p.length)
        w = shard.weights[p.weight_start : p.weight_start + p.length]
        g = clip * shard.gradient[here]
        m = (1 - a) * shard.first_moment[here] + a * g
        v = (1 - b) * shard.second_moment[here] + b * g * g
        z = m / (v.sqrt() + epsilon)
        if shard.table.adapted[p.tensor]:
            z = z + decay * w
            squares[0, p.tensor] += w.double().square().sum()
            squares[1, p.tensor] += z.double().square().sum()
        shard.first_moment[here], shard.second_moment[here], shard.gradient[here] = m, v, z
        w += shard.factors[p.tensor].item() * z
    return squares


@pytest.mark.parametrize("alignment", [1, 16])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_both_passes_are_within_the_rule(implementation, sizes, alignment):
    start = shard_of(sizes, alignment=alignment)
    assert start.table.is_aligned == (alignment == 16)
    got, usual, exact = start.copy(), start.copy(), start.copy(torch.float64)
    squares = got.directions(implementation)
    got.apply(implementation)
    torch_step(usual)
    wanted = torch_step(exact)
    assert squares.dtype == torch.float64
    assert torch.allclose(squares, wanted, rtol=1e-6, atol=0.0)
    assert (squares[:, 1::2] == 0).all(), "what is not adapted has no norms"
    for name in ("first_moment", "second_moment", "gradient", "weights"):
        of_all = [getattr(shard, name) for shard in (got, usual, exact)]
        assert_within(*of_all, dtype=torch.float32, what=name)
        untouched = between(start.table, of_all[0].numel(), int(name == "weights"))
        assert (of_all[0][untouched] == SENTINEL).all(), f"{name} between tensors"


def test_sums_of_many_blocks_are_added_up_in_several_turns(monkeypatch):
    """The 17 blocks of the large tensor in turns of 4, where the default is 1,024."""
    if not (HAS_TRITON and is_interpreted()):
        pytest.skip("Triton's interpreter is not on")
    at_once, in_turns = shard_of(SIZES["large"]), shard_of(SIZES["large"])
    wanted = at_once.directions("triton")
    monkeypatch.setattr(lamb, "CHUNK", 4)
    assert torch.allclose(in_turns.directions("triton"), wanted, rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_new_weights_are_rounded_into_the_whole_buffer(implementation, dtype):
    if implementation == "triton" and dtype == torch.bfloat16:
        pytest.skip("the interpreter's bf16 is wrong in some versions")
    if implementation == "native" and dtype == torch.float16:
        pytest.skip("fp16 is the reference's on a CPU")
    shard = shard_of(SIZES["small"])
    rounded = torch.full((shard.weights.numel() + 3,), SENTINEL, dtype=dtype)
    shard.apply(implementation, rounded)
    for p in shard.table.pieces:
        new = shard.weights[p.weight_start : p.weight_start + p.length]
        assert torch.equal(rounded[p.buffer_start : p.buffer_start + p.length], new.to(dtype))
    assert (rounded[between(shard.table, rounded.numel(), 2)] == SENTINEL).all()


def test_a_skipped_step_changes_no_bit(implementation):
    """As for a gradient that overflowed: c, a, b and all factors are 0."""
    shard = shard_of(SIZES["small"])
    shard.gradient[GAP::2], shard.gradient[GAP + 3], shard.gradient[GAP + 7] = float("inf"), float("nan"), -float("inf")
    shard.numbers[:3] = 0.0
    shard.factors.zero_()
    before = shard.copy()
    squares = shard.directions(implementation, zero_not_finite=True)
    shard.apply(implementation)
    assert squares.isfinite().all()
    for name in ("first_moment", "second_moment", "weights"):
        assert torch.equal(getattr(shard, name), getattr(before, name)), name


def test_what_is_not_finite_counts_as_zero_only_where_it_may(implementation):
    zeros, lost = shard_of((64,)), shard_of((64,))
    bad = torch.tensor([GAP, GAP + 9, GAP + 11])
    for shard in (zeros, lost):
        shard.gradient[bad] = torch.tensor([float("inf"), float("nan"), -float("inf")])
    wanted = zeros.copy()
    wanted.gradient[bad] = 0.0
    squares = zeros.directions(implementation, zero_not_finite=True)
    assert torch.equal(squares, wanted.directions(implementation))
    for name in ("gradient", "first_moment", "second_moment"):
        assert torch.equal(getattr(zeros, name), getattr(wanted, name)), name
    assert not lost.directions(implementation).isfinite().all()
    assert not lost.first_moment[bad].isfinite().any()


def test_an_empty_shard_has_norms_of_zero(implementation):
    shard = replace(shard_of((3,)), table=LambTable.of([], [True, False], CPU), factors=torch.zeros(2).double())
    before = shard.copy()
    assert torch.equal(shard.directions(implementation), torch.zeros(2, 2, dtype=torch.float64))
    shard.apply(implementation)
    assert torch.equal(shard.gradient, before.gradient) and torch.equal(shard.weights, before.weights)


def test_zeros_stay_zeros(implementation):
    """A tensor that never had a gradient: its direction is its decay alone."""
    shard = shard_of((100,))
    for x in (shard.gradient, shard.first_moment, shard.second_moment):
        x.zero_()
    shard.directions(implementation)
    piece = shard.table.pieces[0]
    w = shard.weights[piece.weight_start : piece.weight_start + 100]
    assert torch.allclose(shard.gradient[piece.shard_start : piece.shard_start + 100], NUMBERS[4] * w, rtol=1e-6)
    assert (shard.first_moment == 0).all() and (shard.second_moment == 0).all()


def test_any_number_of_threads_gives_the_same_bits():
    if native.unavailable() is not None:
        pytest.skip(f"native: {native.unavailable()}")
    found, threads = [], torch.get_num_threads()
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            shard = shard_of((65_537, 5, 4 * BLOCK, 100_003))
            found.append((shard.directions("native"), shard))
            shard.apply("native")
    finally:
        torch.set_num_threads(threads)
    for squares, shard in found[1:]:
        assert torch.equal(squares, found[0][0])
        assert all(
            torch.equal(getattr(shard, n), getattr(found[0][1], n)) for n in ("weights", "gradient", "second_moment")
        )


BAD = {  # argument -> what is wrong -> what it becomes
    "gradient": ("gradient has torch.float16", lambda x: x.half()),
    "first_moment": ("first_moment has 9 elements, expected at least", lambda x: x[:9]),
    "second_moment": ("second_moment has shape .*, expected one contiguous", lambda x: torch.stack([x, x], 1)[:, 0]),
    "weights": ("weights has torch.float64", lambda x: x.double()),
    "numbers": ("numbers has torch.float32, expected torch.float64", lambda x: x.float()),
    "factors": ("factors has 3 elements, expected 6", lambda x: x[:3]),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("implementation", ["native", "triton"])
def test_bad_input_is_named_before_anything_is_written(implementation, name):
    shard = shard_of(SIZES["small"])
    message, change = BAD[name]
    bad = replace(shard, **{name: change(getattr(shard, name))})
    before = shard.copy()
    with pytest.raises(ValueError, match=message):
        if name == "factors":
            bad.apply(implementation)
        else:
            bad.directions(implementation)
    assert all(torch.equal(getattr(shard, n), getattr(before, n)) for n in ("gradient", "first_moment", "weights"))


@pytest.mark.parametrize("implementation", ["native", "triton"])
def test_rounded_weights_of_a_wrong_dtype_or_size_are_refused(implementation):
    shard = shard_of(SIZES["small"])
    with pytest.raises(ValueError, match=r"rounded has torch.float32, expected torch.bfloat16 or torch.float16"):
        shard.apply(implementation, shard.weights.clone())
    with pytest.raises(ValueError, match=r"rounded has 4 elements, expected at least"):
        shard.apply(implementation, torch.zeros(4, dtype=torch.bfloat16))


def test_fp16_weights_are_refused_by_the_native_kernel_before_anything_is_written():
    shard = shard_of(SIZES["small"])
    before = shard.copy()
    with pytest.raises(Unsupported, match="float16 has no native CPU kernel"):
        shard.apply("native", torch.zeros(shard.weights.numel() + 3, dtype=torch.float16))
    assert torch.equal(shard.weights, before.weights)


def test_blocks_cover_each_piece_once_in_the_order_of_the_tensors():
    table = shard_of(SIZES["blocks"]).table
    assert table.bounds.tolist() == [0, 1, 2, 4, 6, 6]  # the last tensor is in two runs, one more is nowhere
    covered = [i for start, *_, n, _, _ in table.blocks_BF.tolist() for i in range(start, start + n)]
    assert sorted(covered) == sorted(i for p in table.pieces for i in range(p.shard_start, p.shard_start + p.length))
    assert table.blocks_BF[:, 3].max() == BLOCK
    for start, weight, buffer, length, tensor, adapted in table.blocks_BF.tolist():
        (piece,) = (p for p in table.pieces if p.shard_start <= start < p.shard_start + p.length)
        assert tensor == piece.tensor and adapted == table.adapted[tensor] and length <= BLOCK
        assert (weight - start, buffer - start) == (
            piece.weight_start - piece.shard_start,
            piece.buffer_start - piece.shard_start,
        )
