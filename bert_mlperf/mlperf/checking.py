"""`bert-mlperf check`: logs, results and submissions in, one verdict out: for people, as JSON, or as SARIF."""

import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bert_mlperf.config import rules
from bert_mlperf.config.doctor import PIPE_WIDTH
from bert_mlperf.errors import UserError
from bert_mlperf.mlperf.check import EXIT_INVALID, EXIT_UNUSABLE, EXIT_VALID, Result, check_result, check_submission
from bert_mlperf.mlperf.findings import Finding, counts, sort
from bert_mlperf.report.logs import printable
from bert_mlperf.report.systems import LogFolder, find_logs
from bert_mlperf.report.work_progress import WorkProgress

COLOURS = {"error": "red", "warning": "yellow", "note": "cyan"}
SARIF_LEVELS = {"error": "error", "warning": "warning", "note": "note"}
ALSO = 3  # places that are named where one finding stands in several files
SEPARATE_BYTES = 8 << 20  # of input above which progress is shown


@dataclass(frozen=True)
class Outcome:
    """All that was checked. `unusable`: paths that cannot be judged at all, with the reason."""

    results: tuple[Result, ...]
    submissions: tuple[tuple[Path, tuple[Finding, ...]], ...]
    unusable: tuple[tuple[Path, str], ...]

    @property
    def findings(self) -> list[Finding]:
        found = [finding for result in self.results for finding in result.findings]
        return sort([*found, *(finding for _, items in self.submissions for finding in items)])

    @property
    def exit_code(self) -> int:
        if self.unusable:
            return EXIT_UNUSABLE
        return EXIT_INVALID if any(f.severity == "error" for f in self.findings) else EXIT_VALID


def check_paths(paths: Sequence[Path], round_name: str | None = None) -> Outcome:
    """Checks everything at or below the paths, each log once. UserError if the round has no BERT."""
    given = None if round_name is None else rules.parse_round(round_name)
    places, unusable = _places(paths)
    sizes = {place: sum(_size(log) for log in place.logs) for place in places}
    results: list[Result] = []
    with WorkProgress(
        "check", total_bytes=sum(sizes.values()), total_files=sum(len(p.logs) for p in places)
    ) as progress:
        done = 0
        for place, size in sizes.items():
            try:
                results.append(check_result(place, given))
            except UserError as error:
                unusable.append((place.logs[0] if len(place.logs) == 1 else place.folder, str(error)))
            done += size
            for _ in place.logs:
                progress.file_done()
            if sum(sizes.values()) > SEPARATE_BYTES:
                progress.bytes_done(done)
    tops = [Path(os.path.abspath(path)) for path in paths]
    return Outcome(tuple(results), tuple(_submissions(tops, results)), tuple(unusable))


def _places(paths: Iterable[Path]) -> tuple[list[LogFolder], list[tuple[Path, str]]]:
    places: dict[tuple[Path, tuple[Path, ...]], LogFolder] = {}
    unusable = []
    for path in paths:
        try:
            for place in find_logs(path):
                places[place.folder, place.logs] = place
        except UserError as error:
            unusable.append((path, str(error)))
    return list(places.values()), unusable


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _submissions(paths: Sequence[Path], results: Sequence[Result]) -> Iterator[tuple[Path, tuple[Finding, ...]]]:
    """The submitters' folders at or below the paths, so that all of them was meant to be judged."""
    tops = dict.fromkeys(result.place.submitter_folder for result in results)
    for top in tops:
        if top is not None and any(top.is_relative_to(path) for path in paths):
            yield top, tuple(check_submission(top, [r for r in results if r.place.submitter_folder == top]))


def main_check(
    paths: Sequence[Path], *, round_name: str | None = None, as_json: bool = False, sarif: Path | None = None
) -> int:
    """Print the verdict; the exit code: 0 no errors, 1 errors, 2 something could not be judged. UserError as above."""
    outcome = check_paths(paths, round_name)
    if sarif is not None:
        _write(sarif, json.dumps(to_sarif(outcome), indent=1))
    if as_json:
        print(json.dumps(to_json(outcome), indent=1))
    else:
        _print(outcome)
    return outcome.exit_code


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}; choose another place.") from None


def to_json(outcome: Outcome) -> dict[str, Any]:
    """Everything that was found, for machines."""
    return {
        "exit_code": outcome.exit_code,
        "results": [
            {
                "folder": str(result.place.folder),
                "system": result.place.system,
                "round": result.round_name,
                "valid": result.ok,
                "logs": [
                    {"path": str(v.path), "valid": v.ok, "division": v.division, "summary": v.summary}
                    for v in result.verdicts
                ],
            }
            for result in outcome.results
        ],
        "submissions": [str(top) for top, _ in outcome.submissions],
        "unusable": [{"path": str(path), "reason": reason} for path, reason in outcome.unusable],
        "findings": [finding.to_json() for finding in outcome.findings],
    }


