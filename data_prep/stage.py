"""One step of the preparation over many files: parallel, resumable, and the same bytes however it was run.

    OUT/<outputs>              whole files only: each is written elsewhere, synced, and then renamed
    OUT/manifest.json          written last: step, options, inputs and outputs with bytes and md5; no time, no host
    OUT/.unfinished/           while the step is not finished, and gone afterwards:
        plan.json              what the step was asked for, so that only the same request goes on with it
        done/<job>.json        record of a finished job, written after its outputs are in place
        tmp/                   files that are being written; swept away when the step starts again

A job whose record is missing or damaged, or whose outputs were changed, is done again, whatever lies under their names.
A run that fails before its first record leaves nothing, and one killed before it gives way to any other request.
"""

import functools
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_mlperf.data_prep.claim import check_free, claimed, shown, unwritable, write_atomically
from bert_mlperf.data_prep.inputs import MANIFEST, UNFINISHED, read_manifest
from bert_mlperf.data_prep.pool import Progress, default_workers, run_tasks
from bert_mlperf.data_prep.records import (
    changed,
    describe_input,
    md5_of,
    put_in_place,
    records_of,
    stat_of,
    write_record,
)
from bert_mlperf.data_prep.request import Job, difference, make_plan, shared_folder, source_names
from bert_mlperf.errors import UserError
from bert_mlperf.report.work_progress import WorkProgress

__all__ = [
    "UNFINISHED",
    "Job",
    "Progress",
    "check_free",
    "md5_of",
    "number_of",
    "read_manifest",
    "run_stage",
    "write_atomically",
]


# Work writes each of the temporary targets (one an output, in order) and returns facts for the manifest: JSON-able, a
# pure function of the sources and arguments. It reports the source bytes that it is through with.
Work = Callable[[Job, tuple[Path, ...], Progress], dict[str, Any]]
Finish = Callable[[Path, list[dict[str, Any]]], dict[str, Any]]


@dataclass(frozen=True)
class _Task:
    """What a worker process needs for one job."""

    index: int
    job: Job
    names: tuple[str, ...]  # of the sources, below the folder that the sources of all jobs share
    out: Path

    def __str__(self) -> str:
        return str(self.job)


def run_stage(
    name: str,
    *,
    out: str | Path,
    options: dict[str, Any],
    jobs: Sequence[Job],
    work: Work,
    workers: int | None = None,
    finish: Finish | None = None,
) -> dict[str, Any]:
    """Does all `jobs` of the step `name` into the folder `out` and returns the manifest.

    `work` is a function of a module (it runs in spawned processes); `finish(out, facts of all jobs)` may add files and
    gives the manifest's "summary". A step that was stopped goes on where it was, and a finished one is not done again.
    Raises UserError if `out` holds anything else, if an input is missing or has changed, or if nothing can be written.
    """
    out = Path(out)
    plan = make_plan(name, options, jobs)
    finished = _finished(out, plan, jobs)
    if finished is not None:
        holds = "done already" if UNFINISHED in out.parts else f"{out} holds this already, nothing to do"
        print(f"{name:8s} {holds}", file=sys.stderr)
        return finished
    with _said_if_stopped(name, out), claimed(out, plan):
        records = records_of(out, jobs)
        _do(name, jobs, records, work=work, out=out, workers=workers)
        facts = [records[i]["facts"] for i in range(len(jobs))]
        summary = finish(out, facts) if finish is not None else {}
        manifest = plan | {
            "inputs_in": Path(os.path.relpath(shared_folder(jobs), os.path.abspath(out))).as_posix(),
            "inputs": _inputs(records),
            "outputs": [
                {key: output[key] for key in ("name", "bytes", "md5")} | {"facts": records[i]["facts"]}
                for i in range(len(jobs))
                for output in records[i]["outputs"]
            ],
            "summary": summary,
        }
        write_atomically(out / MANIFEST, json.dumps(manifest, indent=1) + "\n")
    return manifest


def number_of(count: int, thing: str) -> str:
    """For people: 1 file, 2,000 files."""
    return f"{count:,} {thing}" + ("" if count == 1 else "s")


