"""Which way of summing gradients is the fastest here: what `run.reduction: auto` does before the clock starts.

Every candidate does what a step asks of it (reduce all buckets, gather all buckets; real sizes, real wire dtype), in
turn with the others so that a disturbance hits all of them alike. A repetition lasts as long as on its slowest rank,
so all ranks see the same numbers and take the same decision.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import torch
import torch.distributed as dist

from bert_mlperf.comm.control import Control
from bert_mlperf.comm.reduction import InFlight, Reduction
from bert_mlperf.comm.topology import Groups, Topology
from bert_mlperf.comm.wire import slices_of_buckets
from bert_mlperf.optim.layout import FlatLayout

LEAST_REPETITIONS, MOST_REPETITIONS = 3, 25
BUDGET_S = 10.0  # no further repetition once all together have taken as long; warm-up excluded


@dataclass(frozen=True)
class Candidate:
    """A strategy (comm/reduction.py) on the shard groups of `topology`, with the buckets that it would have."""

    strategy: str
    topology: Topology
    layout: FlatLayout


@dataclass(frozen=True)
class Timing:
    """How long a candidate took: seconds of each repetition, on the slowest rank."""

    strategy: str
    shard_group_size: int
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.seconds)


@dataclass(frozen=True)
class Choice:
    """What was timed, and which of it is taken: the one with the smallest median, the first of equal ones."""

    timings: tuple[Timing, ...]

    @property
    def chosen(self) -> int:
        """Index of the fastest."""
        return min(range(len(self.timings)), key=lambda i: self.timings[i].median)

    def lines(self) -> list[str]:
        """A table, a line a candidate, and why."""
        best = self.timings[self.chosen]
        rows = [
            f"{t.strategy:12s} shard groups of {t.shard_group_size:<4d} {1e3 * t.median:10.1f} ms"
            f" ({1e3 * min(t.seconds):.1f} to {1e3 * max(t.seconds):.1f}, {t.median / best.median:.2f} x)"
            for t in self.timings
        ]
        others = [t for t in self.timings if t is not best]
        second = min(others, key=lambda t: t.median)
        times = second.median / best.median
        why = (
            f"{best.strategy} is taken: it reduces and gathers all buckets in {1e3 * best.median:.1f} ms, the median "
            f"of {len(best.seconds)}; the next, {second.strategy}, takes {times:.2f} times as long"
        )
        return [*rows, why]

    def to_json(self) -> dict[str, object]:
        """For reduction.json, beside the log."""
        return {
            "chosen": self.timings[self.chosen].strategy,
            "seconds_per_step": [
                {
                    "strategy": t.strategy,
                    "shard_group": t.shard_group_size,
                    "median": t.median,
                    "repetitions": list(t.seconds),
                }
                for t in self.timings
            ],
            "why": self.lines()[-1],
        }


class Exchange:
    """What ranks send to each other in a step: all buckets are reduced, then gathered, with zeros for values."""

    def __init__(
        self, layout: FlatLayout, reduction: Reduction, device: torch.device, *, wire: torch.dtype, weights: torch.dtype
    ) -> None:
        """Gradients have dtype `wire`, gathered weights `weights`."""
        self._layout, self._reduction, self._wire_dtype = layout, reduction, wire
        self._slices = slices_of_buckets(layout, device)
        bucket = max(bucket.size for bucket in layout.buckets)
        self._part = torch.zeros(bucket // layout.num_shards, device=device)
        self._weights = torch.zeros(bucket, dtype=weights, device=device)

    def reduce(self) -> None:
        in_flight = InFlight()
        for piece in (piece for of_bucket in self._slices for piece in of_bucket):
            target = self._part[piece.start : piece.end]
            in_flight.add(self._reduction.start(self._reduction.wire(target, self._wire_dtype).zero_(), target))
        in_flight.finish()

    def gather(self) -> None:
        for bucket in reversed(self._layout.buckets):
            new = self._part[: bucket.size // self._layout.num_shards].to(self._weights.dtype)
            self._reduction.gather(new, self._weights[: bucket.size])

    def step(self) -> None:
        self.reduce()
        self.gather()


def choose(
    candidates: Sequence[Candidate],
    opened: Sequence[Groups],
    control: Control,
    device: torch.device,
    *,
    wire: torch.dtype,
    weights: torch.dtype,
) -> Choice:
    """Times the candidates on their communicators `opened` with gradients of dtype `wire` and gathered weights of dtype
    `weights`. Every rank calls this; the communicators are closed."""
    reductions = [Reduction(c.topology, g, strategy=c.strategy) for c, g in zip(candidates, opened, strict=True)]
    exchanges = [
        Exchange(c.layout, reduction, device, wire=wire, weights=weights)
        for c, reduction in zip(candidates, reductions, strict=True)
    ]

    def clock() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    def slowest(seconds: float) -> float:
        value = torch.tensor([seconds], dtype=torch.float64, device=device)
        control.max(value)
        return value.item()

    seconds = time_in_turn([exchange.step for exchange in exchanges], clock=clock, slowest=slowest)
    for groups in opened:
        close_groups(groups)
    return Choice(
        tuple(Timing(c.strategy, c.topology.shard_group_size, s) for c, s in zip(candidates, seconds, strict=True))
    )


def close_groups(groups: Groups) -> None:
    """Gives the communicators back."""
    for group in dict.fromkeys(groups.communicators().values()):
        if group is not None:
            dist.destroy_process_group(group)


def time_in_turn(
    works: Sequence[Callable[[], None]], *, clock: Callable[[], float], slowest: Callable[[float], float]
) -> list[tuple[float, ...]]:
    """Seconds of the repetitions of each work, after one that warms up. `slowest` tells how long the slowest rank took
    and lets no rank go on before all are there."""

    def once(work: Callable[[], None]) -> float:
        slowest(0.0)
        start = clock()
        work()
        return slowest(clock() - start)

    for work in works:
        once(work)
    rounds: list[list[float]] = []
    while not is_enough(rounds):
        rounds.append([once(work) for work in works])
    return list(zip(*rounds, strict=True))


def is_enough(rounds: Sequence[Sequence[float]]) -> bool:
    """Whether the repetitions so far (seconds of each candidate) will do."""
    if len(rounds) < LEAST_REPETITIONS:
        return False
    return len(rounds) >= MOST_REPETITIONS or sum(map(sum, rounds)) >= BUDGET_S
