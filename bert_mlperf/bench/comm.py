"""`bert-mlperf bench comm`: what the reduction strategies send over a slow link, and how long they take.

Emulated hosts (hosts.py) reduce and gather as a training step does (comm/choose.py), in turn. Bytes are read from the
interface counters of each host, without what crosses the link when nobody works; theory is traffic.py.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from bert_mlperf.bench.hosts import COUNTERS, emulated_hosts, why_not
from bert_mlperf.bench.machine import Disturbance, machine, say, wide_console
from bert_mlperf.bench.ranks import run_on_hosts, run_on_loopback
from bert_mlperf.bench.traffic import bytes_sent
from bert_mlperf.comm.choose import Candidate, Exchange, choose, close_groups
from bert_mlperf.comm.control import Control
from bert_mlperf.comm.reduction import STRATEGIES, Reduction
from bert_mlperf.comm.topology import Groups, Topology, open_groups
from bert_mlperf.errors import UserError
from bert_mlperf.optim.layout import FlatLayout, make_layout

ROUNDS = 5
UNITS = 12  # of equal size, as the layers of a model
BUCKET_BYTES = 25 * 2**20  # the default of run.bucket_mib
IDLE_S = 1.0
_HERE = "bert_mlperf.bench.comm"
_CPU = torch.device("cpu")
_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Row:
    """What was measured of one strategy."""

    strategy: str
    seconds: tuple[float, ...]  # of each step, on the slowest rank
    sent: float | None  # bytes that left a host in a step, mean over hosts; None: there is no link
    expected: float  # the same in theory

    @property
    def median(self) -> float:
        return median(self.seconds)


def bench_comm(*, mbit: Sequence[float], hosts: int, ranks: int, megabytes: float) -> None:
    """Prints a table for each link speed and one for the loopback. `ranks` are those of a host, `megabytes` (10^6
    bytes) of fp32 gradients. UserError without the means to emulate hosts."""
    check_sizes(mbit, hosts, ranks, megabytes)
    console = wide_console()
    gradients = round(megabytes * 1e6 / 4) * 4
    job = {"ranks_per_host": ranks, "gradients": gradients}
    console.print(f"{gradients / 1e6:.1f} MB of gradients, fp32, {hosts} hosts x {ranks} ranks\n")
    disturbance = Disturbance()
    for speed in mbit:
        with emulated_hosts(hosts, mbit=speed) as emulated:
            say(f"{hosts} hosts x {ranks} ranks, {speed:g} Mbit/s")
            results = run_on_hosts(f"{_HERE}:measure", job, hosts=emulated, ranks_per_host=ranks)
        show(
            console,
            f"link {speed:g} Mbit/s",
            rows_of(results, ranks_per_host=ranks, gradients=gradients, counted=True),
            results[0]["auto"],
        )
    say("loopback")
    results = run_on_loopback(f"{_HERE}:measure", job | {"counters": False}, num_hosts=hosts, ranks_per_host=ranks)
    show(
        console,
        "loopback",
        rows_of(results, ranks_per_host=ranks, gradients=gradients, counted=False),
        results[0]["auto"],
    )
    world = hosts * ranks
    say(f"reduce-scatter, {world} hosts x 1 rank")
    with emulated_hosts(world, mbit=max(mbit)) as emulated:
        sent = run_on_hosts(f"{_HERE}:reduce_scatter", {"gradients": gradients}, hosts=emulated, ranks_per_host=1)
    share = max(sent) / ((world - 1) / world * gradients)
    console.print(
        f"flat's reduce-scatter, {world} hosts x 1 rank: a rank sends at most {max(sent) / 1e6:.2f} MB, {share:.3f} x "
        f"(n-1)/n of the gradients\n{machine(disturbance)}"
    )


def check_sizes(mbit: Sequence[float], hosts: int, ranks: int, megabytes: float) -> None:
    """Raises UserError if the benchmark cannot be run so, or not here."""
    if not all(1 <= speed <= 100_000 for speed in mbit):
        raise UserError(f"--mbit is {list(mbit)}, expected speeds from 1 to 100,000 Mbit/s; give others.")
    if not (2 <= hosts <= 16 and 1 <= ranks <= 16):
        raise UserError(
            f"got --hosts {hosts} and --ranks {ranks}, expected 2 to 16 hosts of 1 to 16 ranks; give others."
        )
    if not 0.1 <= megabytes <= 10_000:
        raise UserError(f"--megabytes is {megabytes:g}, expected 0.1 to 10,000; give another size.")
    reason = why_not()
    if reason is not None:
        raise UserError(reason)


def layout_of(gradients: int, num_shards: int) -> FlatLayout:
    """Buckets of fp32 gradients of `gradients` bytes in all."""
    shapes = {f"layer {i}": (gradients // 4 // UNITS,) for i in range(UNITS)}
    units = [[name] for name in shapes]
    return make_layout(shapes, units=units, decayed=shapes, num_shards=num_shards, bucket_size=BUCKET_BYTES // 4)


def candidates_of(control: Control, ranks_per_host: int, gradients: int) -> list[Candidate]:
    sizes = {strategy: ranks_per_host for strategy in STRATEGIES} | {"flat": control.world_size}
    return [
        Candidate(strategy, Topology(control.rank, control.world_size, size), layout_of(gradients, size))
        for strategy, size in sizes.items()
    ]


def exchange_of(candidate: Candidate, groups: Groups) -> Exchange:
    reduction = Reduction(candidate.topology, groups, strategy=candidate.strategy)
    return Exchange(candidate.layout, reduction, _CPU, wire=torch.float32, weights=torch.float32)


def measure(control: Control, *, ranks_per_host: int, gradients: int, counters: bool = True) -> dict[str, Any]:
    """On each rank: what auto chooses; then, in turn, seconds of each step of each strategy and bytes that this host
    sent in it (`counters`: those of the interface are read)."""
    candidates = candidates_of(control, ranks_per_host, gradients)
    opened = [open_groups(c.topology, timeout_s=_TIMEOUT_S) for c in candidates]
    choice = choose(candidates, opened, control, _CPU, wire=torch.float32, weights=torch.float32)
    opened = [open_groups(c.topology, timeout_s=_TIMEOUT_S) for c in candidates]
    exchanges = [exchange_of(c, g) for c, g in zip(candidates, opened, strict=True)]
    idle = idle_rate(control) if counters else 0.0
    seconds: dict[str, list[float]] = {c.strategy: [] for c in candidates}
    sent: dict[str, list[float]] = {c.strategy: [] for c in candidates}
    for number in range(1 + ROUNDS):
        for candidate, exchange in zip(candidates, exchanges, strict=True):
            before, start = sent_so_far(control, counters), time.perf_counter()
            exchange.step()
            took = slowest(control, time.perf_counter() - start)
            bytes_now = sent_so_far(control, counters) - before - idle * took
            if number > 0:  # the first one warms up
                seconds[candidate.strategy].append(took)
                sent[candidate.strategy].append(bytes_now)
    for groups in opened:
        close_groups(groups)
    return {"seconds": seconds, "sent": sent, "auto": choice.to_json()}


def reduce_scatter(control: Control, *, gradients: int) -> float:
    """Bytes that this rank, alone on its host, sends in one reduction of flat."""
    (flat,) = (c for c in candidates_of(control, 1, gradients) if c.strategy == "flat")
    exchange = exchange_of(flat, open_groups(flat.topology, timeout_s=_TIMEOUT_S))
    idle, before, start = idle_rate(control), sent_so_far(control, True), time.perf_counter()
    exchange.reduce()
    return sent_so_far(control, True) - before - idle * (time.perf_counter() - start)


def idle_rate(control: Control) -> float:
    """Bytes per second that this host sends while its ranks wait."""
    before = sent_so_far(control, True)
    time.sleep(IDLE_S)
    return (sent_so_far(control, True) - before) / IDLE_S


def sent_so_far(control: Control, counters: bool) -> int:
    """Bytes that have left this host when all ranks are here; none goes on before all have read it."""
    slowest(control, 0.0)
    value = int((COUNTERS / "tx_bytes").read_text()) if counters else 0
    slowest(control, 0.0)
    return value


def slowest(control: Control, seconds: float) -> float:
    value = torch.tensor([seconds], dtype=torch.float64)
    control.max(value)
    return value.item()


def rows_of(results: Sequence[dict[str, Any]], *, ranks_per_host: int, gradients: int, counted: bool) -> list[Row]:
    """One row a strategy from what the ranks returned."""
    hosts = len(results) // ranks_per_host
    firsts = results[::ranks_per_host]  # one rank of each host
    rows = []
    for strategy, seconds in results[0]["seconds"].items():
        sent = sum(sum(r["sent"][strategy]) for r in firsts) / hosts / len(seconds) if counted else None
        expected = bytes_sent(
            strategy, hosts=hosts, ranks_per_host=ranks_per_host, gradients=gradients, weights=gradients
        )
        rows.append(Row(strategy, tuple(seconds), sent, expected))
    return rows


def show(console: Console, title: str, rows: Sequence[Row], auto: dict[str, Any]) -> None:
    """Prints a table of steps and what auto chose."""
    table = Table(title=title, title_justify="left")
    table.add_column("strategy", no_wrap=True)
    for heading in ("MB sent per host", "theory", "ratio", "median s", "min s", "best other / this"):
        table.add_column(heading, justify="right")
    for row in rows:
        other = min(r.median for r in rows if r is not row)
        traffic = ("-", "-", "-")
        if row.sent is not None:
            traffic = (f"{row.sent / 1e6:.2f}", f"{row.expected / 1e6:.2f}", f"{row.sent / row.expected:.3f}")
        times = (f"{row.median:.3f}", f"{min(row.seconds):.3f}", f"{other / row.median:.2f}")
        table.add_row(row.strategy, *traffic, *times)
    console.print(table)
    medians = {row.strategy: row.median for row in rows}
    taken = medians[auto["chosen"]] / min(medians.values())
    console.print(f"auto: {auto['why']}; in this table it takes {taken:.3f} x the fastest\n")
