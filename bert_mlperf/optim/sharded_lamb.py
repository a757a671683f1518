"""LAMB on one shard of the weights: each rank of a shard group updates 1/S of them and holds 12 P/S bytes of state.

The equations are those of lamb.py. A shard border may cut through a tensor, so the norms |w| and |u| of all tensors are
summed over the group: one all-reduce of [2, tensors] squared norms. Everything is decided on the device: the clip, and,
where gradients can overflow (fp16), whether the step is skipped; a skipped step leaves weights, moments and the count
of updates, and with it the schedule, as they were.

On the CPU a step goes over the shard in blocks that fit the cache, twice: m, v, the direction and the norms of a block,
then, when the norms of all shards are known, its weights. Bias corrections are folded into two numbers:

    z = m / (sqrt(v) + epsilon sqrt(1 - b2^t)) + decay w / c,   u = c z,   c = sqrt(1 - b2^t) / (1 - b1^t)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bert_mlperf.config.recipe import Recipe
from bert_mlperf.optim.lamb import accurate_norm, norm_rows, num_rows
from bert_mlperf.optim.layout import FlatLayout, TensorRange
from bert_mlperf.optim.schedule import learning_rate

CLIP_NORM = 1.0  # of the gradient of the global batch
BLOCK = 2**16  # elements on the CPU: a block of g, m, v and w is 1 MiB


Number = float | Tensor  # a Python number, or a 0-dimensional tensor on the device


@dataclass(frozen=True)
class Update:
    """What one step did (0-dimensional tensors on the device)."""

    gradient_norm: Tensor  # fp32, of the global batch before clipping
    learning_rate: Tensor  # float64
    skipped: Tensor  # bool


@dataclass(frozen=True)
class Reduced:
    """This rank's part of each bucket of the gradient, summed over all ranks (fp32, 1-dimensional)."""

    parts: Sequence[Tensor]
    squares: Tensor  # float64, 0-dimensional: the sum of the squares of all of it

    @classmethod
    def of(cls, parts: Sequence[Tensor]) -> "Reduced":
        return cls(parts, torch.stack([accurate_norm(part) for part in parts]).double().square().sum())


@dataclass(frozen=True)
class BlockPiece:
    """What a block holds of a tensor."""

    number: int  # of the tensor
    elements: slice  # of the block
    rows: slice  # of the norms of rows; empty where the tensor is not adapted


@dataclass(frozen=True)
class Block:
    """Elements `here` of the shard, `there` of the shard's part of a bucket, and what they hold of the tensors."""

    bucket: int
    here: slice
    there: slice
    pieces: tuple[BlockPiece, ...]


