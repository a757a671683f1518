"""The tied decoder with its softmax and loss, and with its arg-max, in chunks of the vocabulary.

    logits = x weight' + bias;   loss = sum over rows of  lse - logits[label],   lse = log sum_v exp(logits[v])
    g = upstream (exp(logits - lse) - onehot(label))
    dx = g weight,   dweight = g' x,   dbias = sum of g over the rows

The products are the library's (torch.mm). Only the logits of one chunk are held, in the dtype of x, and bias and
statistics are added in fp32 behind them; backward makes a chunk's logits again and turns them into g in place, unless
all fit into KEPT bytes. A chunk of the weight is a chunk of rows of dweight, which is written once; dx is added up
over the chunks in fp32.

Legend: M masked tokens, H hidden, V vocabulary, C a chunk of it.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from bert_mlperf.kernels import native
from bert_mlperf.kernels.aot import AotCase
from bert_mlperf.kernels.checks import check_indices, check_shapes, native_suffix
from bert_mlperf.kernels.compiled import compiled
from bert_mlperf.kernels.jit import divide_up, jit, tl

NAME = "linear_cross_entropy"
CHUNK = 2**26  # bytes of logits at a time
KEPT = 2**25  # bytes of logits that are kept for backward rather than made again
BLOCK = 2048  # columns of a Triton block


def linear_cross_entropy_reference(x_MH: Tensor, weight_VH: Tensor, bias_V: Tensor, labels_M: Tensor) -> Tensor:
    """The loss above, 0-dimensional, fp32 (float64 for float64 inputs); labels are int64. 0 without rows."""
    dtype = torch.promote_types(x_MH.dtype, torch.float32)
    logits_MV = F.linear(x_MH.to(dtype), weight_VH.to(dtype), bias_V.to(dtype))
    return F.cross_entropy(logits_MV, labels_M, reduction="sum")


def count_correct_reference(x_MH: Tensor, weight_VH: Tensor, bias_V: Tensor, labels_M: Tensor) -> Tensor:
    """Rows whose largest logit, rounded to the dtype of x, is the label's; the first of equal ones counts. int64."""
    return (F.linear(x_MH, weight_VH, bias_V).argmax(-1) == labels_M).sum()


