"""What lies below a folder: official files by their names, sets of text parts or shards, results of our own steps."""

import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from bert_mlperf.data import tfrecord
from bert_mlperf.data_prep.inputs import MANIFEST
from bert_mlperf.data_prep.official import VOCABULARY, Official, OfficialFile
from bert_mlperf.data_prep.stage import UNFINISHED, md5_of, read_manifest
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


@dataclass(frozen=True)
class Step:
    """What a step of ours says in its manifest."""

    name: str
    files: dict[Path, tuple[int, str]]  # bytes and md5 of what it has written
    vocabulary_md5: str | None  # if it made examples


@dataclass
class Found:
    """Paths begin with the folder that was scanned."""

    folder: Path
    official: list[tuple[Path, OfficialFile]] = field(default_factory=list)
    own_vocabularies: list[Path] = field(default_factory=list)  # not the official one, but what a step here has used
    sets: dict[SetKey, dict[int, Path]] = field(default_factory=dict)  # by number in the set
    steps: dict[Path, Step] = field(default_factory=dict)  # by folder
    broken: dict[Path, str] = field(default_factory=dict)  # folders of steps without an end: what is wrong
    extracted: dict[Path, int] = field(default_factory=dict)  # raw text of a wiki extractor: files in each folder

    def __bool__(self) -> bool:
        return any((self.official, self.own_vocabularies, self.sets, self.steps, self.broken, self.extracted))


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
            found.broken[path] = (
                f"{path} was not finished; run the command that writes it again, it goes on where it stopped."
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
    return [folder / name for name in names if (folder / name).is_file()]


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
        files = {folder / name: (int(entry["bytes"]), str(entry["md5"])) for name, entry in outputs.items()}
        found.steps[folder] = Step(str(manifest["stage"]), files, manifest["options"].get("vocabulary_md5"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        found.broken[folder] = (
            f"{path} is damaged ({type(error).__name__}: {error}); copy {folder} again, or remove it and run the step "
            "again."
        )


def _sort_in(found: Found, path: Path, official: Official, *, is_of_step: bool) -> None:
    numbered = _NUMBERED.fullmatch(path.name)
    ending = numbered.group(5) if numbered else path.suffix
    if ending in _SHARD_ENDINGS or (numbered and not ending and not is_of_step):
        _add_to_set(found, path, numbered)
    elif is_of_step:
        return
    elif (known := official.file(path)) is not None:
        if known.kind == VOCABULARY and _is_own_vocabulary(path, known, found):
            found.own_vocabularies.append(path)
        else:
            found.official.append((path, known))
    elif _EXTRACTED.fullmatch(path.name):
        found.extracted[path.parent] = found.extracted.get(path.parent, 0) + 1


def _is_own_vocabulary(path: Path, known: OfficialFile, found: Found) -> bool:
    """Whether it is not the official one, and a step that was told to do so has made examples with it."""
    used = {step.vocabulary_md5 for step in found.steps.values()} - {None, known.md5}
    with suppress(OSError):  # the check of the official file says so
        return bool(used) and md5_of(path) in used
    return False


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
