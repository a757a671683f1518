"""The command `bert-mlperf plan`: what a rank of a system would hold and send, without its machines."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from bert_mlperf.config.doctor import PIPE_WIDTH
from bert_mlperf.config.system import load_system

if TYPE_CHECKING:
    from bert_mlperf.train.dry_run import DryRun


def add_plan(commands: Any) -> argparse.ArgumentParser:
    """Adds `plan` to the subparsers of the command line."""
    plan = commands.add_parser("plan", help="print groups, shards, bytes and memory of a rank, without its machines")
    plan.add_argument("--system", type=Path, default=Path("systems/local-cpu.json"), help="system file")
    plan.add_argument("--nodes", type=int, metavar="N", help="number of nodes (default: that of the system)")
    plan.add_argument("--rank", type=int, default=0, metavar="R", help="the rank to look at (default: 0)")
    return plan


def run_plan(options: argparse.Namespace) -> int:
    """Prints one table per strategy and returns the exit code 0. UserError as usual."""
    from bert_mlperf.train.dry_run import dry_runs

    resolved = load_system(options.system, options.overrides)
    run, nodes = resolved.run, resolved.number_of_nodes if options.nodes is None else options.nodes
    found = dry_runs(run, nodes=nodes, rank=options.rank)
    console = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH)
    console.print(
        f"{run.model.name}: {run.model.num_parameters:,} parameters, {run.precision}; rank {options.rank} of "
        f"{nodes} nodes x {run.ranks_per_node} ranks; run.reduction is {run.reduction}",
        highlight=False,
    )
    for strategy, result in found.items():
        if isinstance(result, str):
            console.print(f"\n{strategy}: not possible here: {result}", highlight=False, markup=False)
        else:
            console.print(table(result))
    return 0


def table(result: "DryRun") -> Table:
    """The rows of one strategy."""
    lines = Table(title=f"\n{result.plan.strategy}", title_justify="left", box=None, pad_edge=False)
    lines.add_column("what", no_wrap=True)
    lines.add_column("value", overflow="fold")
    for what, value in [*groups(result), *shard(result), *buckets(result), *sizes(result)]:
        lines.add_row(what, value)
    return lines


def groups(result: "DryRun") -> list[tuple[str, str]]:
    topology = result.topology
    counts = {"shard": topology.num_replicas, "replica": topology.shard_group_size}
    return [
        (f"{kind} group", f"{' '.join(map(str, result.groups[kind]))} (one of {count})")
        for kind, count in counts.items()
    ]


def shard(result: "DryRun") -> list[tuple[str, str]]:
    layout, first, last = result.state.flat.layout, result.first, result.last
    return [
        ("flat buffer", f"{layout.size:,} elements, padding included"),
        ("shard", f"number {result.topology.shard} of {layout.num_shards}, {layout.shard_size:,} elements"),
        ("  begins", f"at element {first.offset:,} of {first.tensor}"),
        ("  ends", f"before element {last.offset:,} of {last.tensor}"),
        ("  pieces", f"{result.num_pieces} of {len(result.state.optimizer.ranges)} tensors, {result.num_cut} cut"),
    ]


def buckets(result: "DryRun") -> list[tuple[str, str]]:
    return [
        (f"bucket {number}", f"{bucket.size:,} elements, {bucket.parameters[0]} to {bucket.parameters[-1]}")
        for number, bucket in enumerate(result.state.flat.layout.buckets)
    ]


def sizes(result: "DryRun") -> list[tuple[str, str]]:
    traffic, memory = result.traffic, result.memory
    return [
        (f"{label} {name}", f"{size:>15,} bytes {size / 2**20:>10,.1f} MiB")
        for label, values in (("sends", traffic), ("holds", memory))
        for name, size in [
            *((name.replace("_", "-"), size) for name, size in vars(values).items()),
            ("total", values.total),
        ]
    ]
