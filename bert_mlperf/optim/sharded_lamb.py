"""LAMB on one shard of the weights: each rank of a shard group updates 1/S of them and holds 12 P/S bytes of state.

The equations are those of lamb.py. A shard border may cut through a tensor, so the norms |w| and |u| of all tensors are
summed over the group: one all-reduce of [2, tensors] squared norms. Everything is decided on the device: the clip, and,
where gradients can overflow (fp16), whether the step is skipped; a skipped step leaves weights, moments and the count
of updates, and with it the schedule, as they were.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bert_mlperf.config.recipe import Recipe
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


class ShardedLamb:
    """fp32 weights and both moments of one shard (1-dimensional, `layout.shard_size` elements each)."""

    def __init__(
        self,
        layout: FlatLayout,
        ranges: Sequence[TensorRange],
        recipe: Recipe,
        *,
        shard: int,
        weights: Tensor,
        sum_over_shards: Callable[[Tensor], None],
        can_skip: bool = False,
    ) -> None:
        """`weights` is the shard's fp32 storage; `sum_over_shards` replaces a tensor by its sum over the shard group.
        With `can_skip` a gradient that is not finite skips the step, without it the weights are lost."""
        self.recipe = recipe
        self.ranges = list(ranges)
        self.weights = weights
        self.first_moment, self.second_moment = torch.zeros_like(weights), torch.zeros_like(weights)
        self.updates = torch.zeros((), dtype=torch.float64, device=weights.device)
        self._pieces = [(i, p) for i, r in enumerate(self.ranges) for p in layout.pieces(r.start, r.end, shard)]
        self._adapted = torch.tensor([r.adapted for r in self.ranges], device=weights.device)
        self._sum_over_shards = sum_over_shards
        self._can_skip = can_skip

    def step(self, gradient: Tensor, *, scale: Tensor | float = 1.0) -> Update:
        """One update. `gradient` (fp32, the shard's part of the sum over all ranks, times the loss scale `scale`) is
        overwritten by the directions of the update."""
        norm = self._global_norm(gradient) / scale
        is_finite = norm.isfinite()
        keep = is_finite if self._can_skip else torch.ones_like(is_finite)
        gradient.mul_(torch.where(is_finite, CLIP_NORM / norm.clamp(min=CLIP_NORM), 0.0) / scale)
        if self._can_skip:
            gradient.nan_to_num_(0.0, 0.0, 0.0)
        rate = learning_rate(self.updates, self.recipe)
        self._directions(gradient, keep)
        ratios = self._trust_ratios(gradient)
        factors = (torch.where(keep, -rate, 0.0) * ratios).float()
        for i, piece in self._pieces:
            here = slice(piece.shard_start, piece.shard_end)
            self.weights[here].addcmul_(gradient[here], factors[i])
        return Update(gradient_norm=norm, learning_rate=rate, skipped=~keep)

    def _global_norm(self, gradient: Tensor) -> Tensor:
        squared = accurate_norm(gradient).double().square()
        self._sum_over_shards(squared)
        return squared.sqrt().float()

    def _directions(self, gradient: Tensor, keep: Tensor) -> None:
        """Advances moments and count, and replaces the gradient by u without decay."""
        beta_1, beta_2 = self.recipe.beta_1, self.recipe.beta_2
        m, v = self.first_moment, self.second_moment
        m.mul_(torch.where(keep, beta_1, 1.0)).addcmul_(gradient, torch.where(keep, 1 - beta_1, 0.0))
        gradient.square_()
        v.mul_(torch.where(keep, beta_2, 1.0)).addcmul_(gradient, torch.where(keep, 1 - beta_2, 0.0))
        self.updates += keep
        t = self.updates.clamp(min=1)  # 0 only if all steps so far were skipped
        torch.div(v, 1 - beta_2**t, out=gradient).sqrt_().add_(self.recipe.epsilon).mul_(1 - beta_1**t)
        torch.div(m, gradient, out=gradient)

    def _trust_ratios(self, directions: Tensor) -> Tensor:
        """Adds the decay to the directions; |w| / |u| of each tensor, float64 [tensors], 1 where it is not adapted."""
        squares = torch.zeros(2, len(self.ranges), dtype=torch.float64, device=directions.device)
        for i, piece in self._pieces:
            if self.ranges[i].adapted:
                here = slice(piece.shard_start, piece.shard_end)
                directions[here].add_(self.weights[here], alpha=self.recipe.weight_decay)
                squares[0, i] += accurate_norm(self.weights[here]).double().square()
                squares[1, i] += accurate_norm(directions[here]).double().square()
        self._sum_over_shards(squares)
        weight_norms, norms = squares.sqrt()
        is_scaled = self._adapted & (weight_norms > 0) & (norms > 0)
        return torch.where(is_scaled, weight_norms / norms, 1.0)

    def reset(self) -> None:
        """Moments and count as at the start (after a warm-up)."""
        for state in (self.first_moment, self.second_moment, self.updates):
            state.zero_()
