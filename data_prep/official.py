"""The official input files of the benchmark: which they are, bytes and md5, and where to get them (official.json).

Sizes and md5 are those of the tables in the reference's README files (mlcommons/training, retired_benchmarks/bert and
the same folder of earlier rounds).
"""

import functools
import json
from dataclasses import dataclass
from pathlib import Path

# Kinds of things, as official.json has them.
DUMP, EXTRACTED, TEXT, EVAL_TEXT = "dump", "extracted text", "text", "evaluation text"
VOCABULARY, CHECKPOINT = "vocabulary", "checkpoint"
TRAIN_SAMPLES, EVAL_SAMPLES = "training samples", "evaluation samples"


@dataclass(frozen=True)
class OfficialFile:
    """One file."""

    name: str
    bytes: int
    md5: str | None  # None if none is published
    kind: str
    what: str
    where: str  # to get it
    folder: str | None = None  # that holds it in the published folder tree, where a name occurs twice
    optional: str | None = None  # why a run does well without it


@dataclass(frozen=True)
class OfficialSet:
    """A numbered set of files, of which some have published sizes and md5."""

    names: str  # format of the names, with the number as argument
    count: int
    layout: str  # "text", or a layout of `bert_mlperf.data.published`
    bytes: int | None  # of all files together
    kind: str
    what: str
    where: str
    known: dict[int, tuple[int, str | None]]  # number: bytes, md5
    optional: str | None = None

    @property
    def pattern(self) -> str:
        """The names, for people."""
        return self.names.replace("{:05d}", "*")


@dataclass(frozen=True)
class Official:
    """All of them."""

    files: tuple[OfficialFile, ...]
    sets: tuple[OfficialSet, ...]

    def file(self, path: Path) -> OfficialFile | None:
        """The official file that `path` has the name of. Where two share the name: the one of its size, else of its
        folder, else the first."""
        candidates = [file for file in self.files if file.name == path.name]
        if len(candidates) > 1:
            size = path.stat().st_size
            candidates.sort(key=lambda file: (file.bytes != size, file.folder != path.parent.name))
        return candidates[0] if candidates else None

    def set_named(self, pattern: str, *, is_text: bool) -> OfficialSet | None:
        """The official set with names of this pattern."""
        return next((s for s in self.sets if s.pattern == pattern and (s.layout == TEXT) == is_text), None)

    def where(self, kind: str) -> str:
        """Where to get what is of this kind."""
        entries: list[OfficialFile | OfficialSet] = [*self.files, *self.sets]
        return next(entry.where for entry in entries if entry.kind == kind)


@functools.cache
def load_official() -> Official:
    """The content of official.json."""
    content = json.loads(Path(__file__).with_name("official.json").read_text(encoding="utf-8"))
    sets = [
        entry | {"known": {int(number): (size, md5) for number, (size, md5) in entry["known"].items()}}
        for entry in content["sets"]
    ]
    return Official(
        files=tuple(OfficialFile(**entry) for entry in content["files"]),
        sets=tuple(OfficialSet(**entry) for entry in sets),
    )
