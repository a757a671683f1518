"""`bert-mlperf bench loader`: how fast samples come, what they cost and who waits for them, in each mode."""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from bert_mlperf.bench.machine import Disturbance, machine, say, wide_console
from bert_mlperf.bench.ranks import run_on_loopback
from bert_mlperf.bench.samples import mlperf_like_lengths, random_samples
from bert_mlperf.data.balance import BALANCES, Imbalance, deal
from bert_mlperf.data.dali import dali_missing
from bert_mlperf.data.index import IndexedFile, SampleIndex, write_index
from bert_mlperf.data.indexing import index_of
from bert_mlperf.data.shards import write_shard
from bert_mlperf.errors import UserError
from bert_mlperf.report.balance_chart import draw_balance

PACE = 1453.0  # samples/s: what the fastest published accelerator eats (MLPerf Training 5.0, B200)
RANKS, PER_RANK = 64, 48  # of the published 64-GPU runs
VOCABULARY = 30_522
_DRAW = "bert_mlperf.bench.loader_rank:draw"
_PLAN = "bert_mlperf.bench.loader_rank:plan_batches"


@dataclass(frozen=True)
class Settings:
    """Sizes of the benchmark; `data` None makes samples of MLPerf-like lengths."""

    data: Path | None = None
    ranks: int = 2
    micro_batch: int = 48
    workers: int = 1
    samples: int = 100_000  # that each rank draws as fast as they come
    seconds: float = 60.0  # that each rank draws at PACE
    out: Path = Path("results/bench")

    def check(self) -> None:
        """Raises UserError if a size makes no sense."""
        if not (1 <= self.ranks <= 16 and 1 <= self.micro_batch <= 4096 and 1 <= self.workers <= 64):
            raise UserError(
                f"got --ranks {self.ranks}, --micro-batch {self.micro_batch} and --workers {self.workers}, expected 1 "
                "to 16 ranks, 1 to 4096 samples and 1 to 64 workers; give others."
            )
        if not (self.micro_batch <= self.samples <= 10**9 and 0.1 <= self.seconds <= 3600):
            raise UserError(
                f"got --samples {self.samples} and --seconds {self.seconds:g}, expected {self.micro_batch} to "
                "1,000,000,000 samples and 0.1 to 3600 seconds; give others."
            )


def bench_loader(settings: Settings) -> None:
    """Prints a table of all modes, one of the index at two sizes and one of the balance; draws tokens per rank."""
    settings.check()
    try:
        settings.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"--out is {settings.out}, where no folder can be made ({error.strerror}); give another."
        ) from error
    disturbance, missing = Disturbance(), dali_missing()
    with tempfile.TemporaryDirectory(prefix="bert-mlperf-bench-") as folder:
        data = settings.data or make_shards(Path(folder))
        index = index_of(data)
        rows = []
        for loader in ("torch", "dali") if missing is None else ("torch",):
            for read in ("index", "exchange"):
                say(f"{loader}, {read}: {settings.samples:,} samples, then {settings.seconds:g} s")
                rows.append((loader, read, measure(settings, data, index, loader=loader, read=read)))
        sizes = [(millions, measure_plan(Path(folder), millions)) for millions in (1, 100)]
    show(settings, data, rows, sizes, missing, disturbance)


def make_shards(folder: Path) -> Path:
    """20,000 samples of MLPerf-like lengths in 8 shards."""
    generator = np.random.default_rng(0)
    shards = folder / "shards"
    shards.mkdir()
    for number in range(8):
        samples = random_samples(mlperf_like_lengths(2500, 512, generator), VOCABULARY, generator)
        write_shard(shards / f"part_{number}_of_8.hdf5", samples, vocab_size=VOCABULARY)
    return shards


def measure(settings: Settings, data: Path, index: Path, *, loader: str, read: str) -> list[dict[str, float]]:
    """One mode on all ranks, one core each."""
    arguments = {
        "data": str(data),
        "index": str(index),
        "loader": loader,
        "read": read,
        "workers": settings.workers,
        "micro_batch": settings.micro_batch,
        "pace": PACE,
        "free_samples": settings.samples,
        "paced_seconds": settings.seconds,
    }
    timeout_s = 120 + settings.samples / 500 + settings.seconds
    return run_on_loopback(_DRAW, arguments, num_hosts=1, ranks_per_host=settings.ranks, timeout_s=timeout_s)


