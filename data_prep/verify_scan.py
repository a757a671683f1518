"""What lies below a folder, sorted by what it is: official files, sets of shards or text, results of our own steps."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bert_mlperf.data import tfrecord
from bert_mlperf.data_prep.inputs import MANIFEST
from bert_mlperf.data_prep.official import OfficialFile, load_official
from bert_mlperf.data_prep.stage import read_manifest
from bert_mlperf.errors import UserError

_SHARD_ENDINGS = {".hdf5", ".hdf", ".h5", ".tfrecord", ".tfrecords"}
_NUMBERED = re.compile(r"(part[-_])(\d+)([-_]of[-_])(\d+)(.*)")
_EXTRACTED = re.compile(r"wiki_\d\d")


@dataclass(frozen=True)
class SetKey:
    """Files of one folder that are named alike."""

    folder: Path
    pattern: str  # of the names, for people
    count: int | None  # that the names speak of ("of-00500"); None if they are not numbered
    is_text: bool


@dataclass
class Found:
    """Paths are below the folder that was scanned."""

    official: list[tuple[Path, OfficialFile]] = field(default_factory=list)
    sets: dict[SetKey, dict[int, Path]] = field(default_factory=dict)  # by number in the set
    steps: dict[Path, dict[str, Any]] = field(default_factory=dict)  # manifests of our steps, by folder
    step_files: dict[Path, dict[Path, tuple[int, str]]] = field(default_factory=dict)  # of each: bytes and md5
    extracted: dict[Path, int] = field(default_factory=dict)  # raw text of a wiki extractor: files in each folder

    def __bool__(self) -> bool:
        return bool(self.official or self.sets or self.steps or self.extracted)


def scan(folder: Path) -> Found:
    """Everything known below `folder`, names that begin with a dot left out.

    Raises UserError if it does not exist, cannot be read or holds nothing known.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; give the folder that holds the inputs or the prepared data.")
    found = Found()
    for path in _folders(folder):
        manifest = read_manifest(path)
        if manifest is not None:
            found.steps[path] = manifest
            found.step_files[path] = _files_of(path, manifest)
    of_steps = {path for files in found.step_files.values() for path in files}
    for path in _folders(folder):
        for name in sorted(os.listdir(path)):
            if (path / name).is_file() and not name.startswith(".") and name != MANIFEST:
                _sort_in(found, path / name, is_of_step=path / name in of_steps)
    for key in found.sets:
        if not key.is_text:  # they have checksums of their own
            for files in found.step_files.values():
                for path in found.sets[key].values():
                    files.pop(path, None)
    if not found:
        raise UserError(
            f"{folder} holds nothing that is known here: no official file (vocab.txt, eval.txt, part-00000-of-00500, "
            "...), no shards, no result of bert-mlperf prep; give the folder that holds them."
        )
    return found


def _folders(folder: Path) -> Iterator[Path]:
    for path, folders, _ in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield Path(path)


def _files_of(folder: Path, manifest: dict[str, Any]) -> dict[Path, tuple[int, str]]:
    """Bytes and md5 of what a step has written."""
    outputs = {entry["name"]: entry for entry in manifest["outputs"]}
    summary = manifest.get("summary") or {}
    outputs |= {name: entry for name, entry in summary.items() if isinstance(entry, dict) and "md5" in entry}
    return {folder / name: (entry["bytes"], entry["md5"]) for name, entry in outputs.items()}


def _sort_in(found: Found, path: Path, *, is_of_step: bool) -> None:
    numbered = _NUMBERED.fullmatch(path.name)
    ending = numbered.group(5) if numbered else path.suffix
    official = load_official().file(path)
    if ending in _SHARD_ENDINGS or (numbered and not ending) or (official and official.kind.endswith("samples")):
        if official is not None:
            found.official.append((path, official))
        is_text = not ending and not tfrecord.is_tfrecord(path)
        if not (is_text and is_of_step):
            _add_to_set(found, path, numbered, is_text=is_text)
    elif is_of_step:
        return
    elif official is not None:
        found.official.append((path, official))
    elif _EXTRACTED.fullmatch(path.name):
        found.extracted[path.parent] = found.extracted.get(path.parent, 0) + 1


def _add_to_set(found: Found, path: Path, numbered: re.Match[str] | None, *, is_text: bool) -> None:
    if numbered:
        before, index, between, count, ending = numbered.groups()
        key = SetKey(path.parent, f"{before}*{between}{count}{ending}", int(count), is_text)
        number = int(index)
    else:
        pattern = f"*{path.suffix}" if path.suffix else path.name
        key = SetKey(path.parent, pattern, None, is_text)
        number = len(found.sets.get(key, {}))
    found.sets.setdefault(key, {})[number] = path
