"""The step "examples": text parts to shards of masked examples, all of them or a uniform draw."""

import functools
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from bert_mlperf.data_prep.claim import check_unfinished
from bert_mlperf.data_prep.examples import ExampleOptions
from bert_mlperf.data_prep.inputs import find_sources
from bert_mlperf.data_prep.part_examples import Progress, count_examples, write_part_examples
from bert_mlperf.data_prep.pool import default_workers
from bert_mlperf.data_prep.stage import UNFINISHED, Job, check_free, md5_of, number_of, read_manifest, run_stage
from bert_mlperf.data_prep.subset import check_subset, part_of_subset, shard_bytes, spill_bytes
from bert_mlperf.data_prep.wordpiece import read_vocabulary
from bert_mlperf.errors import UserError

OFFICIAL_VOCABULARY_MD5 = "64800d5d8528ce344256daf115d4965e"
_COUNTS = "samples_of_inputs"  # in the summary of the manifest of a subset


def examples(
    inputs: Sequence[str | Path],
    *,
    vocabulary: Path,
    out: Path,
    options: ExampleOptions,
    subset: int | None = None,
    subset_seed: int = 0,
    own_vocabulary: bool = False,
    allow_long_lines: bool = False,
    workers: int | None = None,
) -> dict[str, Any]:
    """Makes the examples of the text files `inputs` (names, folders, patterns), one shard a file, and returns the
    manifest.

    With `subset` that many samples are drawn from those of all files, each equally likely, decided by `subset_seed`
    alone; the examples are counted first, and files that get no sample have no shard. Raises UserError for bad input,
    for another vocabulary than the official one unless `own_vocabulary`, and if the disk is too small.
    """
    out = Path(out)
    sources = [source.path for source in find_sources(inputs, out=out)]
    settings = example_settings(
        vocabulary, options=options, own_vocabulary=own_vocabulary, allow_long_lines=allow_long_lines
    )
    bound: dict[str, Any] = {
        "vocabulary": Path(vocabulary).absolute(), "options": options, "allow_long_lines": allow_long_lines,
    }  # fmt: skip
    summary: dict[str, Any] = {}
    parts: list[tuple[Path, dict[str, int]]] = [(path, {}) for path in sources]
    if subset is not None:
        check_subset(subset)
        if subset_seed < 0:
            raise UserError(f"the seed of the subset is {subset_seed}, expected 0 or more; give another --subset-seed.")
    if read_manifest(out) is None:
        sizes = [path.stat().st_size for path in sources]
        vocab_size, most = settings["vocabulary_size"], workers or default_workers(len(sources))
        _check_disk(out, sizes, vocab_size=vocab_size, options=options, subset=subset, workers=most)
    asked = settings | {"subset": subset, "subset_seed": subset_seed}
    if subset is not None:
        check_unfinished(out, {"stage": "examples", "options": asked})  # before the text is counted
        counts = _counts(sources, out, settings=settings, bound=bound, workers=workers)
        parts = _parts_of_subset(sources, counts, size=subset, seed=subset_seed)
        summary = {"subset": subset, "subset_seed": subset_seed, _COUNTS: counts}
    jobs = [
        Job((path,), (f"part_{i:05d}_of_{len(parts):05d}.hdf5",), arguments)
        for i, (path, arguments) in enumerate(parts)
    ]
    manifest = run_stage(
        "examples",
        out=out,
        options=asked,
        jobs=jobs,
        work=functools.partial(_write_shard, **bound),
        workers=workers,
        finish=lambda _, facts: same_vocabulary(vocabulary, settings) | _totals(facts) | summary,
    )
    shards = number_of(len(manifest["outputs"]), "shard")
    print(f"{'examples':8s} {number_of(manifest['summary']['samples'], 'sample')} in {shards}, {out}", file=sys.stderr)
    return manifest


def example_settings(
    vocabulary: Path, *, options: ExampleOptions, own_vocabulary: bool, allow_long_lines: bool
) -> dict[str, Any]:
    """What examples depend on beside the text, for the manifest. UserError if the vocabulary is not the official one
    and `own_vocabulary` does not say that this is meant."""
    size = read_vocabulary(vocabulary).size
    md5 = md5_of(vocabulary)
    if md5 != OFFICIAL_VOCABULARY_MD5 and not own_vocabulary:
        raise UserError(
            f"the vocabulary {vocabulary} has md5 {md5}, the official one {OFFICIAL_VOCABULARY_MD5}; give the official "
            "vocab.txt, or say --own-vocabulary if you mean this one."
        )
    return {
        "examples": asdict(options),
        "vocabulary_md5": md5,
        "vocabulary_size": size,
        "allow_long_lines": allow_long_lines,
    }


