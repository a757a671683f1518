"""The official input files of the benchmark: which they are, bytes and md5, and where to get them (official.json)."""

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
    """One file. Bytes and md5 are None where nothing is published."""

    name: str
    bytes: int | None
    md5: str | None
    kind: str
    what: str
    where: str  # to get it
    folder: str | None = None  # that holds it in the published folder tree, where a name occurs twice
    instead: tuple[str, ...] = ()  # kinds, any of which makes the file needless
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
    instead: tuple[str, ...] = ()
    optional: str | None = None


@dataclass(frozen=True)
class Official:
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

    def set_of(self, layout: str) -> OfficialSet:
        return next(numbered for numbered in self.sets if numbered.layout == layout)


@functools.cache
def load_official() -> Official:
    """The content of official.json."""
    content = json.loads(Path(__file__).with_name("official.json").read_text(encoding="utf-8"))
    files = [OfficialFile(**entry | {"instead": tuple(entry.get("instead", ()))}) for entry in content["files"]]
    sets = [
        OfficialSet(
            **entry
            | {
                "known": {int(number): (size, md5) for number, (size, md5) in entry["known"].items()},
                "instead": tuple(entry.get("instead", ())),
            }
        )
        for entry in content["sets"]
    ]
    return Official(tuple(files), tuple(sets))
