"""Every kernel at BERT-Large's shapes: what must move and be computed, the floor that implies, and what it takes.

    python -m bert_mlperf.kernels.bench [--device cpu|cuda] [--seconds S] [KERNEL ...]

A row is forward and backward of one kernel by one implementation, median of what fits into S seconds. bytes: every
input read once and every output written once, gradients included. FLOP: of matrix products only, recomputation not
counted. floor: the longer of bytes at the copy bandwidth and FLOP at the matrix peak, both measured here first. On a
CPU and on a GPU; at most 8 minutes with the defaults.

Legend: T tokens, H hidden, F feed-forward, N heads, D head size, V vocabulary, M masked tokens.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bert_mlperf.kernels.attention import AttentionRows
from bert_mlperf.kernels.dropout import Dropout, Site, site_key
from bert_mlperf.kernels.lamb_table import LambPiece, LambTable
from bert_mlperf.kernels.registry import KERNELS, unavailable
from bert_mlperf.kernels.unsupported import Unsupported

HIDDEN, FEED_FORWARD, HEADS, VOCABULARY, LENGTH = 1024, 4096, 16, 30_522, 512
SAMPLES = {"cpu": 4, "cuda": 48}  # of a micro-batch
EPSILON, PROBABILITY = 1e-12, 0.1

Call = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """One kernel at one shape. `calls` are forward and backward by name of the implementation."""

    kernel: str
    shape: str
    bytes: int
    flops: int
    calls: Mapping[str, Call]


@dataclass(frozen=True)
class Machine:
    """What the device can do."""

    bandwidth: float  # bytes/s, read and written, of a copy
    peak: float  # FLOP/s of a large matrix product in bf16


class Inputs:
    """Random tensors of one device in bf16."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.samples = SAMPLES[device.type]
        self.tokens = self.samples * LENGTH
        self.dtype = torch.bfloat16

    def values(self, *shape: int, scale: float = 1.0) -> Tensor:
        return (scale * torch.randn(*shape, device=self.device)).to(self.dtype).requires_grad_()

    def dropout(self, site: Site) -> Dropout:
        samples = torch.arange(self.samples, dtype=torch.int32, device=self.device).repeat_interleave(LENGTH)
        positions = torch.arange(LENGTH, dtype=torch.int32, device=self.device).repeat(self.samples)
        return Dropout(PROBABILITY, site_key(1, 1, 1, site), samples, positions)

    def ids(self, most: int, count: int | None = None) -> Tensor:
        return torch.randint(0, most, (count or self.tokens,), device=self.device)


def trained(function: Callable[..., Tensor], *arguments: Any, **options: Any) -> Call:
    """Forward and backward with a gradient of ones, gradients let go."""
    leaves = [x for x in arguments if isinstance(x, Tensor) and x.requires_grad]

    def call() -> None:
        out = function(*arguments, **options)
        torch.autograd.grad(out, leaves, torch.ones_like(out))

    return call


