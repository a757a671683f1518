"""All parameters in one flat buffer, all gradients in another: one collective and one cast each.

bf16: the model computes with bf16 weights; fp32 master weights, and fp32 gradients that micro-batches are summed in,
stand beside them. fp32: both pairs are the same buffer.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class FlatParameters:
    """Owns the storage of a model's weights and gradients; `model.parameters()` become views of it.

    Attributes (1-dimensional, one element per weight):
        weights: compute dtype, what the model reads.
        gradients: compute dtype, what backward adds to.
        master_weights: fp32, what the optimizer updates.
        master_gradients: fp32, sum over the micro-batches of this rank, later over all ranks.
    """

    def __init__(self, model: nn.Module, *, precision: str) -> None:
        parameters = dict(model.named_parameters())
        self.shapes = {name: p.shape for name, p in parameters.items()}
        self.master_weights = torch.cat([p.detach().float().flatten() for p in parameters.values()])
        self.weights = self.master_weights.to(DTYPES[precision])  # the same buffer for fp32
        self.gradients = torch.zeros_like(self.weights)
        self.master_gradients = self.gradients if precision == "fp32" else torch.zeros_like(self.master_weights)
        weights, gradients = self.split(self.weights), self.split(self.gradients)
        for name, parameter in parameters.items():
            parameter.data = weights[name]
            parameter.grad = gradients[name]

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """Views of a flat buffer by parameter name, in each parameter's shape."""
        pieces = flat.split([shape.numel() for shape in self.shapes.values()])
        return {name: piece.view(shape) for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True)}

    def zero_gradients(self) -> None:
        self.gradients.zero_()
        self.master_gradients.zero_()

    def accumulate(self) -> None:
        """Adds what backward left in the bf16 gradients to the fp32 sum and clears it; nothing to do in fp32."""
        if self.gradients is not self.master_gradients:
            self.master_gradients.add_(self.gradients)
            self.gradients.zero_()

    def publish(self) -> None:
        """Rounds the master weights to what the model reads; nothing to do in fp32."""
        if self.weights is not self.master_weights:
            self.weights.copy_(self.master_weights)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Fills the master weights from fp32 tensors by parameter name and publishes them."""
        for name, view in self.split(self.master_weights).items():
            view.copy_(tensors[name])
        self.publish()
