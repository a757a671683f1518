"""`prep convert`: a data set in another layout, one output file for each input file."""

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bert_mlperf.data.parts import MappedPart, find_shards, open_part
from bert_mlperf.data.published import FIXED, PACKED, TFRECORD, VARIABLE, detect_layout
from bert_mlperf.data.samples import Samples
from bert_mlperf.data.shard_file import LAYOUT, ShardWriter
from bert_mlperf.data_prep.inputs import MANIFEST, find_sources
from bert_mlperf.data_prep.layouts import WRITERS, PackedWriter
from bert_mlperf.data_prep.made_with import MadeWith, made_with
from bert_mlperf.data_prep.pool import Progress
from bert_mlperf.data_prep.stage import Job, run_stage
from bert_mlperf.errors import UserError

LAYOUTS = {"shards": LAYOUT, "tfrecord": TFRECORD, "fixed": FIXED, "variable": VARIABLE, "packed": PACKED}
OFFICIAL_VOCABULARY_SIZE = 30522
_LARGEST_VOCABULARY = 1 << 31
_NUMBER = re.compile(r"part[-_](\d+)[-_]of[-_](\d+)")
_ENDINGS = {".hdf5", ".hdf", ".h5", ".tfrecord", ".tfrecords"}


def convert(
    inputs: Sequence[str | Path], *, to: str, out: str | Path, workers: int | None = None, vocab_size: int | None = None
) -> dict[str, Any]:
    """Writes the samples of `inputs` (files, folders of shards, glob patterns; any layout) to `out` in the layout `to`,
    a key of LAYOUTS; returns the manifest.

    Order is kept but in packed rows. Files keep their numbers: part_00003_of_00500.hdf5, for TFRecord
    part-00003-of-00500.tfrecord; one without a number keeps its name up to the ending. The size of the vocabulary is
    what shards or manifests beside the inputs say, else `vocab_size`, else that of the official one. Raises UserError
    if an input has the layout `to` already (nothing would change: copy it), if two inputs would get one name, if they
    or `vocab_size` differ in the size of their vocabulary, if a file is damaged, and for a sample that the layout
    cannot hold or whose token ids lie outside the vocabulary.
    """
    if to not in LAYOUTS:
        raise UserError(f"the layout {to!r} is unknown; give one of {', '.join(LAYOUTS)}.")
    if vocab_size is not None and not 1 <= vocab_size <= _LARGEST_VOCABULARY:
        raise UserError(f"--vocab-size is {vocab_size}, expected 1 to {_LARGEST_VOCABULARY}; give the tokens of yours.")
    jobs: dict[str, Job] = {}
    paths = _files(inputs)
    layouts = {path: _readable_layout(path, to) for path in paths}
    vocabulary = _vocabulary(paths, vocab_size)
    for path in paths:
        name = _output_name(path, to)
        if name in jobs:
            raise UserError(
                f"{jobs[name].sources[0]} and {path} would both become {name}; convert them to different folders."
            )
        jobs[name] = Job((path,), (name,), {"layout": layouts[path], "to": to, "vocab_size": vocabulary.size})
    return run_stage(
        "convert",
        out=out,
        options={"to": to, "vocab_size": vocabulary.size, "vocabulary_md5": vocabulary.md5},
        jobs=list(jobs.values()),
        work=_convert_file,
        workers=workers,
    )


def _files(inputs: Sequence[str | Path]) -> list[Path]:
    """The files of `inputs` but manifests; a folder stands for its shards, which are all there if they are numbered."""
    found: list[Path] = []
    for given in inputs:
        path = Path(given)
        found += find_shards(path) if path.is_dir() else [source.path for source in find_sources([given])]
    return [path for path in dict.fromkeys(found) if path.name != MANIFEST]


def _vocabulary(paths: Sequence[Path], given: int | None) -> MadeWith:
    """The one vocabulary of all files, its size known."""
    found = {path: made_with(path) for path in paths}
    sizes = {made.size: path for path, made in found.items() if made.size is not None}
    if len(sizes) > 1:
        (one, first), (other, second) = list(sizes.items())[:2]
        raise UserError(
            f"{first} was made with a vocabulary of {one:,} tokens and {second} with one of {other:,}; convert them to "
            "different folders."
        )
    for size, path in sizes.items():
        if given not in (None, size):
            raise UserError(
                f"{path} was made with a vocabulary of {size:,} tokens, --vocab-size is {given:,}; leave it out."
            )
    size = next(iter(sizes), given)
    if size is None:
        size = OFFICIAL_VOCABULARY_SIZE
        print(
            f"{'convert':8s} {paths[0]} does not tell its vocabulary, {size:,} tokens are assumed (--vocab-size)",
            file=sys.stderr,
        )
    md5s = {made.md5 for made in found.values()}
    return MadeWith(size, md5s.pop() if len(md5s) == 1 else None)


