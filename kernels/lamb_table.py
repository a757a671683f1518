"""Where the tensors of a shard lie, for kernels/lamb.py: runs of elements of one tensor, cut into blocks.

Made once and never changed. The caller knows layouts; here are numbers only.

Legend: S elements of the shard, W of the weights (the shard's or the whole buffer's), P of the whole buffer, T tensors,
B blocks, F fields of a block.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK = 4096  # elements: 16 KiB of each of g, m, v and w
FIELDS = 6  # of a block: shard_start, weight_start, buffer_start, length, tensor, adapted
ALIGNED = 16  # elements: where all pieces begin at multiples of it, a GPU loads 16 bytes at a time


@dataclass(frozen=True)
class LambPiece:
    """What the shard holds of a tensor in one run of elements."""

    tensor: int  # its number
    shard_start: int  # in gradient and moments [S]
    weight_start: int  # in the weights [W]
    buffer_start: int  # in the whole buffer [P], for weights in the model's dtype
    length: int

    def __post_init__(self) -> None:
        if min(self.tensor, self.shard_start, self.weight_start, self.buffer_start, self.length) < 0:
            raise ValueError(f"{self} begins before its buffer")


@dataclass(frozen=True)
class LambTable:
    """All pieces of a shard, in blocks. Tensors are int64 and on the device of the shard."""

    pieces: tuple[LambPiece, ...]  # in the order of their tensors
    adapted: tuple[bool, ...]  # [T]: decayed, and scaled by its trust ratio
    blocks_BF: Tensor  # in the same order
    bounds: Tensor  # [T + 1]: tensor t has blocks bounds[t] up to bounds[t + 1]
    is_aligned: bool
    needed: tuple[int, int, int]  # elements that S, W and P are at least

    @classmethod
    def of(cls, pieces: Sequence[LambPiece], adapted: Sequence[bool], device: torch.device) -> "LambTable":
        ordered = tuple(sorted(pieces, key=lambda piece: (piece.tensor, piece.shard_start)))
        blocks = [_blocks_of(piece, adapted[piece.tensor]) for piece in ordered]
        blocks_BF = torch.cat([torch.empty(0, FIELDS, dtype=torch.int64), *blocks])
        counts = torch.bincount(blocks_BF[:, 4], minlength=len(adapted))
        bounds = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
        starts = [start for p in ordered for start in (p.shard_start, p.weight_start, p.buffer_start)]
        is_aligned = all(start % ALIGNED == 0 for start in starts)
        needed = (
            max((p.shard_start + p.length for p in ordered), default=0),
            max((p.weight_start + p.length for p in ordered), default=0),
            max((p.buffer_start + p.length for p in ordered), default=0),
        )
        return cls(ordered, tuple(adapted), blocks_BF.to(device), bounds.to(device), is_aligned, needed)

    @property
    def num_blocks(self) -> int:
        return self.blocks_BF.shape[0]


def _blocks_of(piece: LambPiece, adapted: bool) -> Tensor:
    """[blocks of the piece, F]"""
    offsets = torch.arange(0, piece.length, BLOCK)
    lengths = (piece.length - offsets).clamp(max=BLOCK)
    starts = [start + offsets for start in (piece.shard_start, piece.weight_start, piece.buffer_start)]
    tensors, flags = torch.full_like(offsets, piece.tensor), torch.full_like(offsets, int(adapted))
    return torch.stack([*starts, lengths, tensors, flags], dim=1)


def check_shard(table: LambTable, **tensors: Tensor) -> None:
    """ValueError if one of them is no fp32 [S] for the table."""
    for name, tensor in tensors.items():
        _check(table, name, tensor, (torch.float32,), at_least=table.needed[0])


def check_weights(table: LambTable, weights: Tensor, rounded: Tensor | None = None) -> None:
    """ValueError if `weights` is no fp32 [W], or `rounded` no [P] of 16 bits."""
    _check(table, "weights", weights, (torch.float32,), at_least=table.needed[1])
    if rounded is not None:
        _check(table, "rounded", rounded, (torch.bfloat16, torch.float16), at_least=table.needed[2])


def check_numbers(table: LambTable, count: int, **tensors: Tensor) -> None:
    """ValueError if one of them is no float64 [count]."""
    for name, tensor in tensors.items():
        _check(table, name, tensor, (torch.float64,))
        if tensor.numel() != count:
            raise ValueError(f"{name} has {tensor.numel()} elements, expected {count}")


def _check(table: LambTable, name: str, tensor: Tensor, dtypes: Sequence[torch.dtype], *, at_least: int = 0) -> None:
    if tensor.dtype not in dtypes:
        raise ValueError(f"{name} has {tensor.dtype}, expected {' or '.join(map(str, dtypes))}")
    if tensor.dim() != 1 or not tensor.is_contiguous():
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}, expected one contiguous dimension")
    if tensor.numel() < at_least:
        raise ValueError(
            f"{name} has {tensor.numel()} elements, expected at least {at_least}, for the table names them"
        )
    if tensor.device != table.blocks_BF.device:
        raise ValueError(f"{name} is on {tensor.device}, expected {table.blocks_BF.device}, where the table is")