def measure_plan(folder: Path, millions: int) -> dict[str, float]:
    """Planning batches over a made-up index of so many million samples."""
    path = folder / f"{millions}.index"
    lengths = np.resize(mlperf_like_lengths(100_003, 512, np.random.default_rng(0)).astype(np.uint16), millions * 10**6)
    write_index(path, SampleIndex((IndexedFile("made-up", len(lengths), ""),), lengths, lengths // 7))
    arguments = {"index": str(path), "micro_batch": RANKS * PER_RANK, "steps": 300}
    (result,) = run_on_loopback(_PLAN, arguments, num_hosts=1, ranks_per_host=1)
    path.unlink()
    return result


def show(
    settings: Settings,
    data: Path,
    rows: list[tuple[str, str, list[dict[str, float]]]],
    sizes: list[tuple[int, dict[str, float]]],
    missing: str | None,
    disturbance: Disturbance,
) -> None:
    """Prints the tables and draws the picture."""
    console = wide_console()
    what = "MLPerf-like lengths" if settings.data is None else str(data)
    title = f"{settings.ranks} ranks, a core each, micro-batches of {settings.micro_batch}, {what}; of the slowest rank"
    table = Table(title=title, title_justify="left")
    for name in (
        "loader", "read", "first batch, s", "samples/s", "per core second", "memory, MB",
        f"grown in {settings.samples:,}", f"waits at {PACE:,.0f}/s",
    ):  # fmt: skip
        table.add_column(name, justify="right")
    for loader, read, results in rows:
        table.add_row(loader, read, *cells(results))
    console.print(table)
    if missing is not None:
        console.print(f"no rows of dali: {missing}")
    for millions, plan in sizes:
        console.print(
            f"index of {millions:,} million samples: {plan['grown']:.0f} MB more in memory after 300 global batches "
            f"all over it, {plan['milliseconds']:.1f} ms a batch of {RANKS * PER_RANK:,}"
        )
    show_balance(console, settings.out)
    console.print(machine(disturbance))


def cells(results: list[dict[str, float]]) -> list[str]:
    """Of the rank that is worst off."""
    first, memory, grown, waited = (max(r[name] for r in results) for name in ("first", "memory", "grown", "waited"))
    rate, cpu_rate = (min(r[name] for r in results) for name in ("rate", "cpu_rate"))
    late = max(r["late"] for r in results)
    behind = f", {late:.1f} s late" if late > 0.1 else ""
    return [
        f"{first:.2f}",
        f"{rate:,.0f}",
        f"{cpu_rate:,.0f}",
        f"{memory:,.0f}",
        f"{grown:+.1f} MB",
        f"{waited:.2%}{behind}",
    ]


def show_balance(console: Any, out: Path) -> None:
    """Tokens of 64 ranks with 48 samples each in one global batch, and by how much the largest exceeds the mean."""
    generator = np.random.default_rng(0)
    batches = [mlperf_like_lengths(RANKS * PER_RANK, 512, generator) for _ in range(200)]
    table = Table(title=f"{RANKS} ranks x {PER_RANK} samples, 200 global batches", title_justify="left")
    for name in ("balance", "tokens, mean", "worst batch", "attention cost, mean", "worst batch"):
        table.add_column(name, justify="right")
    for balance in BALANCES:
        found = [Imbalance.of(lengths, deal(lengths, RANKS, balance=balance)) for lengths in batches]
        tokens, attention = [i.tokens for i in found], [i.attention for i in found]
        table.add_row(
            balance, *(f"{value:+.2%}" for work in (tokens, attention) for value in (np.mean(work), max(work)))
        )
    console.print(table)
    tokens_of = {
        balance: [int(batches[0][part].sum()) for part in deal(batches[0], RANKS, balance=balance)]
        for balance in BALANCES
    }
    say(str(draw_balance(out / "balance.png", tokens_of)))