def same_vocabulary(vocabulary: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Nothing for the summary of a manifest; UserError if the vocabulary was changed since `example_settings`."""
    if md5_of(vocabulary) != settings["vocabulary_md5"]:
        raise UserError(
            f"the vocabulary {vocabulary} changed while examples were made with it (its md5 was "
            f"{settings['vocabulary_md5']}); remove the folder of the examples and run the command again."
        )
    return {}


def _write_shard(job: Job, targets: tuple[Path, ...], progress: Progress, **bound: Any) -> dict[str, Any]:
    """Runs in a worker."""
    select = functools.partial(_chosen, job.sources[0], job.arguments) if job.arguments else None
    return write_part_examples(job.sources[0], targets[0], select=select, progress=progress, **bound)


def _chosen(text: Path, arguments: dict[str, int], num_examples: int) -> np.ndarray:
    if num_examples != arguments["count"]:
        raise UserError(
            f"{text} gave {arguments['count']:,} examples when they were counted and {num_examples:,} now, so it was "
            "changed in between; run the command again with a new --out."
        )
    return part_of_subset(**arguments)


def _counts(
    sources: Sequence[Path], out: Path, *, settings: dict[str, Any], bound: dict[str, Any], workers: int | None
) -> list[int]:
    """How many examples each text gives: from the finished folder `out`, or counted in a step of its own inside it."""
    finished = read_manifest(out)
    if finished is not None:
        if len(finished["summary"].get(_COUNTS, ())) != len(sources):
            raise UserError(f"{out} holds the result of another request; remove the folder or give another --out.")
        return list(finished["summary"][_COUNTS])
    check_free(out)
    jobs = [Job((path,), (f"{i:05d}.json",), {}) for i, path in enumerate(sources)]
    request = json.dumps([settings, [os.path.abspath(path) for path in sources]], sort_keys=True)
    counted = run_stage(
        "count",
        out=out / UNFINISHED / f"counts-{hashlib.sha256(request.encode()).hexdigest()[:8]}",  # one for all subsets
        options=settings,
        jobs=jobs,
        work=functools.partial(_write_count, **bound),
        workers=workers,
    )
    return [output["facts"]["samples"] for output in counted["outputs"]]


def _write_count(job: Job, targets: tuple[Path, ...], progress: Progress, **bound: Any) -> dict[str, Any]:
    """Runs in a worker."""
    facts = {"samples": count_examples(job.sources[0], targets[0].parent, progress=progress, **bound)}
    targets[0].write_text(json.dumps(facts), encoding="utf-8")
    return facts


def _parts_of_subset(
    sources: Sequence[Path], counts: Sequence[int], *, size: int, seed: int
) -> list[tuple[Path, dict[str, int]]]:
    """The texts that get samples of the subset, with the arguments of `part_of_subset`."""
    total = sum(counts)
    check_subset(size, total)
    firsts = np.cumsum([0, *counts]).tolist()
    parts = [
        (path, {"first": first, "count": count, "total": total, "size": size, "seed": seed})
        for path, first, count in zip(sources, firsts, counts, strict=False)
    ]
    return [part for part in parts if len(part_of_subset(**part[1]))]


def _check_disk(
    out: Path,
    text_bytes: Sequence[int],
    *,
    vocab_size: int,
    options: ExampleOptions,
    subset: int | None,
    workers: int,
) -> None:
    """Says how much disk the examples need; UserError if there is less. What an earlier try has written is there."""
    shards = shard_bytes(sum(text_bytes), vocab_size=vocab_size, options=options, num_samples=subset)
    largest = sorted(text_bytes)[-workers:]
    beside = sum(spill_bytes(size, vocab_size=vocab_size, options=options) for size in largest)
    existing = next(folder for folder in (out, *out.absolute().parents) if folder.is_dir())
    written = sum(path.stat().st_size for path in out.glob("part_*.hdf5"))
    needed, free = max(shards - written, 0) + beside, shutil.disk_usage(existing).free
    bound = "about" if subset is None else "at most"
    print(
        f"{'examples':8s} {bound} {_size(shards)} of shards and {_size(beside)} beside them while they are made; "
        f"{_size(free)} are free",
        file=sys.stderr,
    )
    if needed > free:
        raise UserError(
            f"the examples need {bound} {_size(needed)} in {out}, where {_size(free)} are free; make room, give "
            "another --out, or take a part of the samples with --subset."
        )


def _size(num_bytes: int) -> str:
    unit, name = next(((size, name) for size, name in ((1e9, "GB"), (1e6, "MB")) if num_bytes >= size), (1e3, "kB"))
    return f"{num_bytes / unit:.3g} {name}"


def _totals(facts: Sequence[dict[str, Any]]) -> dict[str, int]:
    names = ("documents", "sentences", "tokens_of_text", "samples", "tokens", "masked")
    return {name: sum(of_part[name] for of_part in facts) for name in names}
