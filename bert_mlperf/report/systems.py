"""Finds the runs under a path: logs, the system that each folder of logs belongs to, its description, its round.

A submission lies as MLPerf asks: `<round>/<submitter>/results/<system>/bert/result_<n>.txt` beside
`<round>/<submitter>/systems/<system>.json`. Any folder above or below works, also a plain folder of logs.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from bert_mlperf.config import rules
from bert_mlperf.errors import UserError
from bert_mlperf.report.runs import Run, read_run

PLACEHOLDER = re.compile(r"PLACEHOLDER|TODO", re.IGNORECASE)
RESULT = re.compile(r"result_.*\.txt")
MAX_DESCRIPTION_BYTES = 1 << 20


@dataclass(frozen=True)
class LogFolder:
    """A folder with result files: `results/<system>/<benchmark>` of a submission, or any other folder."""

    folder: Path
    logs: tuple[Path, ...]  # in the order of their numbers

    @property
    def in_submission(self) -> bool:
        return self.folder.parent.parent.name == "results"

    @property
    def benchmark(self) -> str:
        return self.folder.name if self.in_submission else ""

    @property
    def system(self) -> str:
        """Name of the system that its place says."""
        return self.folder.parent.name if self.in_submission else self.folder.name

    @property
    def submitter_folder(self) -> Path | None:
        """The folder with systems/, results/ and benchmarks/."""
        return self.folder.parent.parent.parent if self.in_submission else None

    @property
    def description(self) -> Path | None:
        """Where the system description belongs, whether or not it is there."""
        top = self.submitter_folder
        return None if top is None else top / "systems" / f"{self.system}.json"


@dataclass(frozen=True)
class SystemRuns:
    """The runs of one system, with what its description says."""

    place: LogFolder
    runs: tuple[Run, ...]  # of the logs that could be read, in the order of their numbers
    unreadable: tuple[tuple[Path, str], ...]  # log and reason
    description: dict[str, Any]  # {} where there is none that can be read

    @property
    def name(self) -> str:
        return self.place.system

    @cached_property
    def submitter(self) -> str:
        """From the description, else from the logs, else from the folder."""
        said = self.description.get("submitter") or (self.runs[0].text("submission_org") if self.runs else "")
        if isinstance(said, str) and said and not PLACEHOLDER.search(said):
            return said
        top = self.place.submitter_folder
        return top.name if top is not None and top.name else "unknown"

    @cached_property
    def division(self) -> str:
        said = self.description.get("division") or (self.runs[0].text("submission_division") if self.runs else "")
        return str(said)

    @cached_property
    def round_name(self) -> str | None:
        """Of the path, else of the first log's date."""
        return round_of_path(self.place.folder) or (round_of_run(self.runs[0]) if self.runs else None)

    @cached_property
    def nodes(self) -> int | None:
        return _count(self.description.get("number_of_nodes"))

    @cached_property
    def accelerators(self) -> int | None:
        """Devices that train, in all: accelerators, or processors where there are none."""
        per_node = _count(self.description.get("accelerators_per_node"))
        if per_node == 0:
            per_node = _count(self.description.get("host_processors_per_node"))
        return self.nodes * per_node if self.nodes and per_node else None

    @cached_property
    def accelerator(self) -> str:
        """Name of the device that trains."""
        if _count(self.description.get("accelerators_per_node")) == 0:
            return str(self.description.get("host_processor_model_name") or "processor")
        return str(self.description.get("accelerator_model_name") or "unknown accelerator")

    @cached_property
    def global_batch_size(self) -> int | None:
        """Of all runs; None if they differ or do not say."""
        sizes = {run.global_batch_size for run in self.runs}
        return sizes.pop() if len(sizes) == 1 else None


def find_logs(path: Path) -> list[LogFolder]:
    """Every folder with result files at or below `path`, sorted by place; a file stands for itself.

    UserError if there is none, or if the path is not there.
    """
    path = Path(os.path.abspath(path))  # a name for every folder above, links left as they are
    if not path.exists():
        raise UserError(f"{path} does not exist; give a log, a folder of logs or a submission.")
    if not path.is_dir():
        return [LogFolder(path.parent, (path,))]
    folders = [LogFolder(folder, logs) for folder, logs in _walk(path)]
    if not folders:
        raise UserError(f"{path} has no result_<n>.txt in it or below; give a log, a folder of logs or a submission.")
    return folders


def read_system(place: LogFolder) -> SystemRuns:
    """Reads all logs of a folder and the description; what cannot be read is told, not raised."""
    runs, unreadable = [], []
    for path in place.logs:
        try:
            runs.append(read_run(path))
        except UserError as error:
            unreadable.append((path, str(error)))
    return SystemRuns(place, tuple(runs), tuple(unreadable), read_description(place.description))


def find_systems(paths: Iterable[Path]) -> list[SystemRuns]:
    """The systems under several paths, each once. UserError as `find_logs`, and if no log can be read."""
    places = {place.folder: place for path in paths for place in find_logs(path)}
    systems = [read_system(place) for place in places.values()]
    for system in systems:
        if not system.runs:
            _, reason = system.unreadable[0]
            raise UserError(f"{system.place.folder} has no log that can be read: {reason}")
    return systems


def read_description(path: Path | None) -> dict[str, Any]:
    """A system description as it is; {} where there is none that can be read (system validate says why)."""
    if path is None:
        return {}
    try:
        if not path.is_file() or path.stat().st_size > MAX_DESCRIPTION_BYTES:
            return {}
        value = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def round_of_path(path: Path) -> str | None:
    """The round that a folder above says, the nearest first: v2.1, training_results_v5.0, 4.1.0."""
    for part in reversed(path.parts):
        match = re.search(r"(?:^|_)v?(\d+\.\d+)(?:\.0)?$", part)
        if match and f"{match[1]}.0" in (*rules.ROUNDS, *rules.ROUNDS_WITHOUT_BERT):
            return f"{match[1]}.0"
    return None


def round_of_run(run: Run) -> str:
    """The first round that was published after the run; the last one with BERT for a later run."""
    start = run.time_ms("run_start") or (run.log.records[0].time_ms if run.log.records else 0)
    return rules.round_of_time(start / 1e3)


def _walk(path: Path) -> Iterator[tuple[Path, tuple[Path, ...]]]:
    for folder, inner, names in os.walk(path, followlinks=False):
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        logs = [Path(folder, name) for name in names if RESULT.fullmatch(name)]
        if logs:
            yield Path(folder), tuple(sorted(logs, key=_number))


def _number(path: Path) -> tuple[list[int], str]:
    return [int(part[:9]) for part in re.findall(r"\d+", path.stem)], path.name


def _count(value: Any) -> int | None:
    """A whole number that a description gives as text or as a number."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str) and re.fullmatch(r"\s*\d{1,9}\s*", value, re.ASCII):
        return int(value)
    return value if isinstance(value, int) and 0 <= value < 10**9 else None
