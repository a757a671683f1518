"""LAMB for torch's own sharding: the equations of optim/lamb.py as a torch.optim.Optimizer, in place.

Under ZeroRedundancyOptimizer every rank updates whole tensors; under FSDP2 it holds rows of each, so the squared norms
|w|^2 and |u|^2 of all tensors are summed over the ranks. Query, key and value are blocks of rows of one parameter and
have a trust ratio each.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from bert_mlperf.config.recipe import Recipe
from bert_mlperf.model.bert import BertForPreTraining
from bert_mlperf.model.tensors import tensor_specs
from bert_mlperf.optim.lamb import accurate_norm
from bert_mlperf.optim.schedule import learning_rate


def parameter_groups(model: BertForPreTraining) -> list[dict[str, Any]]:
    """The parameters of a model by number of tensors that they hold and by whether these are adapted."""
    facts: dict[str, tuple[int, bool]] = {}
    for spec in tensor_specs(model.config):
        facts[spec.parameter] = (facts.get(spec.parameter, (0, False))[0] + 1, spec.adapted)
    groups: dict[tuple[int, bool], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        groups.setdefault(facts[name], []).append(parameter)
    return [{"params": ps, "blocks": blocks, "adapted": adapted} for (blocks, adapted), ps in groups.items()]


def clip(parameters: Iterable[nn.Parameter], sum_over_ranks: Callable[[Tensor], None] | None = None) -> None:
    """Scales the gradients by 1 / max(global norm, 1); `sum_over_ranks` where a rank holds a part of each."""
    gradients = [local(p.grad) for p in parameters if p.grad is not None]
    squared = torch.stack([accurate_norm(g) for g in gradients]).double().square().sum()
    if sum_over_ranks is not None:
        sum_over_ranks(squared)
    torch._foreach_mul_(gradients, 1.0 / max(squared.sqrt().item(), 1.0))


class PeerLamb(torch.optim.Optimizer):
    """A step overwrites the gradients by the directions of the update. With `sum_over_ranks` every parameter is sharded
    by rows over the default group."""

    def __init__(
        self, params: Iterable[Any], *, recipe: Recipe, sum_over_ranks: Callable[[Tensor], None] | None = None
    ) -> None:
        super().__init__(params, {"blocks": 1, "adapted": True})
        self.recipe, self.sum_over_ranks = recipe, sum_over_ranks
        self.updates = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One update; `closure` is not called."""
        rate = float(learning_rate(torch.tensor(self.updates, dtype=torch.float64), self.recipe))
        self.updates += 1
        for parameter in self._parameters():
            self._direction(parameter)
        ratios = self._trust_ratios()
        for index, weight, direction, _ in self._pieces():
            weight.sub_(direction, alpha=rate * float(ratios[index]))

    def _parameters(self) -> Iterator[nn.Parameter]:
        return (p for group in self.param_groups for p in group["params"] if p.grad is not None)

    def _direction(self, parameter: nn.Parameter) -> None:
        gradient, state, recipe, t = local(parameter.grad), self.state[parameter], self.recipe, self.updates
        if not state:
            state["m"], state["v"] = torch.zeros_like(gradient), torch.zeros_like(gradient)
        m, v = state["m"], state["v"]
        m.lerp_(gradient, 1 - recipe.beta_1)
        v.mul_(recipe.beta_2).addcmul_(gradient, gradient, value=1 - recipe.beta_2)
        torch.sqrt(v, out=gradient)
        gradient.mul_((1 - recipe.beta_1**t) / (1 - recipe.beta_2**t) ** 0.5).add_(
            recipe.epsilon * (1 - recipe.beta_1**t)
        )
        torch.div(m, gradient, out=gradient)

    def _trust_ratios(self) -> list[float]:
        """Adds the decay to the directions; |w| / |u| of each tensor, 1 where it is not adapted."""
        number = sum(len(group["params"]) * group["blocks"] for group in self.param_groups)
        squares = torch.zeros(2, number, dtype=torch.float64)
        for index, weight, direction, adapted in self._pieces():
            if adapted:
                direction.add_(weight, alpha=self.recipe.weight_decay)
                squares[0, index] = accurate_norm(weight).double().square()
                squares[1, index] = accurate_norm(direction).double().square()
        if self.sum_over_ranks is not None:
            self.sum_over_ranks(squares)
        weight_norms, norms = squares.sqrt()
        return torch.where((weight_norms > 0) & (norms > 0), weight_norms / norms, 1.0).tolist()

    def _pieces(self) -> Iterator[tuple[int, Tensor, Tensor, bool]]:
        """What this rank holds of each tensor: its number, rows of the weight and of the direction, whether adapted."""
        first = 0
        for group in self.param_groups:
            for parameter in group["params"]:
                weight, begin = local(parameter), first_row(parameter)
                direction, rows = local(parameter.grad), parameter.shape[0] // group["blocks"]
                for block in range(group["blocks"]):
                    low = min(max(block * rows - begin, 0), len(weight))
                    high = min(max((block + 1) * rows - begin, 0), len(weight))
                    if low < high:
                        yield first + block, weight[low:high], direction[low:high], group["adapted"]
                first += group["blocks"]


def local(tensor: Any) -> Tensor:
    """What this rank holds of a tensor."""
    tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def first_row(tensor: Tensor) -> int:
    """Which row of a tensor sharded by rows over a 1-dimensional mesh this rank's part begins with."""
    if not isinstance(tensor, DTensor):
        return 0
    rows_per_rank = -(-tensor.shape[0] // tensor.device_mesh.size())
    return min(tensor.device_mesh.get_local_rank() * rows_per_rank, tensor.shape[0])
