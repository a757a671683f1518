r"""Packs the files of a text into parts of about the same size, the last stage before examples are made.

Files are taken in sorted order and never cut. A new part begins where the raw files behind the part (the extractor's,
see `texts.raw_sizes`) would grow beyond `block_size` MiB with the next one; or, with `num_parts`, at the borders of
files next to equal shares of the text. CR and CRLF become LF, a byte order mark at the begin of a file is dropped.

The reference has faults here, which `reference_faults=True` reproduces byte for byte:

- It takes one LF away from the end of a file that ends in two and writes the next file behind it, so if split left a
  third one (an empty article) an empty line remains, and if the last articles of a file were withheld the last article
  of one file and the first of the next become one. By default exactly one empty line stands between two articles, at
  the borders of files too, and none at the begin or end of a part.
- It names every part "-of-00500", however many there are. By default the name has the true count.
- It crashes at a file larger than a block and at one shorter than two characters. Ours makes a part of the first and
  takes the second as it is, in both modes.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from bert_mlperf.data_prep.inputs import find_sources
from bert_mlperf.data_prep.stage import Job, Progress, run_stage
from bert_mlperf.data_prep.texts import articles_of, joined, raw_sizes, read_text
from bert_mlperf.errors import UserError

BLOCK_MIB = 26.92
_REFERENCE_COUNT = 500  # in the reference's names


def gather(
    inputs: Sequence[str | Path],
    *,
    out: Path,
    block_size: float = BLOCK_MIB,
    num_parts: int | None = None,
    reference_faults: bool = False,
    workers: int | None = None,
) -> dict[str, Any]:
    """Packs files into OUT/part-00000-of-<n> and so on (see above); returns the manifest.

    `block_size` is in MiB. Facts of a part: files, and raw_bytes and sized_by ("text" if the raw size of any of its
    files is unknown). Raises UserError if a file is not UTF-8, or for a block size or number of parts that cannot be.
    """
    paths = [source.path for source in find_sources(inputs, out=out)]
    sizes = list(raw_sizes(paths))
    if num_parts is None:
        parts = pack([size["raw_bytes"] for size in sizes], block_size=block_bytes(block_size))
    else:
        parts = equal_parts([path.stat().st_size for path in paths], num_parts=num_parts)
    if num_parts is not None and reference_faults:
        raise UserError(
            "the reference packs by block size alone, so equal parts cannot reproduce its faults; leave one of the "
            "number of parts and the reference's faults out."
        )
    total = _REFERENCE_COUNT if reference_faults else len(parts)
    jobs = [
        Job(
            tuple(paths[i] for i in part),
            (f"part-{number:05d}-of-{total:05d}",),
            {"reference_faults": reference_faults, **_sum_of([sizes[i] for i in part])},
        )
        for number, part in enumerate(parts)
    ]
    options = {
        "block_size": block_size if num_parts is None else None,
        "num_parts": num_parts,
        "reference_faults": reference_faults,
    }
    return run_stage("gather", out=out, options=options, jobs=jobs, work=gather_files, workers=workers)


def block_bytes(mib: float) -> float:
    """Bytes of a block of `mib` MiB. UserError unless it is above 0."""
    if not 0 < mib < math.inf:
        raise UserError(f"a block of {mib} MiB cannot be filled; give a size above 0, for example {BLOCK_MIB}.")
    return mib * 1024 * 1024


def pack(sizes: Sequence[int], *, block_size: float) -> list[list[int]]:
    """Indices of the files of each part: as many in order as fit into `block_size` bytes, one at least."""
    parts: list[list[int]] = []
    filled = 0
    for i, size in enumerate(sizes):
        if not parts or filled + size > block_size:
            parts.append([])
            filled = 0
        parts[-1].append(i)
        filled += size
    return parts


def equal_parts(sizes: Sequence[int], *, num_parts: int) -> list[list[int]]:
    """Indices of the files of each of `num_parts` parts, cut at the file border next to each equal share, one file at
    least in each. UserError if there are fewer files than parts."""
    if not 1 <= num_parts <= len(sizes):
        raise UserError(
            f"{len(sizes):,} files cannot be gathered into {num_parts:,} parts, expected 1 to {len(sizes):,} since "
            "files are not cut; give fewer parts or more files."
        )
    ends = [0]  # bytes before each file
    for size in sizes:
        ends.append(ends[-1] + size)
    borders = [0]
    for part in range(1, num_parts):
        at = ends[-1] * part / num_parts
        borders.append(_nearest(ends, at, first=borders[-1] + 1, last=len(sizes) - (num_parts - part)))
    borders.append(len(sizes))
    return [list(range(first, last)) for first, last in pairwise(borders)]


def _nearest(ends: Sequence[int], at: float, *, first: int, last: int) -> int:
    return min(range(first, last + 1), key=lambda border: abs(ends[border] - at))


def gather_files(job: Job, targets: tuple[Path, ...], progress: Progress) -> dict[str, Any]:
    """The work of one part (see `gather`): reads one file at a time."""
    (target,), is_first = targets, True
    with open(target, "w", encoding="utf-8", newline="") as part:
        for source in job.sources:
            text = read_text(source, universal_newlines=True).removeprefix("\ufeff")
            if job.arguments["reference_faults"]:
                part.write(text[:-1] if text.endswith("\n\n") else text)
            elif text := joined(articles_of(text)):
                part.write(text if is_first else f"\n{text}")
                is_first = False
            progress(source.stat().st_size)
    return {
        "files": len(job.sources),
        "raw_bytes": job.arguments["raw_bytes"],
        "sized_by": job.arguments["sized_by"],
    }


def _sum_of(sizes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    is_raw = all(size["sized_by"] == "raw" for size in sizes)
    return {"raw_bytes": sum(size["raw_bytes"] for size in sizes), "sized_by": "raw" if is_raw else "text"}
