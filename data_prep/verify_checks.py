"""Reads files whole in worker processes and says what is wrong with each: md5, UTF-8 text, or samples."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bert_mlperf.data.parts import MappedPart, open_part
from bert_mlperf.data.published import detect_layout
from bert_mlperf.data.shard_file import digest
from bert_mlperf.data_prep.fingerprint import OFFICIAL_EVAL_SAMPLES, InputIdsMd5
from bert_mlperf.data_prep.pool import Progress, default_workers, run_tasks
from bert_mlperf.data_prep.texts import read_text
from bert_mlperf.errors import UserError
from bert_mlperf.report.work_progress import WorkProgress

_BLOCK = 1 << 22  # bytes


@dataclass(frozen=True)
class Check:
    """One file to read."""

    path: Path
    how: str  # "md5", "text" (is it UTF-8?) or "samples"

    def __str__(self) -> str:
        return str(self.path)


@dataclass(frozen=True)
class Checked:
    """What reading it gave."""

    md5: str = ""
    layout: str = ""
    num_samples: int = 0
    input_ids_md5: str = ""  # `fingerprint.official_input_ids_md5`, of a file with as many samples as the official one
    problem: str = ""  # a sentence, if the file is damaged


def run_checks(checks: Sequence[Check], *, workers: int | None = None) -> dict[Path, Checked]:
    """The result for the path of each check. Memory: one block of a file, chunk of samples or text a worker."""
    results: dict[Path, Checked] = {}
    total = sum(check.path.stat().st_size for check in checks)
    with WorkProgress("verify", total_bytes=total, total_files=len(checks)) as progress:

        def done(index: int, result: Checked) -> None:
            results[checks[index].path] = result
            progress.file_done()

        workers = workers or default_workers(len(checks))
        run_tasks(checks, work=check_file, workers=workers, on_done=done, on_tick=progress.bytes_done)
    return results


def check_file(check: Check, progress: Progress) -> Checked:
    """Runs in a worker. A damaged file is a result, not an error, so that all of them are found."""
    try:
        if check.how == "md5":
            return Checked(md5=_md5(check.path, progress))
        if check.how == "text":
            read_text(check.path)
            progress(check.path.stat().st_size)
            return Checked(layout="text")
        return _samples(check.path, progress)
    except UserError as error:
        return Checked(problem=str(error))
    except OSError as error:
        return Checked(problem=f"{check.path} cannot be read: {error.strerror}; copy it again.")


def _md5(path: Path, progress: Progress) -> str:
    md5 = hashlib.md5()
    with open(path, "rb", buffering=0) as file:
        while block := file.read(_BLOCK):
            md5.update(block)
            progress(len(block))
    return md5.hexdigest()


def _samples(path: Path, progress: Progress) -> Checked:
    """Reads every sample; of a shard of ours also compares the checksum."""
    layout = detect_layout(path)
    part = open_part(path, layout)
    hashed = InputIdsMd5() if part.count_samples() == OFFICIAL_EVAL_SAMPLES else None
    num_samples = 0
    for chunk in part.chunks():
        num_samples += chunk.num_samples
        if hashed:
            hashed.add(chunk)
    if isinstance(part, MappedPart) and digest(part.samples()) != part.header.sha256:
        raise UserError(
            f"{path}: the content does not match its sha256 ({part.header.sha256[:12]}...), so the file was changed or "
            "damaged; copy it again or prepare the data again."
        )
    progress(path.stat().st_size)
    return Checked(layout=layout, num_samples=num_samples, input_ids_md5=hashed.hexdigest() if hashed else "")
