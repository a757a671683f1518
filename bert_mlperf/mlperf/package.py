"""`bert-mlperf package`: results into a submission that every checker lets pass, or a list of what keeps it from that.

The tree is built beside its place, checked there, and moved only if nothing in it would be rejected:

    <out>/<submitter>/systems/<system>.json                            the MLPerf fields of the system file
                      results/<system>/bert/result_{0..9}.txt, scaling.json
                      benchmarks/bert/implementations/bert-mlperf/     the sources that ran, README_<system>.md
                      LICENSE.md, README.md
"""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from bert_mlperf.config import rules
from bert_mlperf.errors import UserError
from bert_mlperf.mlperf import sources
from bert_mlperf.mlperf.check import check_result, check_submission
from bert_mlperf.mlperf.checking import print_findings
from bert_mlperf.mlperf.findings import NOT_CONVERGED, Finding, counts, sort
from bert_mlperf.report import statistics
from bert_mlperf.report.runs import Run
from bert_mlperf.report.score import score
from bert_mlperf.report.systems import MAX_DESCRIPTION_BYTES, LogFolder, SystemRuns, find_logs, read_system

IMPLEMENTATION = "bert-mlperf"
OWN_FIELDS = ("run",)  # of a system file, which MLPerf knows nothing of


@dataclass(frozen=True)
class Entry:
    """One system of a submission. `path`: its system file; `runs`: the ones that go in, in order."""

    system: SystemRuns
    path: Path
    description: dict[str, Any]
    runs: tuple[Run, ...]

    @property
    def name(self) -> str:
        return self.path.stem


def main_package(
    results: Sequence[Path], *, out: Path, round_name: str = rules.DEFAULT_ROUND, systems: Path | None = None
) -> int:
    """Builds <out>/<submitter>; the exit code: 0 written, 1 refused with the findings. UserError on bad input."""
    name = rules.parse_round(round_name)
    out, results = Path(os.path.abspath(out)), [Path(os.path.abspath(path)) for path in results]
    entries = [read_entry(place, systems) for place in _places(results)]
    _distinct(entries)
    submitter = submitter_of(entries)
    target = out / submitter
    if target.exists() or target.is_symlink():
        raise UserError(f"{target} exists and is not overwritten; move it away or give --out another folder.")
    console = Console(soft_wrap=True, highlight=False, markup=False, emoji=False)
    made = _make(out)
    try:
        with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=out) as folder:
            tree = Path(folder) / submitter
            notes = build(entries, tree)
            findings = [*notes, *judge(tree, name)]
            print_findings(console, sort(findings), below=tree)
            if refused := [f for f in findings if f.severity == "error"]:
                console.print(f"refused: nothing was written ({counts(refused)})", style="red")
                return 1
            tree.rename(target)
    except OSError as error:
        where = out if error.filename is None else os.fsdecode(error.filename)
        raise UserError(f"{where} cannot be written: {error.strerror}; make room there, or choose another.") from None
    finally:
        _unmake(made)
    console.print(f"written: {target}: passes every official checker and our lint for {name}", style="green")
    return 0


def _make(out: Path) -> list[Path]:
    """Makes the folder; those that were not there before, the innermost first."""
    missing = [folder for folder in (out, *out.parents) if not folder.exists()]
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {out} cannot be made: {error.strerror}; give a folder that can be written.") from None
    return missing


def _unmake(made: list[Path]) -> None:
    """Takes folders away that are empty."""
    for folder in made:
        try:
            folder.rmdir()
        except OSError:
            return


def _places(results: Sequence[Path]) -> list[LogFolder]:
    places = {place.folder: place for path in results for place in find_logs(path)}
    for place in places.values():
        if place.benchmark != rules.BENCHMARK:
            raise UserError(
                f"{place.folder}: results lie in results/<system>/{rules.BENCHMARK}/result_<n>.txt; give such a folder "
                "or one above."
            )
        if len(place.logs) == 1 and place.logs[0] in results:
            raise UserError(f"{place.logs[0]} is one log; give the folder of the ten runs, {place.folder}.")
    return list(places.values())


