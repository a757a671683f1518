"""Our strict lint, part 4: the runs of one result beside each other and beside the system description."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from bert_mlperf.config import rules
from bert_mlperf.config.validate import Fault, system_faults
from bert_mlperf.errors import UserError
from bert_mlperf.mlperf.findings import Finding, Severity
from bert_mlperf.mlperf.requirements import alike
from bert_mlperf.report import statistics
from bert_mlperf.report.runs import Run
from bert_mlperf.report.systems import PLACEHOLDER, SystemRuns

SAME_WHO = ("submission_org", "submission_platform", "submission_status", "submission_division")


def lint_runs(system: SystemRuns, round_name: str) -> Iterator[Finding]:
    """What only shows in several logs, or in a log and the description of its system."""
    yield from _number(system)
    yield from _alike(system, round_name)
    yield from _seeds(system)
    yield from _copies(system)
    yield from _converged(system)
    if system.place.in_submission:
        yield from _names(system)
        yield from _description(system, round_name)
        for run in system.runs:
            yield from _batch(system, run)
            yield from _who(system, run)


def _number(system: SystemRuns) -> Iterator[Finding]:
    number = len(system.place.logs)
    if number == statistics.RUNS or (number == 1 and not system.place.in_submission):
        return
    severity: Severity = "error" if system.place.in_submission and system.division == "closed" else "warning"
    what = f"{number} result files, expected {statistics.RUNS}"
    why = "A BERT result is ten runs; of more, the ten consecutive ones of the median window."
    advice = "Make the missing runs." if number < statistics.RUNS else "bert-mlperf score names the median window."
    yield Finding(severity, system.place.folder, 0, "runs", what, why, advice)


def _alike(system: SystemRuns, round_name: str) -> Iterator[Finding]:
    why = "The runs of a result differ in nothing but the seed."
    for key in (*alike(round_name), *SAME_WHO, "eval_samples", "submission_benchmark"):
        values = {run.path: repr(record.value) for run in system.runs if (record := run.log.first(key)) is not None}
        usual, number = Counter(values.values()).most_common(1)[0] if values else ("", 0)
        for run in system.runs:
            if values.get(run.path, usual) != usual:
                what = f"{key} is {values[run.path][:60]}, {number} other run(s) of this result have {usual[:60]}"
                advice = "Leave runs of another configuration out."
                yield Finding("error", run.path, run.line(key), f"{key}-differs", what, why, advice)


def _seeds(system: SystemRuns) -> Iterator[Finding]:
    places: dict[object, list[Run]] = defaultdict(list)
    for run in system.runs:
        record = run.log.first("seed")
        if record is not None and isinstance(record.value, int | str | float):
            places[record.value].append(run)
        if run.log.counts["seed"] > 1:
            what = f"{run.log.counts['seed']} seeds in one log"
            line = run.log.all("seed")[1].line
            yield Finding("warning", run.path, line, "seed", what, "", "Log one seed per run, from one rank.")
    for value, runs in places.items():
        for run in runs[1:]:
            what = f"seed {value} is that of {runs[0].path.name} (line {runs[0].line('seed')}); expected another one"
            why = "Seeds are drawn anew for each run, from the clock or the operating system."
            yield Finding("error", run.path, run.line("seed"), "seed-differs", what, why, "Draw a seed for every run.")


def _copies(system: SystemRuns) -> Iterator[Finding]:
    seen: dict[object, Run] = {}
    for run in system.runs:
        course = tuple((item.time_ms, item.accuracy) for item in run.evaluations)
        if not course:
            continue
        if (first := seen.setdefault(course, run)) is not run:
            what = f"the evaluations are those of {first.path.name}, to the millisecond: a copy"
            why = "A result is ten runs."
            yield Finding("error", run.path, run.line("eval_accuracy"), "copy", what, why, "Make another run.")


def _converged(system: SystemRuns) -> Iterator[Finding]:
    failed = [run.path.name for run in system.runs if not run.converged]
    if len(failed) > 1 and system.division == "closed":
        what = f"{len(failed)} of {len(system.runs)} runs did not converge ({', '.join(failed[:4])}), at most one may"
        why = "The slowest run is dropped from the mean, no more."
        yield Finding("error", system.place.folder, 0, "converged", what, why, "The result cannot be submitted.")


def _description(system: SystemRuns, round_name: str) -> Iterator[Finding]:
    path = system.place.description
    assert path is not None
    if not path.is_file():
        near = _other_case(path)
        what = f"no system description{f'; there is {near}' if near else ''}"
        why = f"results/{system.name} belongs to systems/{system.name}.json, letter by letter."
        yield Finding("error", path, 0, "system-description", what, why, "bert-mlperf system init makes one.")
        return
    try:
        faults = system_faults(path, round_name.removesuffix("-edited"))
    except UserError as error:
        yield Finding("error", path, 0, "system-description", str(error))
        return
    alike: dict[tuple[str, str], list[Fault]] = defaultdict(list)
    for fault in faults:
        alike[fault.message, fault.advice].append(fault)
    for (message, advice), members in alike.items():
        fields = ", ".join(fault.field for fault in members if fault.field)
        first = members[0]
        what = f"{fields}: {message}" if fields else message
        yield Finding(first.severity, path, first.line, "system-description", what, "", advice)


def _names(system: SystemRuns) -> Iterator[Finding]:
    top = system.place.submitter_folder
    for name in (system.name, top.name if top is not None else ""):
        if any(character in name for character in "[]*?"):
            what = f"the name {name!r} holds one of []*?"
            why = "The official checkers look for files by patterns, and take the name for one."
            yield Finding("error", system.place.folder, 0, "layout", what, why, "Rename it.")


def _other_case(path: Path) -> str:
    if not path.parent.is_dir():
        return ""
    return next((item.name for item in path.parent.iterdir() if item.name.lower() == path.name.lower()), "")


def _batch(system: SystemRuns, run: Run) -> Iterator[Finding]:
    """Global batch = micro-batch x accumulation x ranks, with one rank per accelerator."""
    if system.description.get("accelerators_per_node") == "0":
        return  # processors: how many ranks share one is not said
    micro, steps = run.number("d_batch_size"), run.number("gradient_accumulation_steps")
    batch, ranks = run.global_batch_size, system.accelerators
    if micro is None or steps is None or batch is None or ranks is None:
        return
    if micro * steps * ranks != batch:
        what = (
            f"global_batch_size is {batch:,}, and d_batch_size {micro:g} x {steps:g} accumulated x {ranks:,} "
            f"accelerators is {micro * steps * ranks:,.0f}"
        )
        why = "A step's samples are those of all ranks; packed samples hold several."
        advice = "Say in the README how the batch comes about."
        yield Finding("warning", run.path, run.line("global_batch_size"), "batch", what, why, advice)


def _who(system: SystemRuns, run: Run) -> Iterator[Finding]:
    """Submitter and division of log, folder and description."""
    division = system.description.get("division")
    if run.log.first("submission_division") and division in rules.DIVISIONS:
        said = run.text("submission_division")
        if said != division:
            what = f"submission_division is {said[:40]!r}, the system description says {division!r}"
            why = "The official checkers take the rules from the log, seeds and RCP from the description."
            yield Finding(
                "error", run.path, run.line("submission_division"), "division-differs", what, why, "Make them agree."
            )
    org, submitter = run.text("submission_org"), str(system.description.get("submitter") or "")
    if org and submitter and not PLACEHOLDER.search(org) and _letters(org) != _letters(submitter):
        what = f"submission_org is {org[:60]!r}, the system description says {submitter[:60]!r}"
        yield Finding(
            "warning",
            run.path,
            run.line("submission_org"),
            "org-differs",
            what,
            "One submitter has one name.",
            "Make them agree.",
        )
    status, short = str(system.description.get("status") or ""), run.text("submission_status")
    if short and status in rules.STATUS_IN_LOG and rules.STATUS_IN_LOG[status] != short:
        what = f"submission_status is {short[:40]!r}, the system description says {status!r}"
        yield Finding(
            "warning", run.path, run.line("submission_status"), "status-differs", what, "", "Make them agree."
        )


def _letters(text: str) -> str:
    return "".join(character for character in text.lower() if character.isalnum())
