"""The files of a data set: which they are, their layout, and what each of them holds."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np

from bert_mlperf.data.published import ROWS, count_published, detect_layout, iter_published, read_published
from bert_mlperf.data.samples import Samples, check_token_ids
from bert_mlperf.data.shard_file import LAYOUT, ShardHeader, canonical, digest, map_samples, read_header
from bert_mlperf.data.shard_reader import ShardReader
from bert_mlperf.errors import UserError

_SUFFIXES = {".hdf5", ".hdf", ".h5", ".tfrecord", ".tfrecords"}
_STEP_FORMAT = "bert-mlperf-prep"  # "format" in the manifest of a step of ours
_LONGEST_LINE = 1 << 16  # bytes
_NUMBERED = re.compile(r"part[-_](\d+)[-_]of[-_](\d+)")


@dataclass(frozen=True)
class PartSummary:
    """Counts and checksum of one file."""

    num_samples: int
    num_tokens: int
    num_masked: int
    max_length: int  # tokens of the longest sample
    sha256: str  # hex, `shard_file.digest` of the samples in the dtypes of our shards
    vocab_size: int | None  # of the vocabulary they were made with; None if the layout does not say


class Part(Protocol):
    """One file of a set."""

    path: Path
    num_bytes: int  # of its arrays, as far as they lie in the file as they are

    def samples(self) -> Samples:
        """All samples of the file, mapped or in memory."""

    def reader(self) -> ShardReader | Samples:
        """What gives single samples (`row`) of the file."""

    def count_samples(self) -> int:
        """Number of samples, from a header or an index. Raises UserError if the file is damaged."""

    def chunks(self, rows: int = ROWS) -> Iterator[Samples]:
        """The samples in order, those of `rows` rows of the file at a time, so that memory does not grow with the file.
        Raises UserError if it is damaged."""

    def inspect(self, *, vocab_size: int, max_length: int, verify: bool) -> PartSummary:
        """What the file holds. Raises UserError if a model of `vocab_size` and `max_length` cannot take it; `verify`
        reads every sample and compares the checksum, without it the header is believed."""


class MappedPart:
    """A shard of ours, mapped when it is used."""

    def __init__(self, header: ShardHeader) -> None:
        self.path = header.path
        self.header = header
        self.num_bytes = header.num_bytes

    def samples(self) -> Samples:
        return map_samples(self.header)

    def reader(self) -> ShardReader:
        return ShardReader(self.header)

    def count_samples(self) -> int:
        return self.header.num_samples

    def chunks(self, rows: int = ROWS) -> Iterator[Samples]:
        for start in range(0, self.header.num_samples, rows):
            mapped = map_samples(self.header)  # mapped anew, so that pages that were read do not stay in memory
            if not start:
                mapped.check_structure(where=str(self.path))
            yield mapped.take(np.arange(start, min(start + rows, self.header.num_samples)))

    def check_digest(self) -> None:
        """Reads everything. Raises UserError if the samples do not match their checksum."""
        if digest(self.samples()) != self.header.sha256:
            raise UserError(
                f"{self.path}: the content does not match its sha256 ({self.header.sha256[:12]}...), so the file was "
                "changed or damaged; copy it again or prepare the data again."
            )

    def inspect(self, *, vocab_size: int, max_length: int, verify: bool) -> PartSummary:
        header = self.header
        if verify:
            self.check_digest()
            self.samples().validate(vocab_size, max_length, where=str(self.path))
        check_token_ids(header.max_token_id, header.max_token_id, vocab_size, where=str(self.path))
        if header.max_length > max_length:
            raise UserError(
                f"{self.path} holds samples of up to {header.max_length} tokens, expected at most {max_length} (the "
                f"positions of the model); prepare the data with --max-seq-length {max_length} or choose another model."
            )
        return PartSummary(
            num_samples=header.num_samples,
            num_tokens=header.num_tokens,
            num_masked=header.num_masked,
            max_length=header.max_length,
            sha256=header.sha256,
            vocab_size=header.vocab_size,
        )


class PublishedPart:
    """A file of a published layout. `samples` reads it whole and keeps it; `chunks` does not."""

    def __init__(self, path: Path, layout: str) -> None:
        self.path = path
        self.layout = layout
        self.num_bytes = 0

    @cached_property
    def _samples(self) -> Samples:
        return read_published(self.path, self.layout)

    def samples(self) -> Samples:
        return self._samples

    def reader(self) -> Samples:
        return self._samples

    def count_samples(self) -> int:
        return count_published(self.path, self.layout)

    def chunks(self, rows: int = ROWS) -> Iterator[Samples]:
        return iter_published(self.path, self.layout, rows=rows)

    def inspect(self, *, vocab_size: int, max_length: int, verify: bool) -> PartSummary:
        samples = read_published(self.path, self.layout)  # not kept: one file at a time is enough here
        samples.validate(vocab_size, max_length, where=str(self.path))
        return PartSummary(
            num_samples=samples.num_samples,
            num_tokens=samples.num_tokens,
            num_masked=samples.num_masked,
            max_length=int(samples.lengths.max()),
            sha256=digest(canonical(samples, vocab_size=vocab_size)),
            vocab_size=None,
        )


def open_part(path: Path, layout: str) -> Part:
    """The file `path` of this `layout`. Raises UserError if the header of a shard of ours is damaged."""
    return MappedPart(read_header(path)) if layout == LAYOUT else PublishedPart(path, layout)


def open_parts(path: str | Path) -> tuple[str, list[Part]]:
    """The layout of `path` and its files in the order of their samples.

    Raises UserError, naming the file, if it is missing, truncated, foreign or of another layout than its neighbours.
    """
    files = find_shards(path)
    if _is_text(files[0]):
        raise UserError(f"{files[0]} is text, expected samples; run prep examples on it first.")
    first = detect_layout(files[0])
    for file in files[1:]:
        layout = detect_layout(file)
        if layout != first:
            raise UserError(
                f"{file.parent} mixes layouts: {files[0].name} is {first}, {file.name} is {layout}; keep one layout in "
                "a folder."
            )
    return first, [open_part(file, first) for file in files]


def find_shards(path: str | Path) -> list[Path]:
    """The shard files at `path` in sorted order: the file itself, or of a folder all files that are named like shards
    (part-<i>-of-<n> or part_<i>_of_<n> with or without ending, or ending in .hdf5, .hdf, .h5, .tfrecord, .tfrecords).

    Raises UserError if there are none, if some of a numbered set are missing, if the step that writes them (see
    data_prep/stage.py) is not finished, or if files that it wrote are missing.
    """
    path = Path(path)
    try:
        if path.is_file():
            return [path]
        is_folder = path.is_dir()
        items = sorted(path.iterdir()) if is_folder else []
    except OSError as error:
        raise UserError(f"the data path {path} cannot be read: {error.strerror}; give another.") from None
    if not is_folder:
        wrong = "is no file and no folder" if path.exists() else "does not exist"
        raise UserError(f"the data path {path} {wrong}; give a folder of shards or one shard file.")
    if (path / ".unfinished").is_dir() and not (path / "manifest.json").exists():
        raise UserError(f"the step that writes {path} is not finished; run its command again, or give another folder.")
    names = [item.name for item in items if not item.is_dir() and not item.name.startswith(".")]
    found = [name for name in names if Path(name).suffix in _SUFFIXES or _NUMBERED.fullmatch(name)]
    _check_listed(path)
    if dangling := next((name for name in found if not (path / name).exists()), None):
        raise UserError(
            f"{path / dangling} is a link to a file that is not there; put the file back or remove the link."
        )
    if not found:
        content = f"it holds {', '.join(names[:3])}" if names else "it is empty"
        raise UserError(
            f"the folder {path} has no shards ({content}); expected files like part_00000_of_00004.hdf5 or "
            "part-00000-of-00500: prepare the data or give another folder."
        )
    _check_complete(path, found)
    return [path / name for name in found]


def _is_text(path: Path) -> bool:
    """Whether a file without an ending, as text parts and TFRecords have none, begins with a line of UTF-8 text."""
    if path.suffix in _SUFFIXES:
        return False
    try:
        with open(path, "rb") as file:
            line = file.readline(_LONGEST_LINE)
        return line.endswith(b"\n") and line.decode("utf-8").strip().isprintable() and line != b"\n"
    except (OSError, UnicodeDecodeError):
        return False


def _check_listed(folder: Path) -> None:
    """Raises UserError unless all files are there that the manifest of a step in `folder` lists, if it has one."""
    path = folder / "manifest.json"
    try:
        manifest = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
    except (OSError, ValueError):
        return
    if not isinstance(manifest, dict) or manifest.get("format") != _STEP_FORMAT:
        return
    try:
        names = [str(output["name"]) for output in manifest["outputs"]]
    except (TypeError, KeyError):
        raise UserError(f"{path} is damaged (no list of outputs); copy the folder again or make it anew.") from None
    if missing := next((name for name in names if not (folder / name).is_file()), None):
        raise UserError(f"{folder / missing} is missing, which {path.name} there lists; copy it again or make it anew.")


def _check_complete(folder: Path, names: list[str]) -> None:
    """Raises UserError unless the files that say `i of n` are all n of them."""
    numbered = [match.groups() for name in names if (match := _NUMBERED.match(name))]
    for total in sorted({total for _, total in numbered}):
        missing = sorted(set(range(int(total))) - {int(index) for index, of in numbered if of == total})
        if missing:
            raise UserError(
                f"the folder {folder} has {int(total) - len(missing)} of {int(total)} shards, number {missing[0]} is "
                "missing (they count from 0); copy the missing ones, or give the files new names if a part of the set "
                "is wanted."
            )
