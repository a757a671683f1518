"""All parameters in one flat buffer, all gradients in another, and this rank's shard of the fp32 weights.

    weights        compute dtype   [size]         what the model reads: its parameters are views
    gradients      compute dtype   [size]         what backward adds to
    accumulated    fp32            [size]         sum over micro-batches; only where the compute dtype is not fp32 and a
                                                  step has several
    shard_weights  fp32            [size / S]     what the optimizer updates
    reduced        fp32            [size / S]     the shard's part of the gradient summed over all ranks

With one shard and fp32 the shard is the whole, and both pairs are the same storage.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from bert_mlperf.optim.layout import Bucket, FlatLayout, TensorRange

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class FlatBuffers:
    """Owns the storage of a model's weights and gradients (1-dimensional tensors, see the top of this file)."""

    def __init__(
        self, model: nn.Module, layout: FlatLayout, *, shard: int = 0, precision: str, accumulation_steps: int = 1
    ) -> None:
        parameters = dict(model.named_parameters())
        self.layout, self.shard = layout, shard
        device = next(iter(parameters.values())).device
        dtype = DTYPES[precision]
        self.weights = torch.zeros(layout.size, dtype=dtype, device=device)
        self.gradients = torch.zeros_like(self.weights)
        self.accumulated = None
        if dtype != torch.float32 and accumulation_steps > 1:
            self.accumulated = torch.zeros(layout.size, dtype=torch.float32, device=device)
        is_whole = layout.num_shards == 1 and dtype == torch.float32
        self.shard_weights = self.weights if is_whole else torch.zeros(layout.shard_size, device=device)
        self.reduced = self.gradients if is_whole else torch.zeros(layout.shard_size, device=device)
        self.load({name: p.detach().float() for name, p in parameters.items()})
        weights, gradients = self.split(self.weights), self.split(self.gradients)
        for name, parameter in parameters.items():
            parameter.data = weights[name]
            parameter.grad = gradients[name]

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """Views of a flat buffer by parameter name, in each parameter's shape."""
        return {slot.name: flat[slot.start : slot.end].view(slot.shape) for slot in self.layout.slots.values()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Fills weights and shard from fp32 tensors by parameter name."""
        for name, slot in self.layout.slots.items():
            values = tensors[name].reshape(-1)
            self.weights[slot.start : slot.end].copy_(values)
            for piece in self.layout.pieces(slot.start, slot.end, self.shard):
                here = slice(piece.start - slot.start, piece.end - slot.start)
                self.shard_weights[piece.shard_start : piece.shard_end].copy_(values[here])

    def zero_gradients(self) -> None:
        self.gradients.zero_()
        if self.accumulated is not None:
            self.accumulated.zero_()

    def accumulate(self) -> None:
        """Adds what backward left in low-precision gradients to the fp32 sum and clears it; the last micro-batch of a
        step is added bucket by bucket, see `on_the_wire`."""
        if self.accumulated is not None:
            self.accumulated.add_(self.gradients)
            self.gradients.zero_()

    def not_finite(self, ranges: Sequence[TensorRange]) -> list[str]:
        """Names of the tensors whose gradient in the buffers of this rank holds Inf or NaN, after a step."""
        gradients = self.gradients if self.accumulated is None else self.accumulated
        return [r.name for r in ranges if not gradients[r.start : r.end].isfinite().all()]

    def on_the_wire(self, bucket: Bucket, dtype: torch.dtype) -> Tensor:
        """The bucket's gradient of this rank in `dtype`; the storage may be overwritten."""
        gradient = self.gradients[bucket.start : bucket.end]
        if self.accumulated is not None:
            gradient = self.accumulated[bucket.start : bucket.end].add_(gradient)
        return gradient.to(dtype)
