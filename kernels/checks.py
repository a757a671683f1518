"""What all launchers ask of their inputs. They look at shapes and dtypes only, so the host never waits for the
device."""

import torch
from torch import Tensor

from bert_mlperf.kernels.dropout import Dropout
from bert_mlperf.kernels.unsupported import Unsupported

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
SUFFIXES = {torch.float32: "f32", torch.bfloat16: "bf16"}  # of the C++ functions


def check_shapes(kernel: str, dtype: torch.dtype, **expected: tuple[Tensor | None, tuple[int, ...]]) -> None:
    """ValueError that names the first tensor whose shape, or whose dtype (that of floating-point inputs), is
    another."""
    if dtype not in FLOATS:
        raise ValueError(f"{kernel}: the inputs are {name_of(dtype)}, expected float32, bfloat16 or float16")
    for name, (tensor, shape) in expected.items():
        if tensor is None:
            continue
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{kernel}: {name} has shape {tuple(tensor.shape)}, expected {shape}")
        if tensor.dtype != dtype:
            raise ValueError(f"{kernel}: {name} is {name_of(tensor.dtype)}, expected {name_of(dtype)} like the others")


def check_indices(kernel: str, **tensors: tuple[Tensor, int, int]) -> None:
    """ValueError that names the first tensor that is not int64 [n] for the n given; on the CPU, where the host need not
    wait for it, IndexError if a value is not in [0, size) for the size given."""
    for name, (tensor, count, size) in tensors.items():
        if tuple(tensor.shape) != (count,):
            raise ValueError(f"{kernel}: {name} has shape {tuple(tensor.shape)}, expected {(count,)}")
        if tensor.dtype != torch.int64:
            raise ValueError(f"{kernel}: {name} is {name_of(tensor.dtype)}, expected int64")
        if tensor.device.type == "cpu" and count:
            low, high = (int(value) for value in tensor.aminmax())
            if low < 0 or high >= size:
                raise IndexError(f"{kernel}: {name} holds {low if low < 0 else high}, expected 0 to {size - 1}")


def check_dropout(kernel: str, dropout: Dropout | None, rows: int) -> None:
    """ValueError unless there is a sample and a position, int32, for each row."""
    if dropout is None:
        return
    for name, tensor in (("samples_R", dropout.samples_R), ("positions_R", dropout.positions_R)):
        if tuple(tensor.shape) != (rows,) or tensor.dtype != torch.int32:
            raise ValueError(
                f"{kernel}: dropout.{name} is {tensor.dtype} {tuple(tensor.shape)}, expected torch.int32 {(rows,)}"
            )


def native_suffix(dtype: torch.dtype) -> str:
    """Of the C++ functions for this dtype; Unsupported where there are none."""
    if dtype not in SUFFIXES:
        raise Unsupported(f"{name_of(dtype)} has no native CPU kernel")
    return SUFFIXES[dtype]


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
