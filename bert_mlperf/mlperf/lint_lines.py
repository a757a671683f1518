"""Our strict lint, part 1: the lines of a log, and which keys stand there how often."""

import difflib
import math
from collections.abc import Iterator
from typing import Any

from bert_mlperf.mlperf.findings import Finding, Severity
from bert_mlperf.mlperf.requirements import EITHER, TENSORS, required_once, required_some
from bert_mlperf.report.logs import KNOWN_KEYS, MAX_FAULTS, MAX_OTHER_RECORDS, MAX_RECORDS, Record
from bert_mlperf.report.runs import Run

OWN_FILE = "Write the MLPerf log to a file of its own, one flushed line per record, from one process."
ODDITIES = {
    "two records": (
        "two-records",
        "The official parser takes the last record of a line and drops those before it.",
        OWN_FILE,
    ),
    "no space": (
        "token",
        "The official parser looks for ':::MLLOG ' with the space and passes over any other spelling.",
        "Write ':::MLLOG ', then the JSON object.",
    ),
    "long line": ("long-line", "A record is a short JSON object.", "Look at what was written there."),
}
SIMILAR = 0.86  # of two keys, above which one is taken for a misspelling of the other


def lint_lines(run: Run, round_name: str, division: str) -> Iterator[Finding]:
    """Lines that cannot be read or are passed over, and keys that are missing, doubled or misspelled."""
    yield from _faults(run)
    yield from _oddities(run)
    yield from _once(run, round_name, division)
    yield from _some(run, division)
    yield from _spelling(run)
    yield from _not_finite(run)
    if division == "closed" and round_name in ("1.1.0", "2.0.0", "2.1.0", "2.1.0-edited"):
        yield from _tensors(run)
    if not run.log.complete:
        what = f"more lines than are kept: of each key the first {MAX_RECORDS:,}, of unknown keys {MAX_OTHER_RECORDS:,}"
        advice = "What is behind them was counted and not looked at; a log of one run has some hundred lines."
        yield Finding("warning", run.path, 0, "log-size", what, "", advice)


def _faults(run: Run) -> Iterator[Finding]:
    why = "The official parser refuses a log with a line that it cannot read."
    for record in run.log.faults:
        cut = "cut off" in record.fault and record.line == run.log.last_line
        advice = "The file is truncated: copy it again, or run again." if cut else OWN_FILE
        yield Finding("error", run.path, record.line, "parse", record.fault, why, advice)
    if run.log.faults_in_all > MAX_FAULTS:
        what = f"{run.log.faults_in_all:,} lines cannot be read, of which the first {MAX_FAULTS} are listed"
        yield Finding("error", run.path, 0, "parse", what, why, OWN_FILE)


def _oddities(run: Run) -> Iterator[Finding]:
    for odd in run.log.oddities:
        rule, why, advice = ODDITIES[odd.kind]
        yield Finding("error", run.path, odd.line, rule, odd.message, why, advice)
    why = "Checkers look up metadata by name and stop at anything else."
    for record in run.log.records:
        if record.odd:
            yield Finding("error", run.path, record.line, "shape", f"{record.key[:60]}: {record.odd}", why, OWN_FILE)


def _once(run: Run, round_name: str, division: str) -> Iterator[Finding]:
    why = f"Rules {round_name}, {division} division: exactly one line."
    unread = {record.key for record in run.log.faults}
    for key in required_once(round_name, division):
        number = run.log.counts[key]
        if number == 0 and key not in unread:
            yield Finding(
                "error",
                run.path,
                0,
                key,
                f"{key}: expected exactly one line, found none{_end(run, key)}",
                why,
                _log_it(key),
            )
        elif number > 1:
            records = run.log.all(key)
            lines = ", ".join(str(record.line) for record in records[:5])
            same = all(record.value == records[0].value for record in records)
            found = f"{number} with {'the same value' if same else _values(records)} (lines {lines})"
            what = f"{key}: expected exactly one line, found {found}"
            line = records[1].line if len(records) > 1 else records[0].line
            yield Finding("error", run.path, line, key, what, why, "Log it once, from one rank.")


