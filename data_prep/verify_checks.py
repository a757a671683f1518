"""Reads files whole in worker processes and says what is wrong with each: size, md5, UTF-8 text, or samples."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bert_mlperf.data.parts import open_part
from bert_mlperf.data.published import detect_layout
from bert_mlperf.data_prep.fingerprint import OFFICIAL_EVAL_SAMPLES, InputIdsMd5
from bert_mlperf.data_prep.pool import Progress, default_workers, run_tasks
from bert_mlperf.data_prep.reading import tracked_chunks
from bert_mlperf.data_prep.texts import read_text
from bert_mlperf.errors import UserError
from bert_mlperf.report.work_progress import WorkProgress

BYTES, TEXT, SAMPLES = "bytes", "text", "samples"
_BLOCK = 1 << 22  # bytes


@dataclass(frozen=True)
class Check:
    """One file to read."""

    path: Path
    content: str  # what it should hold: SAMPLES, TEXT (UTF-8), or BYTES of any kind
    size: int | None = None  # expected bytes and md5, None if they are not known
    md5: str | None = None
    again: str = "copy it again"  # what to do if it is wrong
    is_input: bool = False  # of a step, so that its md5 is wanted whether one is expected or not

    @property
    def passes(self) -> int:
        """How often the file is read."""
        is_hashed = self.md5 is not None or self.is_input
        return is_hashed + (self.content == SAMPLES) + (self.content == TEXT and self.md5 is None)

    def __str__(self) -> str:
        return str(self.path)


@dataclass(frozen=True)
class Checked:
    """What reading it gave."""

    size: int = 0  # bytes
    layout: str = ""
    num_samples: int = 0
    md5: str = ""  # if it was wanted
    input_ids_md5: str = ""  # `fingerprint.official_input_ids_md5`, of a file with as many samples as the official one
    fault: str = ""  # in a word or two, "" if the file is right
    problem: str = ""  # the same as a sentence


def run_checks(checks: Sequence[Check], *, workers: int | None = None) -> dict[Path, Checked]:
    """The result for the path of each check. Memory: one block of a file, chunk of samples or text a worker."""
    results: dict[Path, Checked] = {}
    total = sum(_size(check.path) * check.passes for check in checks)
    with WorkProgress("verify", total_bytes=total, total_files=len(checks)) as progress:

        def done(index: int, result: Checked) -> None:
            results[checks[index].path] = result
            progress.file_done()

        workers = workers or default_workers(len(checks))
        run_tasks(checks, work=check_file, workers=workers, on_done=done, on_tick=progress.bytes_done)
    return results


def check_file(check: Check, progress: Progress) -> Checked:
    """Runs in a worker. A damaged file is a result, not an error, so that all of them are found."""
    path = check.path
    if not path.is_file():
        return Checked(fault="missing", problem=f"{path} is missing; {check.again}.")
    size = _size(path)
    try:
        result = _samples(path, progress) if check.content == SAMPLES else Checked(size)
        if check.size is not None and size != check.size:
            problem = f"{path} has {size:,} bytes, expected {check.size:,}; {check.again}."
            return replace(result, fault=f"{size:,} B, expected {check.size:,} B", problem=problem)
        if check.md5 is not None or check.is_input:
            result = replace(result, md5=_md5(path, progress))
            if check.md5 not in (None, result.md5):
                problem = f"{path} has md5 {result.md5}, expected {check.md5}; {check.again}."
                return replace(result, fault="md5 differs", problem=problem)
        if check.content == TEXT and check.md5 is None:
            _read_text(path, progress)
    except UserError as error:
        return Checked(size, fault="damaged", problem=str(error))
    except OSError as error:
        problem = f"{path} cannot be read: {error.strerror or error}; check its permissions or {check.again}."
        return Checked(size, fault="cannot be read", problem=problem)
    return result


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _md5(path: Path, progress: Progress) -> str:
    md5 = hashlib.md5(usedforsecurity=False)
    with open(path, "rb", buffering=0) as file:
        while block := file.read(_BLOCK):
            md5.update(block)
            progress(len(block))
    return md5.hexdigest()


def _read_text(path: Path, progress: Progress) -> None:
    if not read_text(path):
        raise UserError(f"the text {path} is empty (0 bytes); copy it again.")
    progress(_size(path))


def _samples(path: Path, progress: Progress) -> Checked:
    """Reads every sample; of a shard of ours also compares the checksum. Raises UserError if the file is damaged."""
    layout = detect_layout(path)
    part = open_part(path, layout)
    hashed = InputIdsMd5() if part.count_samples() == OFFICIAL_EVAL_SAMPLES else None
    num_samples = 0
    for chunk in tracked_chunks(part, progress):
        num_samples += chunk.num_samples
        if hashed:
            hashed.add(chunk)
    return Checked(_size(path), layout, num_samples=num_samples, input_ids_md5=hashed.hexdigest() if hashed else "")
