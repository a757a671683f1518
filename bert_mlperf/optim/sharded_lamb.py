"""LAMB on one shard of the weights: each rank of a shard group updates 1/S of them and holds 12 P/S bytes of state.

The equations are those of lamb.py. A shard border may cut through a tensor, so the norms |w| and |u| of all tensors are
summed over the group: one all-reduce of [2, tensors] squared norms. Everything is decided on the device: the clip, and,
where gradients can overflow (fp16), whether the step is skipped; a skipped step leaves weights, moments and the count
of updates, and with it the schedule, as they were.

A step goes over the shard twice (kernels/lamb.py): m, v, the direction and the norms, then, when the norms of all
shards are known, the weights, also in the model's dtype. Bias corrections are folded into two numbers:

    z = m / (sqrt(v) + epsilon sqrt(1 - b2^t)) + decay w / c,   u = c z,   c = sqrt(1 - b2^t) / (1 - b1^t)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bert_mlperf.config.recipe import Recipe
from bert_mlperf.kernels.lamb_table import LambPiece, LambTable
from bert_mlperf.kernels.registry import Kernels, select
from bert_mlperf.optim.flat import FlatBuffers
from bert_mlperf.optim.lamb import accurate_norm
from bert_mlperf.optim.layout import FlatLayout, TensorRange
from bert_mlperf.optim.schedule import learning_rate

CLIP_NORM = 1.0  # of the gradient of the global batch


@dataclass(frozen=True)
class Update:
    """What one step did (0-dimensional tensors on the device)."""

    gradient_norm: Tensor  # fp32, of the global batch before clipping
    learning_rate: Tensor  # float64
    skipped: Tensor  # bool


@dataclass(frozen=True)
class Reduced:
    """This rank's shard of the gradient, summed over all ranks."""

    shard: Tensor  # fp32 [shard_size]
    squares: Tensor  # float64, 0-dimensional: the sum of the squares of all of it

    @classmethod
    def of(cls, shard: Tensor) -> "Reduced":
        return cls(shard, accurate_norm(shard).double().square())


class ShardedLamb:
    """Updates the masters of `flat`, this rank's shard of the weights, and holds their moments [shard_size]."""

    def __init__(
        self,
        flat: FlatBuffers,
        ranges: Sequence[TensorRange],
        recipe: Recipe,
        *,
        sum_over_shards: Callable[[Tensor], None],
        can_skip: bool = False,
        kernels: Kernels | None = None,
    ) -> None:
        """`sum_over_shards` replaces a tensor by its sum over the shard group. With `can_skip` a gradient that is not
        finite skips the step, without it the weights are lost. Without `kernels` they are chosen by the device."""
        self.recipe = recipe
        self.ranges = list(ranges)
        self._flat = flat
        device, size = flat.weights.device, flat.layout.shard_size
        self.first_moment, self.second_moment = (torch.zeros(size, device=device) for _ in range(2))
        self.updates = torch.zeros((), dtype=torch.float64, device=device)
        pieces = pieces_of(flat.layout, ranges, shard=flat.shard, in_buffer=flat.masters is flat.weights)
        self._table = LambTable.of(pieces, [r.adapted for r in ranges], device)
        self._adapted = torch.tensor([r.adapted for r in ranges], device=device)
        self._sum_over_shards = sum_over_shards
        self._can_skip = can_skip
        self._kernels = kernels

    def step(self, gradient: Reduced, *, scale: Tensor | float = 1.0) -> Update:
        """One update. `gradient` (times the loss scale `scale`) is overwritten by the directions of the update."""
        norm = self._global_norm(gradient.squares) / scale
        is_finite = norm.isfinite()
        keep = is_finite if self._can_skip else torch.ones_like(is_finite)
        rate = learning_rate(self.updates, self.recipe)
        clip = torch.where(is_finite, CLIP_NORM / norm.clamp(min=CLIP_NORM), 0.0) / scale
        correction, squares = self._directions(gradient.shard, clip, keep)
        factors = torch.where(keep, -rate, 0.0) * correction * self._trust_ratios(squares, correction)
        self._operations.lamb_apply(self._table, gradient.shard, self._flat.masters, factors, self._flat.rounded)
        return Update(gradient_norm=norm, learning_rate=rate, skipped=~keep)

    @property
    def _operations(self) -> Kernels:
        if self._kernels is None:
            self._kernels = select(self._flat.weights.device)
        return self._kernels

    def _global_norm(self, squares: Tensor) -> Tensor:
        squares = squares.clone()
        self._sum_over_shards(squares)
        return squares.sqrt().float()

    def _directions(self, gradient: Tensor, clip: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        """Advances moments and count, and replaces the gradient by z; c, and |w|^2 and |z|^2 of this shard's part of
        each tensor, float64 [2, tensors], 0 where it is not adapted."""
        recipe = self.recipe
        self.updates += keep
        t = self.updates.clamp(min=1)  # 0 only if all steps so far were skipped
        root = (1 - recipe.beta_2**t).sqrt()
        correction = root / (1 - recipe.beta_1**t)
        weight_1, weight_2 = (torch.where(keep, 1 - beta, 0.0) for beta in (recipe.beta_1, recipe.beta_2))
        numbers = [clip, weight_1, weight_2, recipe.epsilon * root, recipe.weight_decay / correction]
        squares = self._operations.lamb_directions(
            self._table,
            gradient,
            self._flat.masters,
            self.first_moment,
            self.second_moment,
            torch.stack([x.double() for x in numbers]),
            zero_not_finite=self._can_skip,
        )
        return correction, squares

    def _trust_ratios(self, squares: Tensor, correction: Tensor) -> Tensor:
        """|w| / |u| of each tensor, float64 [tensors], 1 where it is not adapted; `squares` are summed in place."""
        self._sum_over_shards(squares)
        weight_norms, norms = squares.sqrt()
        is_scaled = self._adapted & (weight_norms > 0) & (norms > 0)
        return torch.where(is_scaled, weight_norms / (norms * correction), 1.0)

    def reset(self) -> None:
        """Moments and count as at the start (after a warm-up)."""
        for state in (self.first_moment, self.second_moment, self.updates):
            state.zero_()


def pieces_of(layout: FlatLayout, ranges: Sequence[TensorRange], *, shard: int, in_buffer: bool) -> list[LambPiece]:
    """What the shard holds of each tensor; its weights are in the whole buffer, or are a shard of their own."""
    return [
        LambPiece(
            tensor=number,
            shard_start=piece.shard_start,
            weight_start=piece.start if in_buffer else piece.shard_start,
            buffer_start=piece.start,
            length=piece.end - piece.start,
        )
        for number, r in enumerate(ranges)
        for piece in layout.pieces(r.start, r.end, shard)
    ]