def read_entry(place: LogFolder, systems: Path | None) -> Entry:
    """A folder of runs with its system file. UserError if the file is missing or no JSON object."""
    path = place.description if systems is None else systems / f"{place.system}.json"
    assert path is not None
    try:
        if not path.is_file() and path.exists():
            raise UserError(f"{path} is no file; expected a system description.")
        if path.stat().st_size > MAX_DESCRIPTION_BYTES:
            raise UserError(f"{path} has {path.stat().st_size:,} bytes; a system description has a few thousand.")
        description = json.loads(path.read_text(encoding="utf-8"))
    except UserError:
        raise
    except FileNotFoundError:
        raise UserError(f"{path} does not exist: {place.folder} needs the description of its system.") from None
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or "it is no JSON"
        raise UserError(f"{path} cannot be read: {reason}; bert-mlperf system validate says more.") from None
    if not isinstance(description, dict):
        raise UserError(f"{path} is no JSON object; expected a system description.")
    system = read_system(place)
    if system.unreadable:
        log, reason = system.unreadable[0]
        raise UserError(f"{log} cannot go into a submission: {reason}")
    runs = score(system).runs if len(system.runs) > statistics.RUNS else system.runs
    return Entry(system, path, description, runs)


def _distinct(entries: Sequence[Entry]) -> None:
    seen: dict[str, Entry] = {}
    for entry in entries:
        if (first := seen.setdefault(entry.name, entry)) is not entry:
            raise UserError(
                f"{first.system.place.folder} and {entry.system.place.folder} are both of a system {entry.name!r}; "
                "a submission has each once."
            )


def submitter_of(entries: Sequence[Entry]) -> str:
    """The one submitter of all system files. UserError if there is none, more than one, or it cannot name a folder."""
    names = {json.dumps(entry.description.get("submitter")) for entry in entries}
    if len(names) != 1:
        listed = ", ".join(sorted(names))
        raise UserError(f"A submission has one submitter, the system files name {listed}; package them one by one.")
    name = json.loads(names.pop())
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.+-]*", name):
        raise UserError(
            f"{entries[0].path}: submitter is {json.dumps(name)}, expected a name that can be a folder: a letter or "
            "digit, then also _ . + -."
        )
    return name


def build(entries: Sequence[Entry], tree: Path) -> list[Finding]:
    """Writes the tree; what is to be said about where it came from."""
    findings = []
    for entry in entries:
        folder = tree / "results" / entry.name / rules.BENCHMARK
        folder.mkdir(parents=True)
        for number, run in enumerate(entry.runs):
            shutil.copyfile(run.path, folder / f"result_{number}.txt")
        described = {key: value for key, value in entry.description.items() if key not in OWN_FIELDS}
        _write(tree / "systems" / f"{entry.name}.json", json.dumps(described, indent=2) + "\n")
        findings += _window(entry)
    implementation = tree / "benchmarks" / rules.BENCHMARK / "implementations" / IMPLEMENTATION
    logs = [run.path for entry in entries for run in entry.runs]
    findings += sources.copy(implementation, logs)
    for entry in entries:
        _write(implementation / f"README_{entry.name}.md", sources.system_readme(entry.name, entry.description))
        _write(implementation / "systems" / f"{entry.name}.json", entry.path.read_text(encoding="utf-8"))
    licence = sources.REPOSITORY / "LICENSE"
    _write(tree / "LICENSE.md", licence.read_text(encoding="utf-8"))
    _write(tree / "README.md", sources.submission_readme({e.name: e.description for e in entries}, IMPLEMENTATION))
    return findings


def _window(entry: Entry) -> list[Finding]:
    every = len(entry.system.runs)
    if every <= statistics.RUNS:
        return []
    names = f"{entry.runs[0].path.name} to {entry.runs[-1].path.name}"
    what = f"of {every} runs the ten of the median window go in: {names}, in the order of their start"
    return [Finding("note", entry.system.place.folder, 0, "runs", what)]


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def judge(tree: Path, round_name: str) -> list[Finding]:
    """Everything that the checkers say of a tree; it gets the scaling.json that the official one writes."""
    results = [check_result(place, round_name) for place in find_logs(tree)]
    findings = [finding for result in results for finding in _accepted(result.findings)]
    scaling: dict[Path, float] = {}
    findings += check_submission(tree, results, scaling=scaling)
    for folder, factor in scaling.items():
        (folder / "scaling.json").write_text(json.dumps({"scaling_factor": factor}))
    return findings


def _accepted(findings: Sequence[Finding]) -> list[Finding]:
    """One run of a result may be the slowest because it did not converge: then that is no error."""
    failed = {f.path for f in findings if f.severity == "error" and f.rule == NOT_CONVERGED}
    others = {f.path for f in findings if f.severity == "error" and f.rule != NOT_CONVERGED}
    if len(failed) != 1 or others:
        return list(findings)
    why = "One run of ten may; it counts as the slowest."
    return [replace(f, severity="warning", why=why, advice="") if f.severity == "error" else f for f in findings]
