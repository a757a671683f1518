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
        help="sizes of text, made by repeating it whole (default: 3, 26.7 and 80; an official part has 26.9)",
    )
    _add_comm(subjects)
    _add_overlap(subjects)
    _add_peers(subjects)
    _add_loader(subjects)
    step = subjects.add_parser("step", help="a training step of BERT on the CPU beside Hugging Face's")
    step.add_argument("--model", default="bert-large", help="bert-large or bert-base (default: %(default)s)")
    for name, default, what in (
        ("samples", 4, "samples of a step"),
        ("steps", 3, "measured steps of each"),
        ("threads", 0, "CPU threads, 0: all cores"),
    ):
        step.add_argument(f"--{name}", type=int, default=default, metavar="N", help=f"{what} (default: %(default)s)")


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


def _add_overlap(subjects: Any) -> None:
    overlap = subjects.add_parser(
        "overlap", help="a training step with and without overlap between emulated hosts (root)"
    )
    overlap.add_argument("--mbit", type=float, help="speed of the link (default: reduction takes as long as backward)")
    overlap.add_argument("--hosts", type=int, default=2, help="emulated hosts (default: %(default)s)")
    overlap.add_argument("--ranks", type=int, default=2, help="ranks of a host (default: %(default)s)")
    overlap.add_argument("--steps", type=int, default=3, help="steps of each turn (default: %(default)s)")
    overlap.add_argument("--turns", type=int, default=2, help="turns of both ways (default: %(default)s)")
    overlap.add_argument(
        "--out",
        type=Path,
        default=Path("results/bench"),
        metavar="DIR",
        help="folder of timelines (default: %(default)s)",
    )


def _add_peers(subjects: Any) -> None:
    peers = subjects.add_parser("peers", help="a training step beside torch's DDP with ZeRO and FSDP2, 2 ranks")
    for name, default, what in (
        ("layers", 4, "encoder layers"),
        ("hidden", 512, "width of the model"),
        ("vocabulary", 30_522, "tokens"),
        ("samples", 1, "samples of one rank in a step"),
        ("max-length", 128, "tokens of the longest sample"),
        ("rounds", 7, "measured turns of each way"),
        ("steps", 3, "steps of a turn"),
    ):
        peers.add_argument(f"--{name}", type=int, default=default, metavar="N", help=f"{what} (default: %(default)s)")


def _add_loader(subjects: Any) -> None:
    loader = subjects.add_parser("loader", help="how fast samples come in each mode, and who waits for them")
    loader.add_argument("--data", type=Path, metavar="SHARDS", help="samples (default: made, of MLPerf-like lengths)")
    for name, default, what in (
        ("ranks", 2, "ranks, a core each"),
        ("micro-batch", 48, "samples of a rank in a step"),
        ("workers", 1, "threads of a rank"),
        ("samples", 100_000, "samples that a rank draws as fast as they come"),
    ):
        loader.add_argument(f"--{name}", type=int, default=default, metavar="N", help=f"{what} (default: %(default)s)")
    loader.add_argument(
        "--seconds", type=float, default=60.0, help="time in which a rank draws at a pace (default: %(default)s)"
    )
    loader.add_argument(
        "--out",
        type=Path,
        default=Path("results/bench"),
        metavar="DIR",
        help="folder of the picture (default: %(default)s)",
    )


def run_bench(options: argparse.Namespace) -> int:
    """Runs one benchmark and returns its exit code."""
    from bert_mlperf.train.stop import raising_when_stopped

    if options.subject == "comm":
        from bert_mlperf.bench.comm import bench_comm

        with raising_when_stopped():
            bench_comm(mbit=options.mbit, hosts=options.hosts, ranks=options.ranks, megabytes=options.megabytes)
    elif options.subject == "overlap":
        from bert_mlperf.bench.overlap import bench_overlap

        with raising_when_stopped():
            bench_overlap(
                hosts=options.hosts,
                ranks=options.ranks,
                steps=options.steps,
                turns=options.turns,
                mbit=options.mbit,
                out=options.out,
            )
    elif options.subject == "peers":
        from bert_mlperf.bench.peers import Settings, bench_peers

        fields = ("layers", "hidden", "vocabulary", "samples", "max_length", "rounds", "steps")
        with raising_when_stopped():
            bench_peers(Settings(**{name: getattr(options, name) for name in fields}))
    elif options.subject == "loader":
        from bert_mlperf.bench.loader import Settings as LoaderSettings
        from bert_mlperf.bench.loader import bench_loader

        fields = ("data", "ranks", "micro_batch", "workers", "samples", "seconds", "out")
        with raising_when_stopped():
            bench_loader(LoaderSettings(**{name: getattr(options, name) for name in fields}))
    elif options.subject == "step":
        from bert_mlperf.bench.step import Settings as StepSettings
        from bert_mlperf.bench.step import bench_step

        with raising_when_stopped():
            bench_step(StepSettings(options.model, options.samples, options.steps, options.threads))
    else:
        from bert_mlperf.data_prep.bench import bench_prep

        bench_prep(text=options.text, vocabulary=options.vocab, megabytes=options.megabytes)
    return 0
