"""The input files of a preparation step: named files, folders, or glob patterns."""

import glob
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, NoReturn

from bert_mlperf.errors import UserError

FORMAT = "bert-mlperf-prep"
MANIFEST = "manifest.json"  # what a finished step leaves in its folder; never an input
UNFINISHED = ".unfinished"  # folder in the folder of a step that is not finished
_NUMBERED = re.compile(r"part[-_](\d+)[-_]of[-_](\d+)")


@dataclass(frozen=True)
class Source:
    """One input file."""

    path: Path
    name: str  # posix path below the folder that all sources share, the same on every machine


def find_sources(patterns: Sequence[str | Path], *, out: str | Path | None = None) -> list[Source]:
    """The files that `patterns` name, each once, sorted by their path as text (the order the reference works in).

    A pattern is a file, a folder (all files below it, but manifests and names that begin with a dot) or a glob pattern
    ("text/*/wiki_??"; manifests do not match). Raises UserError for a pattern without a match, a match that is no file,
    a file that is empty (unless its manifest says so: all its articles were withheld), a folder with some of a numbered
    set or of the files of its manifest, the result of a step that is not finished, training together with evaluation
    text, and a folder that the folder to write, `out`, lies in.
    """
    for pattern in patterns:
        if out is not None and os.path.isdir(pattern):
            _check_outside(str(pattern), out)
    named = {absolute(path): path for pattern in patterns for path in _matches(str(pattern))}
    found = sorted(named.values())
    full = [absolute(path) for path in found]
    _check_not_empty(full)
    for folder in sorted(set().union(*map(_above, full))):
        _check_step(folder, full)
    shared = os.path.commonpath([os.path.dirname(path) for path in full])
    return [
        Source(Path(path), Path(os.path.relpath(name, shared)).as_posix())
        for path, name in zip(found, full, strict=True)
    ]


def absolute(path: str | Path) -> str:
    """The full path of the file that the kernel means by `path`, without "." and "..": links before a ".." are
    followed, since it leads out of the folder that they point to; all others keep their names."""
    parts = os.fspath(path).split(os.sep)
    if ".." not in parts:
        return os.path.abspath(path)
    behind = len(parts) - parts[::-1].index("..")
    return os.path.normpath(os.path.join(os.path.realpath(os.sep.join(parts[:behind])), *parts[behind:]))


def _tidy(path: str) -> str:
    """`path` without "." and double slashes; one with ".." is left as it is (see `absolute`)."""
    return path if ".." in path.split(os.sep) else os.path.normpath(path)


def read_manifest(folder: str | Path) -> dict[str, Any] | None:
    """The manifest of a finished step, None if `folder` has none. UserError if it lacks what every manifest holds."""
    path = Path(folder) / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
    except (OSError, ValueError):
        return None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        return None
    if not _is_whole(manifest):
        raise UserError(
            f"{path} is damaged (it lacks what the manifest of a step holds); copy it again, or remove the folder and "
            "repeat that step."
        )
    return manifest


def _is_whole(manifest: dict[str, Any]) -> bool:
    """Whether everything is there that is looked for in manifests."""
    lists = {"inputs": ("name", "bytes", "md5"), "outputs": ("name", "bytes", "md5", "facts")}
    return (
        all(isinstance(manifest.get(name), str) for name in ("stage", "request"))
        and all(isinstance(manifest.get(name), dict) for name in ("versions", "options", "summary"))
        and all(isinstance(manifest.get(name), list) and manifest[name] for name in lists)
        and all(
            isinstance(entry, dict) and all(field in entry for field in fields)
            for name, fields in lists.items()
            for entry in manifest[name]
        )
    )


def _matches(pattern: str) -> list[str]:
    """Paths of the files that one pattern names, at least one."""
    if os.path.isfile(pattern):
        if os.path.basename(pattern) == MANIFEST:
            raise UserError(f"the input {pattern} is named like the manifest of a step; give the files beside it.")
        return [_tidy(pattern)]
    if os.path.isdir(pattern):
        below = list(_files_below(pattern))
        if not below:
            raise UserError(f"the input folder {pattern} holds no files; give the folder that holds the text.")
        _check_complete(pattern, below)
        return below
    matches = [path for path in sorted(glob.glob(os.path.expanduser(pattern))) if os.path.basename(path) != MANIFEST]
    if not matches:
        raise UserError(
            f"no file matches {pattern!r}; give a file, a folder or a glob pattern in quotes such as 'text/*/wiki_??'."
        )
    other = next((path for path in matches if not os.path.isfile(path)), None)
    if other is not None:
        raise UserError(f"{pattern!r} also matches {other}, which is no file; give a pattern that matches files only.")
    return [_tidy(path) for path in matches]


