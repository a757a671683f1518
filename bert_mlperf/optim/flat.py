"""All parameters in one flat buffer, and this rank's shard of the fp32 weights.

    weights        compute dtype   [size]         what the model reads: its parameters are views
    accumulated    fp32            [size]         sum over micro-batches; only where the compute dtype is not fp32 and a
                                                  step has several
    masters        fp32            [size / S]     what the optimizer updates, this rank's part of each bucket; in fp32
                                                  these are in the weights, and `masters` is all of them, [size]
    shard_parts    fp32                           the same bucket by bucket: views of `masters`

Gradients have no buffer here: backward hands each parameter its own, and it is let go as soon as it is on the wire.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from bert_mlperf.optim.layout import Bucket, FlatLayout

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class FlatBuffers:
    """Owns the storage of a model's weights (1-dimensional tensors, see the top of this file)."""

    def __init__(
        self, model: nn.Module, layout: FlatLayout, *, shard: int = 0, precision: str, accumulation_steps: int = 1
    ) -> None:
        self.parameters = dict(model.named_parameters())
        self.layout, self.shard = layout, shard
        device = next(iter(self.parameters.values())).device
        dtype = DTYPES[precision]
        self.weights = torch.zeros(layout.size, dtype=dtype, device=device)
        self.accumulated = None
        if dtype != torch.float32 and accumulation_steps > 1:
            self.accumulated = torch.zeros(layout.size, dtype=torch.float32, device=device)
        parts = layout.parts(shard)
        if dtype == torch.float32:
            self.masters = self.weights
            self.shard_parts = [self.weights[part.start : part.end] for part in parts]
        else:
            self.masters = torch.zeros(layout.shard_size, device=device)
            self.shard_parts = [self.masters[part.shard_start : part.shard_end] for part in parts]
        self.load({name: p.detach().float() for name, p in self.parameters.items()})
        weights = self.split(self.weights)
        for name, parameter in self.parameters.items():
            parameter.data = weights[name]
        self.zero_gradients()

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """Views of a flat buffer by parameter name, in each parameter's shape."""
        return {slot.name: flat[slot.start : slot.end].view(slot.shape) for slot in self.layout.slots.values()}

    @property
    def rounded(self) -> Tensor | None:
        """The weights where they are not fp32: whoever changes the masters rounds them into this rank's parts of it."""
        return None if self.weights is self.masters else self.weights

    @property
    def shard_weights(self) -> Tensor:
        """A copy of the fp32 weights of this rank's shard, [size / S]."""
        return torch.cat(self.shard_parts)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Fills weights and shard from fp32 tensors by parameter name."""
        parts = self.layout.parts(self.shard)
        for name, slot in self.layout.slots.items():
            values = tensors[name].reshape(-1)
            self.weights[slot.start : slot.end].copy_(values)
            for part, weights in zip(parts, self.shard_parts, strict=True):
                low, high = max(slot.start, part.start), min(slot.end, part.end)
                if low < high:
                    weights[low - part.start : high - part.start].copy_(values[low - slot.start : high - slot.start])

    def zero_gradients(self) -> None:
        """No parameter has a gradient: the first one that backward makes is taken as it is."""
        for parameter in self.parameters.values():
            parameter.grad = None
        if self.accumulated is not None:
            self.accumulated.zero_()

    def accumulate(self) -> None:
        """After a micro-batch that is not the step's last: adds low-precision gradients to the fp32 sum and lets them
        go. Gradients in fp32 stay with their parameters, where backward adds to them."""
        if self.accumulated is not None:
            for name in self.parameters:
                self._add_to_sum(name)

    def take_gradients(self, bucket: Bucket) -> dict[str, Tensor]:
        """The gradients of a bucket's parameters over all micro-batches of the step, flat, by name; parameters without
        one are left out. They belong to the caller: the parameters have none afterwards."""
        taken = {}
        for name in bucket.parameters:
            parameter, slot = self.parameters[name], self.layout.slots[name]
            if self.accumulated is not None:
                self._add_to_sum(name)
                taken[name] = self.accumulated[slot.start : slot.end]
            elif parameter.grad is not None:
                taken[name], parameter.grad = parameter.grad.reshape(-1), None
                if parameter.is_cuda:  # made on one stream, read on another
                    taken[name].record_stream(torch.cuda.current_stream(parameter.device))
        return taken

    def _add_to_sum(self, name: str) -> None:
        assert self.accumulated is not None
        parameter, slot = self.parameters[name], self.layout.slots[name]
        if parameter.grad is not None:
            if parameter.is_cuda:
                parameter.grad.record_stream(torch.cuda.current_stream(parameter.device))
            self.accumulated[slot.start : slot.end].add_(parameter.grad.reshape(-1))
            parameter.grad = None
