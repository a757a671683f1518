"""What is known of the files of a job: the record that says that it is done, and whether its files are still the same.

A record is a file of JSON: "inputs" and "outputs" of the job, each with name, bytes, mtime_ns and md5, and its "facts".
"""

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bert_mlperf.data_prep.claim import shown, write_atomically
from bert_mlperf.data_prep.inputs import UNFINISHED
from bert_mlperf.data_prep.request import Job, source_names
from bert_mlperf.errors import UserError


def md5_of(path: str | Path) -> str:
    """md5 (hex) of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()


def stat_of(path: Path) -> os.stat_result:
    """Size and times of an input. Raises UserError if it is gone."""
    try:
        return path.stat()
    except OSError as error:
        raise UserError(f"the input {path} cannot be read: {error.strerror}; put it back and run again.") from None


def describe_input(path: Path, name: str) -> dict[str, Any]:
    """The entry of an input in a record. Raises UserError if it cannot be read."""
    found = stat_of(path)
    try:
        return {"name": name, "bytes": found.st_size, "mtime_ns": found.st_mtime_ns, "md5": md5_of(path)}
    except OSError as error:
        raise UserError(f"the input {path} cannot be read: {error.strerror}; check its permissions.") from None


def put_in_place(target: Path, out: Path, name: str) -> dict[str, Any]:
    """Syncs a finished temporary file, gives it its name, and returns the entry of this output in a record."""
    descriptor = os.open(target, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    found = target.stat()
    entry = {"name": name, "bytes": found.st_size, "mtime_ns": found.st_mtime_ns, "md5": md5_of(target)}
    (out / name).parent.mkdir(parents=True, exist_ok=True)
    target.replace(out / name)
    return entry


def write_record(out: Path, index: int, record: dict[str, Any]) -> None:
    """Says that job number `index` is done, whose outputs are in place."""
    write_atomically(_path(out, index), json.dumps(record))


def records_of(out: Path, jobs: Sequence[Job]) -> dict[int, dict[str, Any]]:
    """The records, by number, of the jobs that an earlier run finished and whose outputs are as it left them; all
    others have to be done. Raises UserError if an input has changed since."""
    found = {}
    for index, (job, names) in enumerate(zip(jobs, source_names(jobs), strict=True)):
        record = _read(_path(out, index), job, names)
        if record is None:
            continue
        for path, entry in zip(job.sources, record["inputs"], strict=True):
            stat_of(path)
            if not _is_same(path, entry):
                raise UserError(changed(path, out))
        if all(_is_same(out / entry["name"], entry) for entry in record["outputs"]):
            found[index] = record
    return found


def changed(path: Path, out: Path) -> str:
    """The sentence for an input that is not what it was."""
    made = shown(out)
    return f"{path} has changed since {made} was made from it; put the old file back, or remove {made} and start anew."


def _path(out: Path, index: int) -> Path:
    return out / UNFINISHED / "done" / f"{index:06d}.json"


def _read(path: Path, job: Job, names: Sequence[str]) -> dict[str, Any] | None:
    """The record of a job; None if there is none, or one that is damaged."""
    try:
        record = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        files = [
            [(str(entry["name"]), int(entry["bytes"]), int(entry["mtime_ns"]), str(entry["md5"])) for entry in entries]
            for entries in (record["inputs"], record["outputs"])
        ]
        whole = isinstance(record["facts"], dict)
    except (ValueError, KeyError, TypeError):
        return None
    expected = [list(names), list(job.outputs)]
    return record if whole and [[entry[0] for entry in entries] for entries in files] == expected else None


def _is_same(path: Path, entry: dict[str, Any]) -> bool:
    """Whether a file is what `entry` says; its bytes are compared if only its time is another."""
    if not path.is_file() or path.stat().st_size != entry["bytes"]:
        return False
    return path.stat().st_mtime_ns == entry["mtime_ns"] or md5_of(path) == entry["md5"]