def _files_below(folder: str) -> Iterator[str]:
    for path, folders, names in os.walk(folder, onerror=_unreadable):
        folders[:] = [name for name in folders if not name.startswith(".")]
        if link := next((name for name in folders if os.path.islink(os.path.join(path, name))), None):
            raise UserError(
                f"the input folder {folder} holds {os.path.join(path, link)}, a link to another folder, which is not "
                "followed; give the folders one by one."
            )
        for name in names:
            below = _tidy(os.path.join(path, name))
            if name == MANIFEST or name.startswith("."):
                continue
            if not os.path.isfile(below):
                raise UserError(f"the input folder {folder} holds {below}, which is no file; remove it from there.")
            yield below


def _unreadable(error: OSError) -> NoReturn:
    raise UserError(f"the input folder {error.filename} cannot be read: {error.strerror}; check its permissions.")


def _check_complete(folder: str, paths: Sequence[str]) -> None:
    """Raises UserError if a file of the manifest of `folder` is missing, or without one a file of a numbered set."""
    manifest = read_manifest(folder)
    if manifest is not None:
        wanted = (os.path.join(folder, output["name"]) for output in manifest["outputs"])
        if absent := next((path for path in wanted if not os.path.isfile(path)), None):
            raise UserError(f"{absent} is missing, which {MANIFEST} there lists; copy it again or repeat that step.")
        return
    numbers: dict[tuple[str, int], set[int]] = {}
    for path in paths:
        if match := _NUMBERED.fullmatch(os.path.basename(path)):
            numbers.setdefault((os.path.dirname(path), int(match[2])), set()).add(int(match[1]))
    for (below, total), found in numbers.items():
        gap = next(number for number in count() if number not in found)
        if gap < total or len(found) > total:
            wrong = f"number {gap} is missing" if gap < total else f"number {max(found)} is one too many"
            raise UserError(
                f"the folder {below} holds {len(found)} parts of a set of {total}, {wrong} (they count from 0); put "
                "this right, or give a glob pattern that matches the wanted ones."
            )


def _check_outside(folder: str, out: str | Path) -> None:
    if os.path.realpath(folder) in {os.path.realpath(out), *_above(os.path.realpath(out))}:
        raise UserError(
            f"{out} lies inside the input folder {folder}, of which it would become a part; give another --out."
        )


def _check_not_empty(paths: Sequence[str]) -> None:
    meant: dict[str, set[str]] = {}  # files in each folder that are empty because the step that wrote them says so
    for path in paths:
        if os.path.getsize(path):
            continue
        for folder in _above(path):
            if folder not in meant:
                outputs = (read_manifest(folder) or {"outputs": []})["outputs"]
                meant[folder] = {os.path.join(folder, output["name"]) for output in outputs if not output["bytes"]}
        if not any(path in names for names in meant.values()):
            raise UserError(f"the input {path} is empty (0 bytes); copy it again or leave it out.")


def _above(path: str) -> set[str]:
    """All folders above a path."""
    return {str(folder) for folder in Path(path).parents}


def _check_step(folder: str, paths: Sequence[str]) -> None:
    """Raises UserError if `folder` is that of a step that is not finished, or the folder of the step split, of which
    `paths` have training and evaluation text."""
    if os.path.isdir(os.path.join(folder, UNFINISHED)) and not os.path.exists(os.path.join(folder, MANIFEST)):
        raise UserError(
            f"the step that writes {folder} is not finished, so its files are not all there; run its command again "
            "first."
        )
    manifest = read_manifest(folder)
    if manifest is not None and manifest.get("stage") == "split":
        train = os.path.join(folder, "train", "")
        below = [path for path in paths if path.startswith(os.path.join(folder, ""))]
        if len({path.startswith(train) for path in below}) > 1:
            raise UserError(f"{folder} holds training and evaluation text; give {train[:-1]} for training.")