def _finished(out: Path, plan: dict[str, Any], jobs: Sequence[Job]) -> dict[str, Any] | None:
    """The manifest of `out` if this very request was finished before; UserError if another one was."""
    manifest = read_manifest(out)
    if manifest is None:
        return None
    if manifest["request"] != plan["request"]:
        raise UserError(
            f"{shown(out)} holds the result of another request ({difference(manifest, plan)}); remove the folder or "
            "give another --out."
        )
    known = {entry["name"]: entry for entry in manifest["inputs"]}
    for job, names in zip(jobs, source_names(jobs), strict=True):
        for path, name in zip(job.sources, names, strict=True):
            if name not in known:
                raise UserError(f"{out / MANIFEST} is damaged (it has no input {name}); remove {out} and run again.")
            if known[name]["bytes"] != stat_of(path).st_size or known[name]["md5"] != md5_of(path):
                raise UserError(changed(path, out))
    for output in manifest["outputs"]:
        path = out / output["name"]
        if not path.is_file() or path.stat().st_size != output["bytes"]:
            raise UserError(f"{path} is missing or has another size than {MANIFEST} says; remove {out} and run again.")
    shutil.rmtree(out / UNFINISHED, ignore_errors=True)  # killed just before it did so itself
    return manifest


@contextmanager
def _said_if_stopped(name: str, out: Path) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        print(f"{name:8s} stopped; what is finished is kept in {shown(out)}, the same command goes on", file=sys.stderr)
        raise


def _do(
    name: str,
    jobs: Sequence[Job],
    records: dict[int, dict[str, Any]],
    *,
    work: Work,
    out: Path,
    workers: int | None,
) -> None:
    """Does the jobs without a record and fills in theirs."""
    sizes = [sum(stat_of(path).st_size for path in job.sources) for job in jobs]
    names = source_names(jobs)
    missing = [_Task(i, job, names[i], out) for i, job in enumerate(jobs) if i not in records]
    if records:
        print(f"{name:8s} {len(records):,} of {number_of(len(jobs), 'file')} done already", file=sys.stderr)
    with WorkProgress(
        name,
        total_bytes=sum(sizes),
        total_files=len(jobs),
        done_bytes=sum(sizes[i] for i in records),
        done_files=len(records),
    ) as progress:

        def done(index: int, record: dict[str, Any]) -> None:
            records[missing[index].index] = record
            progress.file_done()

        run_tasks(
            missing,
            work=functools.partial(_run_job, work),
            workers=workers or default_workers(len(missing)),
            on_done=done,
            on_tick=progress.bytes_done,
        )
        if missing:
            print(f"{name:8s} {number_of(len(missing), 'file')}, {progress.summary()}", file=sys.stderr)


def _run_job(work: Work, task: _Task, progress: Progress) -> dict[str, Any]:
    """Runs in a worker: one job, its outputs put in place, its record written."""
    job = task.job
    targets = tuple(task.out / UNFINISHED / "tmp" / f"{task.index}-{i}" for i in range(len(job.outputs)))
    inputs = [describe_input(path, name) for path, name in zip(job.sources, task.names, strict=True)]
    try:
        facts = work(job, targets, progress)
        for path, entry in zip(job.sources, inputs, strict=True):
            if (stat_of(path).st_size, stat_of(path).st_mtime_ns) != (entry["bytes"], entry["mtime_ns"]):
                raise UserError(f"{path} changed while it was being read; run the command again.")
        outputs = [put_in_place(target, task.out, name) for target, name in zip(targets, job.outputs, strict=True)]
        record = {"inputs": inputs, "outputs": outputs, "facts": facts}
        write_record(task.out, task.index, record)
    except OSError as error:
        raise unwritable(task.out, error) from error
    return record


def _inputs(records: dict[int, dict[str, Any]]) -> list[dict[str, Any]]:
    """Name, bytes and md5 of every input, once each, sorted by name."""
    found = {entry["name"]: entry for record in records.values() for entry in record["inputs"]}
    return [{key: found[name][key] for key in ("name", "bytes", "md5")} for name in sorted(found)]
