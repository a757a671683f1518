"""The verdict on logs, results and whole submissions: the official checkers, and our strict lint beside them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bert_mlperf.config import rules
from bert_mlperf.errors import UserError
from bert_mlperf.mlperf import official, rcp
from bert_mlperf.mlperf.findings import Finding, counts, merge, sort
from bert_mlperf.mlperf.lint_course import lint_course
from bert_mlperf.mlperf.lint_lines import lint_lines
from bert_mlperf.mlperf.lint_runs import lint_runs
from bert_mlperf.mlperf.lint_values import lint_values
from bert_mlperf.report.logs import printable
from bert_mlperf.report.runs import Run, read_run
from bert_mlperf.report.systems import LogFolder, SystemRuns, read_system, round_of_path, round_of_run

EXIT_VALID, EXIT_INVALID, EXIT_UNUSABLE = 0, 1, 2


@dataclass(frozen=True)
class Verdict:
    """What the rules of a round say about one log."""

    path: Path
    round_name: str
    division: str
    findings: tuple[Finding, ...]
    summary: str  # what the log is: benchmark, model, status, accuracy
    target_met: bool  # the run ended as it should: status success, or without a target at its last sample

    @property
    def errors(self) -> tuple[str, ...]:
        return tuple(f.what for f in self.findings if f.severity == "error")

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(f.what for f in self.findings if f.severity == "warning")

    @property
    def ok(self) -> bool:
        """True if the log complies; warnings do not count."""
        return not self.errors

    def __str__(self) -> str:
        """One line, e.g. 'VALID for 5.0.0 open (0 errors, 0 warnings)'."""
        word = "VALID" if self.ok else "INVALID"
        return f"{word} for {self.round_name} {self.division} ({counts(self.findings)})"


def check_log(path: str | Path, round_name: str | None = rules.DEFAULT_ROUND) -> Verdict:
    """The verdict on one log: the official compliance checker and our lint. `round_name` None takes the log's own.

    UserError if the round has no BERT or the file is no log; everything else that is wrong with the log is in the
    verdict, also what makes the checker itself crash.
    """
    run = read_run(Path(path))
    name = rules.parse_round(round_name or round_of_path(run.path.absolute()) or round_of_run(run))
    return verdict_on(run, name)


def verdict_on(run: Run, round_name: str) -> Verdict:
    """As `check_log`, on a run that was read."""
    findings = merge(official.compliance(run.log, round_name), lint(run, round_name))
    said = run.log.first("submission_division")
    division = "(no division)" if said is None else printable(said.value)[:40]
    return Verdict(run.path, round_name, division, tuple(sort(findings)), _summary(run), _target_met(run))


def lint(run: Run, round_name: str) -> list[Finding]:
    """Our lint of one log. A division that is none counts as closed."""
    division = run.text("submission_division")
    division = division if division in rules.DIVISIONS else "closed"
    return [
        *lint_lines(run, round_name, division),
        *lint_values(run, round_name, division),
        *lint_course(run, round_name, division),
    ]


@dataclass(frozen=True)
class Result:
    """A folder of logs as it was checked."""

    place: LogFolder
    round_name: str
    verdicts: tuple[Verdict, ...]
    findings: tuple[Finding, ...]  # of the logs, of the folder and of its system description
    inferred: bool  # some log has a placeholder for epoch_num
    parsed: official.ParsedLogs

    @property
    def ok(self) -> bool:
        return not any(f.severity == "error" for f in self.findings)


def check_result(place: LogFolder, round_name: str | None) -> Result:
    """Every log of a folder, the logs beside each other, and the system that they belong to.

    UserError if the round has no BERT, or if no log of the folder can be read.
    """
    system = read_system(place)
    if not system.runs:
        _path, reason = system.unreadable[0]
        raise UserError(reason if len(place.logs) == 1 else f"{place.folder} has no log that can be read: {reason}")
    name = rules.parse_round(round_name or system.round_name or rules.DEFAULT_ROUND)
    with official.ParsedLogs() as parsed:
        verdicts = tuple(verdict_on(run, name) for run in system.runs)
        findings = [finding for verdict in verdicts for finding in verdict.findings]
        findings += [Finding("error", path, 0, "file", reason) for path, reason in system.unreadable]
        if len(place.logs) > 1 or place.in_submission:
            findings += _together(system, name)
    findings += _rounds(system, name, given=round_name is not None)
    inferred = any(run.samples_are_inferred for run in system.runs)
    return Result(place, name, verdicts, tuple(sort(findings)), inferred, parsed)


def _together(system: SystemRuns, round_name: str) -> list[Finding]:
    findings = list(lint_runs(system, round_name))
    if system.division == "closed" and len(system.runs) > 1:
        said = official.seeds([run.path for run in system.runs], round_name)
        if not any(f.rule in ("seed", "seed-differs", "parse") and f.severity == "error" for f in findings):
            findings += said
        findings += _convergence(system, round_name)
    description = system.place.description
    if description is not None and description.is_file():
        if not any(f.path == description and f.severity == "error" for f in findings):
            findings += official.system_description(description, round_name)
    return findings


def _convergence(system: SystemRuns, round_name: str) -> Iterator[Finding]:
    folder, why = system.place.folder, "Runs may not converge faster than the reference, but for chance."
    if not rules.ROUND_TABLE[round_name].rcp:
        return
    try:
        found = rcp.convergence(system.runs, round_name)
    except UserError as error:
        yield Finding("error", folder, 0, "rcp", str(error), why)
        return
    if found.failed > 1 or len(found.samples) < 3:
        return  # told by lint_runs
    if found.complaint:
        advice = "Use hyperparameters of the reference, or submit a reference point for this batch."
        yield Finding("error", folder, 0, "rcp", found.complaint, why, advice)
    elif found.factor > 1:
        assert found.reference is not None
        what = (
            f"{found.mean:,.0f} samples to the target, the reference takes {found.reference.mean:,.0f}: "
            f"the time is scaled by {found.factor:.6f}"
        )
        yield Finding("note", folder, 0, "rcp", what, why)


def _rounds(system: SystemRuns, round_name: str, *, given: bool) -> Iterator[Finding]:
    """Runs that were made after the round they are checked against, or in different ones."""
    known = {round_of_run(run) for run in system.runs}
    if len(known) > 1:
        what = f"the dates of the runs belong to rounds {', '.join(sorted(known))}"
        yield Finding(
            "warning", system.place.folder, 0, "round", what, "A result is made for one round.", "Leave old runs out."
        )
    late = [run for run in system.runs if round_of_run(run) > round_name.removesuffix("-edited")]
    if late and not given:
        run = late[0]
        what = f"the run is dated after round {round_name}, whose rules were taken from its path"
        yield Finding(
            "warning", run.path, run.line("run_start"), "round", what, "", "Give --round if another one is meant."
        )


def check_submission(
    folder: Path, results: Sequence[Result], *, scaling: dict[Path, float] | None = None
) -> list[Finding]:
    """The official package and repository checks of a submitter's folder, whose results were checked already, and what
    a submission has beside results. The package check needs a round, and takes that of the first result. `scaling`
    takes the RCP factors that the package check finds, by folder."""
    valid = {verdict.path: _official_ok(verdict) for result in results for verdict in result.verdicts}
    parsed = official.ParsedLogs()
    for result in results:
        parsed.update(result.parsed)
    train_samples = any(result.inferred for result in results)
    name = results[0].round_name
    findings = official.package(folder, name, valid=valid, parsed=parsed, train_samples=train_samples, scaling=scaling)
    if train_samples and not any(f.severity == "error" for f in findings):
        what = "the package check passes with --rcp-bert-train-samples only, because epoch_num is a placeholder"
        findings.append(Finding("note", folder, 0, "package", what))
    findings += official.repository(folder)
    findings += _beside_results(folder)
    return sort(findings)


def _official_ok(verdict: Verdict) -> bool:
    return not any(f.severity == "error" and f.source == official.OFFICIAL for f in verdict.findings)


def _beside_results(folder: Path) -> Iterator[Finding]:
    """Sources, licence, a README; and folders of results that the official checkers pass over."""
    sources = folder / "benchmarks" / rules.BENCHMARK / "implementations"
    if not sources.is_dir() or not any(sources.iterdir()):
        what, why = "no sources", "A submission holds what is needed to reproduce it."
        yield Finding("warning", sources, 0, "sources", what, why, "Put the implementation there.")
    for name in ("LICENSE", "README"):
        if not any(folder.glob(f"{name}*")):
            yield Finding("warning", folder, 0, name.lower(), f"no {name} file", "", f"Add {name}.md.")
    for place in sorted((folder / "results").glob("*/*")):
        if place.is_dir() and place.name != rules.BENCHMARK and place.name.lower() == rules.BENCHMARK:
            what = f"the folder is called {place.name!r}, expected {rules.BENCHMARK!r}"
            why = "The official checkers pass over it and report success."
            yield Finding("error", place, 0, "layout", what, why, "Rename it.")


def _summary(run: Run) -> str:
    parts = [f"benchmark {run.text('submission_benchmark')[:40] or 'not named'}"]
    if model := run.text("model_name"):
        parts.append(f"model {model[:60]}")
    if run.evaluations:
        last, raw = run.evaluations[-1], run.log.all("eval_accuracy")[-1].value
        value = f"{raw:.4f}" if isinstance(raw, float) else str(raw)[:40]
        samples = "?" if last.samples is None else last.samples
        parts.append(f"last accuracy {value} at {samples} samples")
    parts.append(f"run {run.status or 'without status'}"[:60] if run.log.counts["run_stop"] else "run not stopped")
    return printable(", ".join(parts))


def _target_met(run: Run) -> bool:
    record = run.log.first("target_accuracy")
    without_target = record is not None and record.value is None
    stops = [item.metadata.get("status") for item in run.log.all("run_stop")]
    return stops == ["success"] or (without_target and bool(stops) and run.log.counts["train_samples"] > 0)