def _end(run: Run, key: str) -> str:
    return (
        f" (the log ends at line {run.log.last_line})" if key in ("run_stop", "train_samples", "eval_samples") else ""
    )


def _values(records: list[Record]) -> str:
    return "different values " + ", ".join(dict.fromkeys(repr(record.value)[:40] for record in records[:5]))


def _log_it(key: str) -> str:
    if key == "run_stop":
        return "The run did not end, or its log was cut: run again."
    return f"Log {key} in every run."


def _some(run: Run, division: str) -> Iterator[Finding]:
    for key in required_some(division):
        if not run.log.counts[key]:
            why = "Every run logs its seed." if key == "seed" else "Every division asks for it."
            what = f"{key}: expected at least one line, found none"
            yield Finding("error", run.path, 0, key, what, why, _log_it(key))
    for pair in EITHER:
        if not any(run.log.counts[key] for key in pair):
            what = f"{' or '.join(pair)}: expected at least one line, found none"
            yield Finding("error", run.path, 0, pair[0], what, "Every division asks for one of them.", _log_it(pair[0]))


def _spelling(run: Run) -> Iterator[Finding]:
    """Keys that are a known one but for case, and keys that look like a required one that is missing."""
    by_lower = {key.lower(): key for key in KNOWN_KEYS}
    missing = [key for key in KNOWN_KEYS if not run.log.counts[key]]
    for key in list(run.log.counts):
        if key in KNOWN_KEYS:
            continue
        line = run.line(key)
        if known := by_lower.get(key.strip().lower()):
            what = f"the key {key[:60]!r} is not {known!r}"
            why = "Keys are compared letter by letter; this line counts for nothing."
            yield Finding("error", run.path, line, "key-case", what, why, f"Write {known}.")
        elif len(key) < 80 and (close := difflib.get_close_matches(key, missing, 1, SIMILAR)):
            what = f"the key {key!r} looks like {close[0]!r}, which this log does not have"
            yield Finding("warning", run.path, line, "key-spelling", what, "", f"Write {close[0]} if that is meant.")


def _not_finite(run: Run) -> Iterator[Finding]:
    why = "NaN and infinities are no JSON: other readers refuse the file."
    for record in run.log.records:
        if not record.fault and record.metadata and _holds_not_finite(record.metadata):
            what = f"{record.key[:60]}: metadata holds a number that is not finite"
            yield Finding("error", run.path, record.line, record.key, what, why, "Log numbers only.")
        if not record.fault and record.value is not None and _holds_not_finite(record.value):
            severity: Severity = "error" if record.key in KNOWN_KEYS else "warning"
            what = f"{record.key[:60]}: {str(record.value)[:60]} is no finite number"
            yield Finding(
                severity,
                run.path,
                record.line,
                record.key,
                what,
                why,
                "Find out where it comes from; log numbers only.",
            )


def _holds_not_finite(value: Any, depth: int = 0) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if depth > 5 or not isinstance(value, dict | list):
        return False
    return any(_holds_not_finite(item, depth + 1) for item in (value.values() if isinstance(value, dict) else value))


def _tensors(run: Run) -> Iterator[Finding]:
    names = [str(record.metadata.get("tensor")) for record in run.log.all("weights_initialization")]
    if len(names) != TENSORS or len(set(names)) != TENSORS:
        found = f"{len(names)} lines with {len(set(names))} names"
        what = f"weights_initialization: expected {TENSORS} variables once each, found {found}"
        why = "Rules 1.1.0 to 2.1.0 compare the names with those of the reference."
        line = run.line("weights_initialization")
        yield Finding(
            "error", run.path, line, "weights_initialization", what, why, "Log every variable of the model once."
        )