def implementations(kernel: str, operation: str, device: torch.device) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Those that can run here."""
    for name, function in KERNELS[kernel].OPERATIONS[operation].items():
        if unavailable(name, device.type) is None:
            yield name, function


def case_of(
    kernel: str, shape: str, moved: int, flops: int, eager: Call, device: torch.device, *arguments: Any, **options: Any
) -> Case:
    """A kernel that is a function with gradients."""
    calls = {name: trained(f, *arguments, **options) for name, f in implementations(kernel, kernel, device)}
    return Case(kernel, shape, moved, flops, {"eager": eager} | calls)


def embedding_case(x: Inputs) -> Case:
    tables = [x.values(VOCABULARY, HIDDEN), x.values(LENGTH, HIDDEN), x.values(2, HIDDEN)]
    norm, ids = [x.values(HIDDEN), x.values(HIDDEN)], [x.ids(VOCABULARY), x.ids(LENGTH), x.ids(2)]

    def eager(*inputs: Tensor) -> Tensor:
        word, position, segment, weight, shift = inputs
        summed = F.embedding(ids[0], word, sparse=True) + F.embedding(ids[1], position) + F.embedding(ids[2], segment)
        return F.dropout(F.layer_norm(summed, (HIDDEN,), weight, shift, EPSILON), PROBABILITY)

    rows = x.tokens * HIDDEN
    return case_of(
        "embedding_layer_norm", f"{x.tokens} x {HIDDEN}", 2 * 5 * rows, 0, trained(eager, *tables, *norm), x.device,
        *tables, *norm, *ids, epsilon=EPSILON, dropout=x.dropout(Site.EMBEDDINGS),
    )  # fmt: skip


def layer_norm_case(x: Inputs) -> Case:
    values, bias, residual = x.values(x.tokens, HIDDEN), x.values(HIDDEN), x.values(x.tokens, HIDDEN)
    weight, shift = x.values(HIDDEN), x.values(HIDDEN)

    def eager(values: Tensor, bias: Tensor, residual: Tensor, weight: Tensor, shift: Tensor) -> Tensor:
        return F.layer_norm(residual + F.dropout(values + bias, PROBABILITY), (HIDDEN,), weight, shift, EPSILON)

    arguments = (values, bias, residual, weight, shift)
    moved = 2 * 8 * x.tokens * HIDDEN  # forward: x, residual, z, y; backward: dy, z, dx, dresidual
    return case_of(
        "dropout_add_layer_norm", f"{x.tokens} x {HIDDEN}", moved, 0, trained(eager, *arguments), x.device,
        *arguments, epsilon=EPSILON, dropout=x.dropout(Site.OUTPUT),
    )  # fmt: skip


def gelu_case(x: Inputs) -> Case:
    values, bias = x.values(x.tokens, FEED_FORWARD), x.values(FEED_FORWARD)
    eager = trained(lambda v, b: F.gelu(v + b, approximate="tanh"), values, bias)
    moved = 2 * 5 * x.tokens * FEED_FORWARD  # x, y; dy, x, dx
    return case_of("bias_gelu", f"{x.tokens} x {FEED_FORWARD}", moved, 0, eager, x.device, values, bias)


def attention_case(x: Inputs) -> Case:
    packed = x.values(x.tokens, 3, HEADS, HIDDEN // HEADS)
    bounds = tuple(range(0, x.tokens + 1, LENGTH))
    offsets = torch.tensor(bounds, dtype=torch.int32, device=x.device)

    def eager(packed: Tensor) -> Tensor:
        q, k, v = packed.view(x.samples, LENGTH, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, dropout_p=PROBABILITY)

    products = 7 * 2 * x.samples * LENGTH * LENGTH * HIDDEN  # 2 forward, 5 backward
    moved = 2 * (4 + 8) * x.tokens * HIDDEN  # q k v out; q k v out dout dq dk dv
    return case_of(
        "attention", f"{x.samples} x {LENGTH}, {HEADS} heads", moved, products, trained(eager, packed), x.device,
        packed, AttentionRows(offsets, offsets, bounds, bounds), dropout=x.dropout(Site.ATTENTION),
    )  # fmt: skip


def cross_entropy_case(x: Inputs) -> Case:
    masked = round(0.15 * x.tokens)
    values, weight, bias = x.values(masked, HIDDEN), x.values(VOCABULARY, HIDDEN, scale=0.02), x.values(VOCABULARY)
    labels = x.ids(VOCABULARY, masked)
    eager = trained(
        lambda v, w, b: F.cross_entropy(F.linear(v, w, b).float(), labels, reduction="sum"), values, weight, bias
    )
    moved = 2 * (2 * values.numel() + 2 * weight.numel() + 4 * masked * VOCABULARY)
    products = 3 * 2 * masked * HIDDEN * VOCABULARY
    return case_of(
        "linear_cross_entropy",
        f"{masked} x {VOCABULARY}",
        moved,
        products,
        eager,
        x.device,
        values,
        weight,
        bias,
        labels,
    )


def cast_case(x: Inputs) -> Case:
    parts = [torch.randn(25 * 2**20, device=x.device).bfloat16() for _ in range(2)]
    out = torch.empty(parts[0].numel(), device=x.device)

    def eager() -> Tensor:
        out.copy_(parts[0]).add_(parts[1])
        return torch.linalg.vector_norm(out)

    calls: dict[str, Call] = {"eager": eager}
    for name, function in implementations("grad_norm_cast", "grad_norm_cast", x.device):
        calls[name] = partial(function, parts, out)
    return Case("grad_norm_cast", f"2 x {out.numel():,} bf16", (2 + 2 + 4) * out.numel(), 0, calls)


def lamb_case(x: Inputs) -> Case:
    size = 25 * 2**20  # 25 tensors of a million elements
    pieces = [LambPiece(number, *3 * [number * 2**20], 2**20) for number in range(25)]
    table = LambTable.of(pieces, [True] * 25, x.device)
    g, w, m, v = (torch.randn(size, device=x.device) for _ in range(4))
    v.abs_()
    rounded = torch.empty(size, dtype=x.dtype, device=x.device)
    numbers = torch.tensor([1.0, 0.1, 0.001, 1e-6, 0.01], dtype=torch.float64, device=x.device)
    factors = torch.full((25,), -1e-9, dtype=torch.float64, device=x.device)

    def eager() -> None:
        m.lerp_(g, 0.1)
        v.lerp_(g.square(), 0.001)
        z = m / (v.sqrt() + 1e-6) + 0.01 * w
        norms = torch.linalg.vector_norm(z.view(25, -1), dim=1), torch.linalg.vector_norm(w.view(25, -1), dim=1)
        w.sub_((z.view(25, -1) * (1e-9 * norms[1] / norms[0])[:, None]).view(-1))
        rounded.copy_(w)

    def both(directions: Callable[..., Any], apply: Callable[..., Any]) -> None:
        directions(table, g, w, m, v, numbers, zero_not_finite=False)
        apply(table, g, w, factors, rounded)

    applies = dict(implementations("lamb", "lamb_apply", x.device))
    calls: dict[str, Call] = {"eager": eager}
    for name, directions in implementations("lamb", "lamb_directions", x.device):
        calls[name] = partial(both, directions, applies[name])
    moved = (4 * (4 + 3) + 4 * (2 + 1) + 2) * size  # g w m v, z m v; z w, w, and w in 16 bits
    return Case("lamb", f"25 x {2**20:,}", moved, 0, calls)


CASES: dict[str, Callable[[Inputs], Case]] = {
    "embedding_layer_norm": embedding_case,
    "dropout_add_layer_norm": layer_norm_case,
    "bias_gelu": gelu_case,
    "attention": attention_case,
    "linear_cross_entropy": cross_entropy_case,
    "lamb": lamb_case,
    "grad_norm_cast": cast_case,
}


def seconds_of(call: Call, device: torch.device, budget: float) -> float:
    """Median of the calls that fit into `budget` seconds, after two to warm up."""

    def once() -> float:
        start = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - start

    once()
    once()
    taken: list[float] = []
    while sum(taken) < budget or len(taken) < 3:
        taken.append(once())
    return statistics.median(taken)


def machine_of(device: torch.device) -> Machine:
    source = torch.empty(64 * 2**20, device=device)
    target, a = torch.zeros_like(source), torch.randn(4096, 4096, device=device).bfloat16()
    copied = seconds_of(lambda: target.copy_(source), device, 0.5)
    multiplied = seconds_of(lambda: a @ a, device, 0.5)
    return Machine(2 * source.numel() * 4 / copied, 2 * 4096**3 / multiplied)


def rows_of(case: Case, machine: Machine, device: torch.device, budget: float) -> Iterator[str]:
    """Lines of the table."""
    floor = max(case.bytes / machine.bandwidth, case.flops / machine.peak)
    start = f"| {case.kernel} | {case.shape} | {case.bytes / 1e6:.0f} | {case.flops / 1e9:.0f} | {1e3 * floor:.3f} |"
    eager = seconds_of(case.calls["eager"], device, budget)
    for name, call in case.calls.items():
        try:
            seconds = eager if name == "eager" else seconds_of(call, device, budget)
        except Unsupported as reason:
            yield f"{start} {name} | ({reason}) | | |"
            continue
        yield f"{start} {name} | {1e3 * seconds:.3f} | {floor / seconds:.0%} | {eager / seconds:.2f} |"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bert_mlperf.kernels.bench", description="Times the kernels.")
    parser.add_argument("kernels", nargs="*", metavar="KERNEL", help=f"of {', '.join(CASES)} (default: all)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=0.5, help="for each row (default: %(default)s)")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.kernels if name not in CASES]
    if unknown:
        parser.error(f"no kernel is named {unknown[0]}, expected {', '.join(CASES)}")
    if not 0 < options.seconds <= 60:
        parser.error(f"--seconds is {options.seconds}, expected more than 0 and at most 60")
    device = torch.device(options.device)
    torch.manual_seed(0)
    machine = machine_of(device)
    speeds = f"copy {machine.bandwidth / 1e9:.0f} GB/s, bf16 products {machine.peak / 1e9:.0f} GFLOP/s"
    print(f"{options.device}: {speeds}, torch {torch.__version__}\n")
    print("| kernel | shape | MB | GFLOP | floor, ms | implementation | ms | of floor | times eager |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name in options.kernels or CASES:
        for line in rows_of(CASES[name](Inputs(device)), machine, device, options.seconds):
            print(line, flush=True)


if __name__ == "__main__":
    main()
