"""The folder that a step writes, claimed for one process, and its small files, written whole or not at all."""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bert_mlperf.data_prep.inputs import MANIFEST, UNFINISHED
from bert_mlperf.data_prep.request import difference
from bert_mlperf.errors import UserError

_TEMPORARY = ".{name}.{process}.tmp"  # of a small file that is being written


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


@contextmanager
def claimed(out: Path, plan: dict[str, Any]) -> Iterator[Path]:
    """The folder OUT/.unfinished, for this process alone and for this plan; it is gone behind the block.

    If the block fails before a file of `out` is finished, `out` and the folders around it are left as they were before.
    """
    unfinished = out / UNFINISHED
    new = [folder for folder in (out, *out.absolute().parents) if not folder.exists()]
    try:
        check_free(out)
        for folder in (unfinished / "done", unfinished / "tmp"):
            folder.mkdir(parents=True, exist_ok=True)
        with open(unfinished / "lock", "w", encoding="ascii") as lock:
            _lock(lock.fileno(), unfinished / "lock", out)
            _check_not_finished(unfinished, out)
            check_unfinished(out, plan)
            write_atomically(unfinished / "plan.json", json.dumps(plan, indent=1) + "\n")
            for left in (*(unfinished / "tmp").iterdir(), *out.glob(_TEMPORARY.format(name="*", process="*"))):
                left.unlink()
            try:
                yield unfinished
            except (UserError, OSError):
                if not has_finished_files(out):
                    _clear(unfinished, new)
                raise
            shutil.rmtree(unfinished, ignore_errors=True)  # under the lock: nobody else can have begun there
    except OSError as error:
        raise unwritable(out, error) from error


def has_finished_files(out: Path) -> bool:
    """Whether `out` holds anything but the notes of a run that has finished no file."""
    return any((out / UNFINISHED / "done").glob("*.json")) or any(
        path.is_file() for path in out.rglob("*") if UNFINISHED not in path.relative_to(out).parts
    )


def unwritable(out: Path, error: OSError) -> UserError:
    return UserError(
        f"{out} cannot be written: {error}; check the folder's permissions, free space and quota, then run the command "
        "again: what is finished is kept."
    )


def shown(out: Path) -> Path:
    """The folder that the user knows: a step inside a step has its own below .unfinished."""
    return Path(*out.parts[: out.parts.index(UNFINISHED)]) if UNFINISHED in out.parts else out


def check_unfinished(out: Path, plan: dict[str, Any]) -> None:
    """Raises UserError if `out` holds finished files of an unfinished run that are not of `plan`, as far as it says."""
    path = out / UNFINISHED / "plan.json"
    before = _read_plan(path)
    if not path.parent.is_dir() or not has_finished_files(out):
        return
    if before is not None and all(before[name] == value for name, value in plan.items()):
        return
    if before is None:
        raise UserError(
            f"{shown(out)} holds files of an unfinished run, but {path}, which says of which, is lost or damaged; "
            "remove the folder or give another --out."
        )
    different = difference(before, before | plan)
    raise UserError(
        f"{shown(out)} holds an unfinished run of another request ({different}); run that command again, remove the "
        "folder or give another --out."
    )


def _read_plan(path: Path) -> dict[str, Any] | None:
    """The plan of an earlier run, None if there is none that holds what plans hold."""
    held = {"format": str, "stage": str, "versions": dict, "options": dict, "request": str}
    try:
        plan = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
    except ValueError:
        return None
    whole = isinstance(plan, dict) and all(isinstance(plan.get(name), kind) for name, kind in held.items())
    return plan if whole else None


def _lock(descriptor: int, path: Path, out: Path) -> None:
    """Locks the open file for this process. UserError if another one has it, or has taken it away meanwhile."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UserError(f"another process is writing to {shown(out)}; wait for it or give another --out.") from None
    except OSError:
        return  # a file system without locks: then nothing guards against two runs at a time
    if not path.exists() or not os.path.samestat(os.fstat(descriptor), path.stat()):
        raise UserError(f"another process was just writing to {shown(out)}; run the command again.")


def _check_not_finished(unfinished: Path, out: Path) -> None:
    """Raises UserError if another process has finished `out` since this one looked."""
    if (out / MANIFEST).exists():
        _clear(unfinished, ())
        raise UserError(
            f"{out} has a {MANIFEST}, which every step writes last; run the command again if another process has just "
            "finished there, else give another --out."
        )


def _clear(unfinished: Path, new: Sequence[Path]) -> None:
    """Takes away the notes of a run and the folders that it has made, as far as nothing else lies in them."""
    with suppress(OSError):
        shutil.rmtree(unfinished / "tmp")
        (unfinished / "done").rmdir()
        (unfinished / "plan.json").unlink(missing_ok=True)
        (unfinished / "lock").unlink()
        unfinished.rmdir()
        for folder in new:
            folder.rmdir()
