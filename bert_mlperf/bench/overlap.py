"""`bert-mlperf bench overlap`: the same training step with and without communication under compute.

Emulated hosts (hosts.py) train a model of 12 layers x 512 (overlap_rank.py). The link is first made as slow as it must
be for reduction to take as long as backward. Both ways have the same buckets and end with the same bits; parts.py says
what an ideal overlap would take.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from rich.table import Table

from bert_mlperf.bench.hosts import Host, emulated_hosts, set_link
from bert_mlperf.bench.machine import Disturbance, machine, say, wide_console
from bert_mlperf.bench.parts import Parts, parts_of_steps, seconds_of
from bert_mlperf.bench.ranks import run_on_hosts
from bert_mlperf.errors import UserError
from bert_mlperf.report.timeline import Span, draw_timeline, write_trace

FAST_MBIT = 10_000.0
FIRST_MBIT = 700.0  # times seconds of backward: about what its gradients need
CALIBRATIONS, CLOSE_ENOUGH = 5, 0.1  # tries, and how far reduce / backward may be from 1
KINDS = ("forward", "backward", "reduce", "update", "gather")
_JOB = "bert_mlperf.bench.overlap_rank:train"


@dataclass(frozen=True)
class Job:
    """What a few steps in new processes measured."""

    overlap: bool
    starts: tuple[float, ...]  # of each step, and the end of the last, on the last rank to come there
    losses: tuple[float, ...]
    checksum: str  # of the weights at the end
    spans: tuple[Span, ...]  # of all ranks

    @property
    def seconds(self) -> list[float]:
        """Of each step."""
        return [end - start for start, end in pairwise(self.starts)]

    @property
    def parts(self) -> list[Parts]:
        """Of each step of rank 0."""
        assert not self.overlap
        return parts_of_steps([s for s in self.spans if s.rank == 0], self.starts)

    def one_step(self) -> list[Span]:
        """The spans of the last step but one, and of the forward behind it, under which its weights are gathered."""
        start, end = self.starts[-3:-1]
        end = min(s.start for s in self.spans if s.name == "backward" and s.start > end)
        return [s for s in self.spans if start < s.end and s.start < end]


def bench_overlap(*, hosts: int, ranks: int, steps: int, turns: int, mbit: float | None, out: Path) -> None:
    """Prints steps with and without overlap, their ratio and the ideal; writes a timeline of each below `out`. Each way
    trains `turns` times `steps` steps, in turn. `mbit` (Mbit/s) sets the link instead of the calibration."""
    if not (2 <= hosts <= 16 and 1 <= ranks <= 16 and 3 <= steps <= 1000 and 1 <= turns <= 100):
        raise UserError(
            f"got --hosts {hosts}, --ranks {ranks}, --steps {steps} and --turns {turns}, expected 2 to 16 hosts, "
            "1 to 16 ranks, 3 to 1000 steps and 1 to 100 turns; give others."
        )
    if mbit is not None and not 1 <= mbit <= 100_000:
        raise UserError(f"--mbit is {mbit:g}, expected a speed from 1 to 100,000 Mbit/s; give another.")
    folders = [out / f"{name}_overlap" for name in ("without", "with")]
    try:
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out is {out}, where no folder can be made ({error.strerror}); give another.") from error
    disturbance = Disturbance()
    with emulated_hosts(hosts, mbit=mbit or FAST_MBIT) as emulated:
        speed = calibrate(emulated, ranks) if mbit is None else mbit
        jobs = measure(emulated, ranks, steps, turns)
    title = f"{hosts} hosts x {ranks} ranks, link {speed:.0f} Mbit/s"
    for folder, job in zip(folders, jobs[-2:], strict=True):
        write_trace(folder, job.one_step())
        say(str(draw_timeline(folder, job.one_step(), title=f"a step {folder.name.replace('_', ' ')}, {title}")))
    show([job for job in jobs if not job.overlap], [job for job in jobs if job.overlap], title, machine(disturbance))


def calibrate(hosts: Sequence[Host], ranks: int) -> float:
    """Sets the link so that reduction takes about as long as backward; the speed in Mbit/s. Backward is timed on a fast
    link: where ranks share cores, one that waits for a slow link leaves its core to the others, whose backward looks
    short then."""
    speed = FAST_MBIT
    backward = median(p.backward for p in run_job(hosts, ranks, steps=2, overlap=False).parts)
    say(f"link {speed:.0f} Mbit/s: backward {backward:.2f} s")
    speed = FIRST_MBIT / backward
    for _ in range(CALIBRATIONS):
        set_link(hosts, mbit=speed)
        reduce = median(p.reduce for p in run_job(hosts, ranks, steps=2, overlap=False).parts)
        say(f"link {speed:.0f} Mbit/s: reduce {reduce:.2f} s")
        if abs(reduce / backward - 1) <= CLOSE_ENOUGH:
            break
        speed *= reduce / backward
    set_link(hosts, mbit=speed)
    return speed


def measure(hosts: Sequence[Host], ranks: int, steps: int, turns: int) -> list[Job]:
    """Jobs without and with overlap, in turn. All have the same losses and weights."""
    jobs = []
    for _ in range(turns):
        for overlap in (False, True):
            disturbance = Disturbance()
            job = run_job(hosts, ranks, steps=steps, overlap=overlap)
            others = f"other processes took {100 * disturbance.share():.0f}% of the cores"
            say(f"overlap {'on' if overlap else 'off'}: {median(job.seconds):.3f} s a step, {others}")
            jobs.append(job)
    assert len({(job.losses, job.checksum) for job in jobs}) == 1, "results differ with and without overlap"
    return jobs


def run_job(hosts: Sequence[Host], ranks: int, *, steps: int, overlap: bool) -> Job:
    """`steps` steps in new processes."""
    arguments = {"ranks_per_host": ranks, "steps": steps, "overlap": overlap}
    return job_of(run_on_hosts(_JOB, arguments, hosts=hosts, ranks_per_host=ranks), overlap=overlap)


def job_of(results: Sequence[dict[str, Any]], *, overlap: bool) -> Job:
    """What the ranks returned, together."""
    return Job(
        overlap=overlap,
        starts=tuple(max(of_ranks) for of_ranks in zip(*(r["starts"] for r in results), strict=True)),
        losses=tuple(results[0]["losses"]),
        checksum=results[0]["checksum"],
        spans=tuple(Span(rank, *span) for rank, result in enumerate(results) for span in result["spans"]),
    )


def show(off: Sequence[Job], on: Sequence[Job], title: str, machine: str) -> None:
    """Prints the table and what it comes to."""
    console = wide_console()
    steps = {job.overlap: [s for j in jobs for s in j.seconds] for jobs in (off, on) for job in jobs[:1]}
    table = Table(title=f"{title}: seconds of a step, median of {len(steps[True])}", title_justify="left")
    for name in ("overlap", *KINDS, "other", "step", "fastest"):
        table.add_column(name, justify="right", no_wrap=True)
    parts = [p for job in off for p in job.parts]
    apart = [median(getattr(p, kind) for p in parts) for kind in (*KINDS, "other")]
    table.add_row("off", *(f"{v:.3f}" for v in (*apart, median(steps[False]), min(steps[False]))))
    beside = [median(seconds_of(job.spans, kind) / len(job.seconds) / rank_count(job) for job in on) for kind in KINDS]
    table.add_row(
        "on", *(f"{v:.3f}" for v in beside), "", *(f"{v:.3f}" for v in (median(steps[True]), min(steps[True])))
    )
    console.print(table)
    without = median(p.step for p in parts)
    console.print(
        f"with / without overlap: {median(steps[True]) / median(steps[False]):.3f} "
        f"(of the fastest: {min(steps[True]) / min(steps[False]):.3f})\n"
        f"ideal, max(forward, gather) + max(backward, reduce) + update + other: "
        f"{median(p.ideal for p in parts) / without:.3f}\n"
        f"the same where a bucket waits for its gradients: {median(p.scheduled for p in parts) / without:.3f}\n"
        f"losses and weights are bit-equal with and without overlap, {len(off[0].losses)} steps\n{machine}"
    )


def rank_count(job: Job) -> int:
    return 1 + max(span.rank for span in job.spans)