@jit
def _statistics_kernel(
    logits,  # [M, C], without bias
    bias,  # [C]
    labels,  # int64 [M]
    largest,  # fp32 [M], updated
    total,  # fp32 [M], updated: sum of exp(logit - largest)
    picked,  # fp32 [M], updated: the logit of the label
    first,  # of the chunk's columns in the vocabulary
    num_columns,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    most, so_far = tl.load(largest + row), tl.load(total + row)
    label = tl.load(labels + row) - first
    for start in range(0, num_columns, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        inside = columns < num_columns
        value = tl.load(logits + row * num_columns + columns, mask=inside, other=0).to(tl.float32)
        value += tl.load(bias + columns, mask=inside, other=0).to(tl.float32)
        value = tl.where(inside, value, float("-inf"))
        new = tl.maximum(most, tl.max(value, axis=0))
        so_far = so_far * tl.exp(most - new) + tl.sum(tl.exp(value - new), axis=0)
        most = new
        tl.store(picked + row + columns * 0, value, mask=inside & (columns == label))
    tl.store(largest + row, most)
    tl.store(total + row, so_far)


@jit
def _gradient_kernel(
    logits,  # [M, C], without bias; become g
    bias,  # [C]
    labels,  # int64 [M]
    lse,  # fp32 [M]
    upstream,  # fp32, 0-dimensional
    first,  # of the chunk's columns in the vocabulary
    num_columns,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < num_columns
    at = logits + row * num_columns + columns
    value = tl.load(at, mask=inside, other=0).to(tl.float32)
    value += tl.load(bias + columns, mask=inside, other=0).to(tl.float32)
    gradient = tl.exp(value - tl.load(lse + row)) - (columns == tl.load(labels + row) - first).to(tl.float32)
    tl.store(at, (gradient * tl.load(upstream)).to(logits.dtype.element_ty), mask=inside)


class _Triton:
    @staticmethod
    def check(dtype: torch.dtype) -> None:
        """Nothing: it does every dtype."""

    @staticmethod
    def statistics(logits: Tensor, bias: Tensor, labels: Tensor, state: list[Tensor], first: int) -> None:
        """Brings largest, total and picked (fp32 [M] each) up to date with a chunk."""
        _statistics_kernel[(logits.shape[0],)](
            logits, bias, labels, *state, first, logits.shape[1], BLOCK=BLOCK, num_warps=8
        )

    @staticmethod
    def gradient(logits: Tensor, bias: Tensor, labels: Tensor, lse: Tensor, upstream: Tensor, first: int) -> Tensor:
        """Turns a chunk's logits into g; its sum over the rows, fp32 [C]."""
        rows, columns = logits.shape
        grid = (rows, divide_up(columns, BLOCK))
        _gradient_kernel[grid](logits, bias, labels, lse, upstream, first, columns, BLOCK=BLOCK, num_warps=8)
        return logits.sum(0, dtype=torch.float32)


class _Native:
    check = staticmethod(native_suffix)

    @staticmethod
    def statistics(logits: Tensor, bias: Tensor, labels: Tensor, state: list[Tensor], first: int) -> None:
        """Brings largest, total and picked (fp32 [M] each) up to date with a chunk."""
        name = f"cross_entropy_statistics_{native_suffix(logits.dtype)}"
        native.call(name, logits, bias, labels, *state, first, *logits.shape)

    @staticmethod
    def gradient(logits: Tensor, bias: Tensor, labels: Tensor, lse: Tensor, upstream: Tensor, first: int) -> Tensor:
        """Turns a chunk's logits into g; its sum over the rows, fp32 [C]."""
        sums = torch.empty(logits.shape[1], dtype=torch.float32)
        name = f"cross_entropy_gradient_{native_suffix(logits.dtype)}"
        native.call(name, logits, bias, labels, lse, upstream, sums, first, *logits.shape)
        return sums


def chunks(rows: int, weight_VH: Tensor) -> Iterator[slice]:
    """Rows of the weight whose logits take at most CHUNK bytes, in as few chunks as that allows."""
    vocabulary = weight_VH.shape[0]
    most = max(1, CHUNK // (max(1, rows) * weight_VH.element_size()))
    size = divide_up(vocabulary, divide_up(vocabulary, most))
    for start in range(0, vocabulary, size):
        yield slice(start, min(start + size, vocabulary))


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, path: Any, x: Tensor, weight: Tensor, bias: Tensor, labels: Tensor) -> Tensor:
        rows = x.shape[0]
        largest = torch.full((rows,), float("-inf"), dtype=torch.float32, device=x.device)
        total, picked = torch.zeros(2, rows, dtype=torch.float32, device=x.device)
        keeps = rows * weight.shape[0] * x.element_size() <= KEPT
        kept = []
        for part in chunks(rows, weight):
            logits = torch.mm(x, weight[part].t())
            if rows > 0:
                path.statistics(logits, bias[part], labels, [largest, total, picked], part.start)
            if keeps:
                kept.append(logits)
        lse = largest + total.log()
        ctx.save_for_backward(x, weight, bias, labels, lse, *kept)
        ctx.path = path
        return (lse - picked).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, labels, lse, *kept = ctx.saved_tensors
        dweight, dbias = torch.empty_like(weight), torch.empty_like(bias)
        parts = list(chunks(x.shape[0], weight))
        dx = torch.zeros(x.shape, dtype=torch.float32, device=x.device) if len(parts) > 1 else None
        for number, part in enumerate(parts):
            logits = kept[number].clone() if kept else torch.mm(x, weight[part].t())
            if x.shape[0] > 0:
                dbias[part] = ctx.path.gradient(logits, bias[part], labels, lse, upstream.float(), part.start)
            else:
                dbias[part] = 0
            torch.mm(logits.t(), x, out=dweight[part])
            of_part = torch.mm(logits, weight[part])
            dx = of_part if dx is None else dx.add_(of_part)
        assert dx is not None
        return None, dx.to(x.dtype), dweight, dbias, None


def _checked(x: Tensor, weight: Tensor, bias: Tensor, labels: Tensor) -> list[Tensor]:
    for name, tensor in (("x_MH", x), ("weight_VH", weight)):
        if tensor.dim() != 2:
            raise ValueError(f"{NAME}: {name} has shape {tuple(tensor.shape)}, expected two dimensions")
    (rows, hidden), vocabulary = x.shape, weight.shape[0]
    check_shapes(NAME, x.dtype, weight_VH=(weight, (vocabulary, hidden)), bias_V=(bias, (vocabulary,)))
    check_indices(NAME, labels_M=(labels, rows, vocabulary))
    return [tensor.contiguous() for tensor in (x, weight, bias, labels)]


def _call(path: Any, x_MH: Tensor, weight_VH: Tensor, bias_V: Tensor, labels_M: Tensor) -> Tensor:
    """The reference's loss. ValueError on shapes or dtypes that do not go together; Unsupported in fp16 with C++."""
    path.check(x_MH.dtype)
    inputs = _checked(x_MH, weight_VH, bias_V, labels_M)
    with torch.autocast(x_MH.device.type, enabled=False):  # the kernels take the products in the dtype of the inputs
        return _LinearCrossEntropy.apply(path, *inputs)


def count_correct(x_MH: Tensor, weight_VH: Tensor, bias_V: Tensor, labels_M: Tensor) -> Tensor:
    """The reference's count in chunks: a product and an arg-max each, which are the library's."""
    x, weight, bias, labels = _checked(x_MH, weight_VH, bias_V, labels_M)
    largest = torch.full_like(x[:, 0], float("-inf"))
    found = torch.zeros_like(labels)
    for part in chunks(x.shape[0], weight):
        of_part, where = F.linear(x, weight[part], bias[part]).max(-1)
        is_larger = of_part > largest
        largest, found = torch.where(is_larger, of_part, largest), torch.where(is_larger, where + part.start, found)
    return (found == labels).sum()


OPERATIONS = {
    NAME: {
        "reference": linear_cross_entropy_reference,
        "native": partial(_call, _Native),
        "triton": partial(_call, _Triton),
        "compiled": compiled(linear_cross_entropy_reference),
    },
    "count_correct": {
        "reference": count_correct_reference,
        "native": count_correct,
        "triton": count_correct,
        "compiled": compiled(count_correct_reference),
    },
}


def aot_cases() -> list[AotCase]:
    """Both kernels in bf16."""
    rows = {"logits": "*bf16", "bias": "*bf16", "labels": "*i64"}
    counts = {"first": "i32", "num_columns": "i32"}
    statistics = rows | dict.fromkeys(("largest", "total", "picked"), "*fp32") | counts
    gradient = rows | dict.fromkeys(("lse", "upstream"), "*fp32") | counts
    block = {"BLOCK": BLOCK}
    return [
        AotCase(f"{NAME} forward", _statistics_kernel, statistics, block, 8),
        AotCase(f"{NAME} backward", _gradient_kernel, gradient, block, 8),
    ]