def _readable_layout(path: Path, to: str) -> str:
    """The layout of a file whose fields are all there and that is not in the layout `to`."""
    layout = detect_layout(path)
    if layout == LAYOUTS[to]:
        raise UserError(f"{path} is {layout} already, nothing is to be converted; leave it out or copy it.")
    if layout == TFRECORD:
        next(open_part(path, layout).chunks(1))  # the first record tells which features there are
    return layout


def _output_name(path: Path, to: str) -> str:
    ending = ".tfrecord" if to == "tfrecord" else ".hdf5"
    number = _NUMBER.search(path.name)
    if number is None:
        return (path.stem if path.suffix in _ENDINGS else path.name) + ending
    index, total = number.groups()
    return f"part-{index}-of-{total}{ending}" if to == "tfrecord" else f"part_{index}_of_{total}{ending}"


def _convert_file(job: Job, targets: tuple[Path, ...], progress: Progress) -> dict[str, Any]:
    """Runs in a worker: one file."""
    (source,), (target,) = job.sources, targets
    to, vocab_size = job.arguments["to"], job.arguments["vocab_size"]
    part = open_part(source, job.arguments["layout"])
    if isinstance(part, MappedPart):
        part.check_digest()
    total, size = part.count_samples(), source.stat().st_size

    def chunks(size: int) -> Iterator[Samples]:
        return _tracked(part.chunks(), total=total, size=size, progress=progress, source=source, vocab_size=vocab_size)

    if to != "shards":
        with WRITERS[LAYOUTS[to]](target, where=str(source)) as writer:
            counts = _count(_each(chunks(size), writer.write))
        return counts | ({"num_rows": writer.num_rows} if isinstance(writer, PackedWriter) else {})
    counts = _count(chunks(size // 2))
    with ShardWriter(target, vocab_size=vocab_size, **counts) as shard:
        for samples in chunks(size - size // 2):
            shard.write(samples)
    return counts


def _tracked(
    chunks: Iterable[Samples], *, total: int, size: int, progress: Progress, source: Path, vocab_size: int
) -> Iterator[Samples]:
    """`chunks` of `total` samples, each checked, reported as `size` bytes in all."""
    done = reported = 0
    for samples in chunks:
        _check_ids(samples, vocab_size, where=str(source))
        longest = int(samples.lengths.max(initial=1))
        samples.validate(vocab_size, longest, where=str(source), first_sample=done)
        yield samples
        done += samples.num_samples
        progress(size * done // total - reported)
        reported = size * done // total


def _check_ids(samples: Samples, vocab_size: int, *, where: str) -> None:
    """UserError, with the option that may be wrong, for a token id behind the vocabulary."""
    highest = _highest_id(samples)
    if highest >= vocab_size:
        raise UserError(
            f"{where} holds token id {highest:,}, expected ids of a vocabulary of {vocab_size:,} tokens; give the size "
            "of the vocabulary that it was made with as --vocab-size."
        )


def _each(chunks: Iterable[Samples], write: Callable[[Samples], None]) -> Iterator[Samples]:
    for samples in chunks:
        write(samples)
        yield samples


def _count(chunks: Iterable[Samples]) -> dict[str, int]:
    """What a ShardWriter wants to know beforehand."""
    counts = dict.fromkeys(("num_samples", "num_tokens", "num_masked", "max_length", "max_token_id"), 0)
    for samples in chunks:
        for name in ("num_samples", "num_tokens", "num_masked"):
            counts[name] += getattr(samples, name)
        counts["max_length"] = max(counts["max_length"], int(samples.lengths.max(initial=0)))
        counts["max_token_id"] = max(counts["max_token_id"], _highest_id(samples))
    return counts


def _highest_id(samples: Samples) -> int:
    return max(int(ids.max(initial=0)) for ids in (samples.input_ids, samples.masked_ids))
