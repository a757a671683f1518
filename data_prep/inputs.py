"""The input files of a preparation step: named files, folders, or glob patterns."""

import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bert_mlperf.errors import UserError

MANIFEST = "manifest.json"  # what a finished step leaves in its folder; never an input


@dataclass(frozen=True)
class Source:
    """One input file."""

    path: Path
    name: str  # posix path below the folder that all sources share, the same on every machine


def find_sources(patterns: Sequence[str | Path]) -> list[Source]:
    """The files that `patterns` name, each once, sorted by their path as text (the order the reference works in).

    A pattern is a file, a folder (all files below it, but manifests and names that begin with a dot) or a glob pattern
    ("text/*/wiki_??"). Raises UserError for a pattern without a match, a match that is no file, and an empty file.
    """
    found = sorted({path for pattern in patterns for path in _matches(str(pattern))})
    empty = next((path for path in found if not os.path.getsize(path)), None)
    if empty is not None:
        raise UserError(f"the input {empty} is empty (0 bytes); copy it again or leave it out.")
    shared = os.path.commonpath([os.path.dirname(os.path.abspath(path)) for path in found])
    return [Source(Path(path), Path(os.path.relpath(path, shared)).as_posix()) for path in found]


def _matches(pattern: str) -> list[str]:
    """Paths of the files that one pattern names, at least one."""
    if os.path.isfile(pattern):
        return [os.path.normpath(pattern)]
    if os.path.isdir(pattern):
        below = list(_files_below(pattern))
        if not below:
            raise UserError(f"the input folder {pattern} holds no files; give the folder that holds the text.")
        return below
    matches = glob.glob(os.path.expanduser(pattern))
    if not matches:
        raise UserError(
            f"no file matches {pattern!r}; give a file, a folder or a glob pattern in quotes such as 'text/*/wiki_??'."
        )
    other = next((path for path in matches if not os.path.isfile(path)), None)
    if other is not None:
        raise UserError(f"{pattern!r} also matches {other}, which is no file; give a pattern that matches files only.")
    return [os.path.normpath(path) for path in matches]


def _files_below(folder: str) -> Iterator[str]:
    for path, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if name != MANIFEST and not name.startswith("."):
                yield os.path.normpath(os.path.join(path, name))