class ShardedLamb:
    """fp32 weights and both moments of one shard (1-dimensional; `layout.shard_size` elements of each)."""

    def __init__(
        self,
        layout: FlatLayout,
        ranges: Sequence[TensorRange],
        recipe: Recipe,
        *,
        shard: int,
        weights: Sequence[Tensor],
        sum_over_shards: Callable[[Tensor], None],
        can_skip: bool = False,
    ) -> None:
        """`weights` is the shard's fp32 storage, its part of each bucket; `sum_over_shards` replaces a tensor by its
        sum over the shard group. With `can_skip` a gradient that is not finite skips the step, without it the weights
        are lost."""
        self.recipe = recipe
        self.ranges = list(ranges)
        self.weights = weights
        device = weights[0].device
        self.first_moment, self.second_moment = (torch.zeros(layout.shard_size, device=device) for _ in range(2))
        self.updates = torch.zeros((), dtype=torch.float64, device=device)
        size = BLOCK if device.type == "cpu" else max(1, layout.shard_size)
        self._blocks = blocks_of(layout, self.ranges, shard=shard, size=size)
        self._adapted = torch.tensor([r.adapted for r in self.ranges], device=device)
        lengths = row_counts(self._blocks)
        self._held = torch.tensor(list(lengths), dtype=torch.int64, device=device)  # adapted tensors of the shard
        self._lengths = torch.tensor(list(lengths.values()), dtype=torch.int64, device=device)
        self._num_rows = sum(lengths.values())
        self._sum_over_shards = sum_over_shards
        self._can_skip = can_skip

    def step(self, gradient: Reduced, *, scale: Tensor | float = 1.0) -> Update:
        """One update. The parts of `gradient` (times the loss scale `scale`) are overwritten by the directions of the
        update."""
        norm = self._global_norm(gradient.squares) / scale
        is_finite = norm.isfinite()
        keep = is_finite if self._can_skip else torch.ones_like(is_finite)
        rate = learning_rate(self.updates, self.recipe)
        clip = torch.where(is_finite, CLIP_NORM / norm.clamp(min=CLIP_NORM), 0.0) / scale
        correction, squares = self._directions(gradient.parts, clip, keep)
        self._apply(
            gradient.parts, torch.where(keep, -rate, 0.0) * correction * self._trust_ratios(squares, correction)
        )
        return Update(gradient_norm=norm, learning_rate=rate, skipped=~keep)

    def _global_norm(self, squares: Tensor) -> Tensor:
        squares = squares.clone()
        self._sum_over_shards(squares)
        return squares.sqrt().float()

    def _directions(self, gradient: Sequence[Tensor], clip: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        """Advances moments and count, and replaces the gradient by z; c, and |w|^2 and |z|^2 of this shard's part of
        each tensor, [2, tensors], 0 where it is not adapted."""
        recipe = self.recipe
        self.updates += keep
        t = self.updates.clamp(min=1)  # 0 only if all steps so far were skipped
        root = (1 - recipe.beta_2**t).sqrt()
        correction = root / (1 - recipe.beta_1**t)
        weight_1, weight_2 = (torch.where(keep, 1 - beta, 0.0) for beta in (recipe.beta_1, recipe.beta_2))
        numbers = [_number(x) for x in (clip, weight_1, weight_2, recipe.epsilon * root)]
        decay = _number(recipe.weight_decay / correction)
        rows = torch.empty(2, self._num_rows, device=clip.device)  # norms of weights and directions
        for block in self._blocks:
            z, w = gradient[block.bucket][block.there], self.weights[block.bucket][block.there]
            self._direction(z, self.first_moment[block.here], self.second_moment[block.here], *numbers)
            for piece in block.pieces:
                if self.ranges[piece.number].adapted:
                    of_z, of_w = z[piece.elements], w[piece.elements]
                    _add_scaled(of_z, of_w, decay)
                    norm_rows(of_w, rows[0, piece.rows])
                    norm_rows(of_z, rows[1, piece.rows])
        return correction, self._squares_of_tensors(rows)

    def _squares_of_tensors(self, rows: Tensor) -> Tensor:
        """|w|^2 and |z|^2 of the shard, float64 [2, tensors], from norms of rows [2, rows]. Each is added up in one
        order, so that all ranks with the same shard get the same."""
        squares = torch.zeros(2, len(self.ranges), dtype=torch.float64, device=rows.device)
        if self._num_rows == 0:  # a small shard may hold nothing that is adapted
            return squares
        for into, norms in zip(squares, rows, strict=True):
            into[self._held] = torch.segment_reduce(
                norms.double().square(),
                "sum",
                lengths=self._lengths,
                unsafe=True,  # the lengths are right; to check them the host would wait for the device
            )
        return squares

    def _direction(
        self, g: Tensor, m: Tensor, v: Tensor, clip: Number, weight_1: Number, weight_2: Number, epsilon: Number
    ) -> None:
        g.mul_(clip)
        if self._can_skip:
            g.nan_to_num_(0.0, 0.0, 0.0)
        m.lerp_(g, weight_1)
        v.lerp_(g.square_(), weight_2)
        torch.sqrt(v, out=g).add_(epsilon)
        torch.div(m, g, out=g)

    def _trust_ratios(self, squares: Tensor, correction: Tensor) -> Tensor:
        """|w| / |u| of each tensor, float64 [tensors], 1 where it is not adapted; `squares` are summed in place."""
        self._sum_over_shards(squares)
        weight_norms, norms = squares.sqrt()
        is_scaled = self._adapted & (weight_norms > 0) & (norms > 0)
        return torch.where(is_scaled, weight_norms / (norms * correction), 1.0)

    def _apply(self, directions: Sequence[Tensor], factors: Tensor) -> None:
        """Adds each tensor's direction times its factor to the weights."""
        numbers: Sequence[Number] = factors.tolist() if factors.device.type == "cpu" else list(factors.float())
        for block in self._blocks:
            z, w = directions[block.bucket][block.there], self.weights[block.bucket][block.there]
            for piece in block.pieces:
                _add_scaled(w[piece.elements], z[piece.elements], numbers[piece.number])

    def reset(self) -> None:
        """Moments and count as at the start (after a warm-up)."""
        for state in (self.first_moment, self.second_moment, self.updates):
            state.zero_()


def blocks_of(layout: FlatLayout, ranges: Sequence[TensorRange], *, shard: int, size: int) -> list[Block]:
    """The shard in blocks of at most `size` elements, none across buckets; what is adapted has rows, one behind the
    other."""
    blocks, rows = [], 0
    in_order = sorted(enumerate(ranges), key=lambda item: item[1].start)
    for bucket, part in enumerate(layout.parts(shard)):
        length, found = part.end - part.start, []
        for number, r in in_order:
            low, high = max(r.start, part.start) - part.start, min(r.end, part.end) - part.start
            if low < high:
                found.append((number, low, high))
        for start in range(0, length, size):
            end, pieces = min(start + size, length), []
            for number, a, b in found:
                if a < end and b > start:
                    elements = slice(max(a, start) - start, min(b, end) - start)
                    used = num_rows(elements.stop - elements.start) if ranges[number].adapted else 0
                    pieces.append(BlockPiece(number, elements, slice(rows, rows + used)))
                    rows += used
            here = slice(part.shard_start + start, part.shard_start + end)
            blocks.append(Block(bucket, here, slice(start, end), tuple(pieces)))
    return blocks


def row_counts(blocks: Sequence[Block]) -> dict[int, int]:
    """How many rows each adapted tensor has, by number, in the order of the rows."""
    counts: dict[int, int] = {}
    for piece in (piece for block in blocks for piece in block.pieces):
        if piece.rows.stop > piece.rows.start:
            counts[piece.number] = counts.get(piece.number, 0) + piece.rows.stop - piece.rows.start
    return counts


def _number(x: Tensor) -> Number:
    """For arithmetic with fp32 tensors: on the CPU a Python number is faster, elsewhere the host would wait for it."""
    return x.item() if x.device.type == "cpu" else x.float()


def _add_scaled(target: Tensor, values: Tensor, factor: Number) -> None:
    if isinstance(factor, Tensor):
        target.addcmul_(values, factor)
    else:
        target.add_(values, alpha=factor)
