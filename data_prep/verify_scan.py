"""What lies below a folder: official files by their names, sets of text parts or shards, results of our own steps."""

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bert_mlperf.data import tfrecord
from bert_mlperf.data_prep.claim import has_finished_files
from bert_mlperf.data_prep.inputs import MANIFEST
from bert_mlperf.data_prep.official import EVAL_TEXT, VOCABULARY, Official, OfficialFile
from bert_mlperf.data_prep.stage import UNFINISHED, md5_of, read_manifest
from bert_mlperf.data_prep.wordpiece import read_vocabulary
from bert_mlperf.errors import UserError

_SHARD_ENDINGS = {".hdf5", ".hdf", ".h5", ".tfrecord", ".tfrecords"}
_NUMBERED = re.compile(r"(part[-_])(\d+)([-_]of[-_])(\d+)(.*)")
_TEXT_STEPS = {"clean", "segment", "split", "gather"}
_EXTRACTED = re.compile(r"wiki_\d\d")


@dataclass(frozen=True)
class SetKey:
    """Files of one folder that are named alike."""

    folder: Path
    pattern: str  # of the names, for people
    count: int | None  # that the names speak of ("of-00500"); None if they are not numbered
    is_text: bool


@dataclass(frozen=True)
class Step:
    """What a step of ours says in its manifest."""

    name: str
    files: dict[Path, tuple[int, str]]  # bytes and md5 of what it has written
    inputs: dict[Path, str]  # md5 of what it was made from, as far as it lies below the folder that was scanned
    vocabulary_md5: str | None  # if it made examples
    facts: tuple[dict[str, Any], ...]  # on each of its outputs
    summary: dict[str, Any]


@dataclass(frozen=True)
class Own:
    """A file with the name of an official one that it is not meant to be."""

    kind: str  # as in official.json
    is_recorded: bool  # in the manifest of a step that used it


@dataclass
class Found:
    """Paths begin with the folder that was scanned."""

    folder: Path
    official: list[tuple[Path, OfficialFile]] = field(default_factory=list)
    own: dict[Path, Own] = field(default_factory=dict)
    sets: dict[SetKey, dict[int, Path]] = field(default_factory=dict)  # by number in the set
    steps: dict[Path, Step] = field(default_factory=dict)  # by folder
    broken: dict[Path, str] = field(default_factory=dict)  # folders of steps without an end: what is wrong
    extracted: dict[Path, int] = field(default_factory=dict)  # raw text of a wiki extractor: files in each folder

    def __bool__(self) -> bool:
        return any((self.official, self.own, self.sets, self.steps, self.broken, self.extracted))


