"""The commands `bert-mlperf bench ...`: speed and memory, measured here and now against a named peer."""

import argparse
from pathlib import Path
from typing import Any


def add_bench(commands: Any) -> None:
    """Adds `bench` with its commands to the subparsers of the command line."""
    bench = commands.add_parser("bench", help="measure speed and memory on this machine")
    subjects = bench.add_subparsers(dest="subject", required=True, metavar="SUBJECT")
    prep = subjects.add_parser("prep", help="how fast and in how much memory text becomes examples")
    prep.add_argument("--text", type=Path, metavar="FILE", help="text to measure with (default: the demo corpus)")
    prep.add_argument("--vocab", type=Path, metavar="FILE", help="its vocabulary")
    prep.add_argument(
        "--megabytes",
        type=float,
        nargs="+",
        default=[3.0, 26.7, 80.0],
        metavar="MB",
        help="sizes of text, made by repeating it (default: 3, 26.7 and 80; an official part has 26.9)",
    )
    _add_comm(subjects)


def _add_comm(subjects: Any) -> None:
    comm = subjects.add_parser("comm", help="bytes and time of the reduction strategies between emulated hosts (root)")
    comm.add_argument(
        "--mbit", type=float, nargs="+", default=[200.0, 1000.0], help="speeds of the link (default: 200 and 1000)"
    )
    comm.add_argument("--hosts", type=int, default=2, help="emulated hosts (default: %(default)s)")
    comm.add_argument("--ranks", type=int, default=2, help="ranks of a host (default: %(default)s)")
    comm.add_argument(
        "--megabytes", type=float, default=33.6, metavar="MB", help="size of the gradients (default: %(default)s)"
    )


def run_bench(options: argparse.Namespace) -> int:
    """Runs one benchmark and returns its exit code."""
    if options.subject == "comm":
        from bert_mlperf.bench.comm import bench_comm
        from bert_mlperf.train.stop import raising_when_stopped

        with raising_when_stopped():
            bench_comm(mbit=options.mbit, hosts=options.hosts, ranks=options.ranks, megabytes=options.megabytes)
        return 0
    from bert_mlperf.data_prep.bench import bench_prep

    bench_prep(text=options.text, vocabulary=options.vocab, megabytes=options.megabytes)
    return 0