def to_sarif(outcome: Outcome) -> dict[str, Any]:
    """The findings as SARIF 2.1.0, which code hosts show beside the lines."""
    unusable = [Finding("error", path, 0, "file", reason) for path, reason in outcome.unusable]
    tool = {"driver": {"name": "bert-mlperf check", "version": metadata.version("bert-mlperf"), "rules": []}}
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": tool, "results": [_sarif_result(f) for f in [*unusable, *outcome.findings]]}],
    }


def _sarif_result(finding: Finding) -> dict[str, Any]:
    path = finding.path
    uri = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else None
    place = path.absolute().as_uri() if uri is None else quote(os.fsencode(uri))
    location: dict[str, Any] = {"artifactLocation": {"uri": place}}
    if finding.line:
        location["region"] = {"startLine": finding.line}
    return {
        "ruleId": finding.rule,
        "level": SARIF_LEVELS[finding.severity],
        "message": {"text": ". ".join(filter(None, (finding.what, finding.why, finding.advice)))},
        "locations": [{"physicalLocation": location}],
    }


def _print(outcome: Outcome) -> None:
    console = Console(
        width=None if sys.stdout.isatty() else PIPE_WIDTH, soft_wrap=True, highlight=False, markup=False, emoji=False
    )
    for path, reason in outcome.unusable:
        console.print(f"{_shown(path)}: cannot be judged")
        console.print(f"  error: {printable(reason)}", style="red")
    print_findings(console, outcome.findings)
    if (
        not outcome.unusable
        and [len(result.place.logs) for result in outcome.results] == [1]
        and not outcome.submissions
    ):
        verdict = outcome.results[0].verdicts[0]
        verdict = replace(verdict, findings=tuple(outcome.findings))
        console.print(f"{_shown(verdict.path)}: {verdict}", style="green" if verdict.ok else "red")
        console.print(f"  {verdict.summary}")
        return
    if outcome.results:
        console.print(_table(outcome))
    for top, findings in outcome.submissions:
        bad = any(f.severity == "error" for f in findings)
        console.print(
            f"submission {_shown(top)}: {'fails' if bad else 'passes'} the official package and repository checks"
        )
    if outcome.results:
        errors = any(f.severity == "error" for f in outcome.findings)
        console.print(
            f"{'INVALID' if errors else 'VALID'} ({counts(outcome.findings)})", style="red" if errors else "green"
        )


def _grouped(findings: Iterable[Finding]) -> list[tuple[Finding, list[Finding]]]:
    """The first of findings that say the same of several files of a folder, with the others."""
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for finding in findings:
        words = "".join(c for c in finding.what if not c.isdigit())  # the same but for its numbers
        key = (finding.severity, finding.rule, finding.path.parent, words[:60], finding.source)
        groups.setdefault(key, []).append(finding)
    return [(items[0], items[1:]) for items in groups.values()]


def print_findings(console: Console, findings: Sequence[Finding], *, below: Path | None = None) -> None:
    """Each finding with its place, reason and advice; what several files of a folder share is told once. `below`:
    folder that places are shown from."""
    for finding, others in _grouped(findings):
        if below is not None and finding.path.is_relative_to(below):
            finding = replace(finding, path=finding.path.relative_to(below.parent))
        _print_finding(console, finding, others)


def _print_finding(console: Console, finding: Finding, others: Sequence[Finding]) -> None:
    head = Text(f"{finding.severity:8s}", style=COLOURS[finding.severity])
    place = _shown(finding.path) + (f":{finding.line}" if finding.line else "")
    console.print(head.append(f"{place}  ({finding.rule}, {finding.source})", style="default"))
    console.print(f"        {printable(finding.what)}")
    if finding.why:
        console.print(f"        why: {printable(finding.why)}")
    if finding.advice:
        console.print(f"        do:  {printable(finding.advice)}")
    if others:
        same = all(f.path == finding.path for f in others)
        names = ", ".join(
            str(f.line) if same else f"{f.path.name}:{f.line}" if f.line else f.path.name for f in others[:ALSO]
        )
        names = f"lines {names}" if same else names
        more = f" and {len(others) - ALSO} more" if len(others) > ALSO else ""
        console.print(f"        likewise: {printable(names)}{more}")


def _table(outcome: Outcome) -> Table:
    table = Table(box=None, pad_edge=False, title_justify="left")
    for name in ("result", "round", "division", "logs", "valid", "converged", "errors", "warnings"):
        table.add_column(name, justify="left" if name in ("result", "round", "division") else "right", overflow="fold")
    for result in outcome.results:
        number = {s: sum(f.severity == s for f in result.findings) for s in ("error", "warning")}
        table.add_row(
            _shown(result.place.folder),
            result.round_name,
            printable(", ".join(dict.fromkeys(v.division for v in result.verdicts))),
            str(len(result.place.logs)),
            str(sum(v.ok for v in result.verdicts)),
            str(sum(v.target_met for v in result.verdicts)),
            str(number["error"]),
            str(number["warning"]),
        )
    return table


def _shown(path: Path) -> str:
    """The path as a person would type it here."""
    return printable(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