def scan(folder: Path, official: Official) -> Found:
    """Everything known below `folder`; links to folders are followed, names that begin with a dot are left out.

    Raises UserError if it does not exist, cannot be read or holds nothing known.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; give the folder that holds the inputs or the prepared data.")
    found = Found(folder)
    files = [path for below in _folders(folder, found) for path in _files(below)]
    of_steps = {path for step in found.steps.values() for path in step.files}
    for path in files:
        _sort_in(found, path, official, is_of_step=path in of_steps)
    found.sets = dict(_told_apart(found.sets))
    _set_own_apart(found, official)
    if not found:
        raise UserError(
            f"{folder} holds nothing that is known here: no official file (vocab.txt, eval.txt, part-00000-of-00500, "
            "...), no shards, no result of bert-mlperf prep; give the folder that holds them."
        )
    return found


def _folders(folder: Path, found: Found) -> Iterator[Path]:
    """The folders to look into, each once; notes steps and leaves out what an unfinished one has written so far."""
    seen: set[str] = set()
    for name, folders, _ in os.walk(folder, followlinks=True, onerror=_unreadable):
        path = Path(name)
        if os.path.realpath(path) in seen:
            folders.clear()
            continue
        seen.add(os.path.realpath(path))
        if UNFINISHED in folders and not (path / MANIFEST).exists():
            if has_finished_files(path):  # else it is as good as empty
                found.broken[path] = (
                    f"{path} was not finished; run the command that writes it again, it goes on where it stopped, or "
                    "remove the folder."
                )
            folders.clear()
            continue
        _note_step(path, found)
        folders[:] = sorted(below for below in folders if not below.startswith("."))
        yield path


def _unreadable(error: OSError) -> None:
    raise UserError(f"{error.filename} cannot be read: {error.strerror}; check its permissions.") from error


def _files(folder: Path) -> list[Path]:
    names = sorted(name for name in os.listdir(folder) if not name.startswith(".") and name != MANIFEST)
    found = [folder / name for name in names]
    return [path for path in found if path.is_file() or not path.exists()]  # a link to nothing is a missing file


def _note_step(folder: Path, found: Found) -> None:
    path = folder / MANIFEST
    if not path.is_file():
        return
    try:
        manifest = read_manifest(folder)
        if manifest is None:  # of another program, if it is JSON at all
            json.loads(path.read_text(encoding="utf-8"))
            return
        outputs = {entry["name"]: entry for entry in manifest["outputs"]}
        summary = manifest["summary"] or {}
        outputs |= {name: entry for name, entry in summary.items() if isinstance(entry, dict) and "md5" in entry}
        found.steps[folder] = Step(
            name=str(manifest["stage"]),
            files={folder / name: (int(entry["bytes"]), str(entry["md5"])) for name, entry in outputs.items()},
            inputs=dict(_inputs_below(found.folder, folder, manifest)),
            vocabulary_md5=manifest["options"].get("vocabulary_md5"),
            facts=tuple(entry["facts"] for entry in manifest["outputs"]),
            summary=summary,
        )
    except UserError as error:
        found.broken[folder] = str(error)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        found.broken[folder] = (
            f"{path} is damaged ({type(error).__name__}: {error}); copy {folder} again, or remove it and run the step "
            "again."
        )


def _inputs_below(scanned: Path, folder: Path, manifest: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """Path and md5 of the inputs of the step of `folder` that lie where they lay then, below `scanned`."""
    if "inputs_in" not in manifest:
        return
    for entry in manifest["inputs"]:
        path = Path(os.path.normpath(folder / manifest["inputs_in"] / entry["name"]))
        if path.is_relative_to(scanned) and ".." not in path.relative_to(scanned).parts and path.is_file():
            yield path, str(entry["md5"])


def _sort_in(found: Found, path: Path, official: Official, *, is_of_step: bool) -> None:
    numbered = _NUMBERED.fullmatch(path.name)
    ending = numbered.group(5) if numbered else path.suffix
    if ending in _SHARD_ENDINGS or (numbered and not ending and not is_of_step):
        _add_to_set(found, path, numbered)
    elif is_of_step:
        return
    elif (known := official.file(path)) is not None:
        found.official.append((path, known))
    elif _EXTRACTED.fullmatch(path.name):
        found.extracted[path.parent] = found.extracted.get(path.parent, 0) + 1


def _set_own_apart(found: Found, official: Official) -> None:
    """Moves vocabularies and evaluation texts that are not the official ones, and not meant to be, to `found.own`."""
    used = {step.vocabulary_md5 for step in found.steps.values()} - {None}
    has_own_text = bool(found.extracted) or any(step.name in _TEXT_STEPS for step in found.steps.values())
    sets = [official.set_named(key.pattern, is_text=True) for key in found.sets if key.is_text]
    has_own_text = (has_own_text or None in sets) and not any(sets)
    for path, known in list(found.official):
        if known.kind not in (VOCABULARY, EVAL_TEXT) or not (used or has_own_text):
            continue
        with suppress(OSError):  # the check of the official file says so
            md5 = md5_of(path)
            is_recorded = known.kind == VOCABULARY and md5 in used
            is_fit = known.kind == EVAL_TEXT or (not used and _is_vocabulary(path))
            if md5 != known.md5 and (is_recorded or (has_own_text and is_fit)):
                found.official.remove((path, known))
                found.own[path] = Own(known.kind, is_recorded)


def _is_vocabulary(path: Path) -> bool:
    try:
        read_vocabulary(path)
    except UserError:
        return False
    return True


def _add_to_set(found: Found, path: Path, numbered: re.Match[str] | None) -> None:
    if numbered:
        before, index, between, count, ending = numbered.groups()
        key = SetKey(path.parent, f"{before}*{between}{count}{ending}", int(count), is_text=not ending)
        number = int(index)
    else:
        key = SetKey(path.parent, f"*{path.suffix}", None, is_text=False)
        number = len(found.sets.get(key, {}))
    found.sets.setdefault(key, {})[number] = path


def _told_apart(sets: dict[SetKey, dict[int, Path]]) -> Iterator[tuple[SetKey, dict[int, Path]]]:
    """Text parts and TFRecords may have the same names: TFRecords are those of which at least half begin like one, so
    that a damaged file stays with its set."""
    for key, parts in sets.items():
        num_records = sum(map(_begins_like_tfrecord, parts.values())) if key.is_text else 0
        is_text = key.is_text and 2 * num_records < len(parts)
        yield SetKey(key.folder, key.pattern, key.count, is_text), parts


def _begins_like_tfrecord(path: Path) -> bool:
    with suppress(OSError):
        return tfrecord.is_tfrecord(path)
    return False
