"""Runs the official compliance checker on a log and gives a verdict that a person can read."""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mlperf_logging.compliance_checker import mlp_compliance
from rich.console import Console

from bert_mlperf.config import rules
from bert_mlperf.errors import UserError
from bert_mlperf.mlperf.complaints import explain, explain_crash
from bert_mlperf.mlperf.records import Record, read_records

EXIT_VALID, EXIT_INVALID, EXIT_UNUSABLE = 0, 1, 2


@dataclass(frozen=True)
class Verdict:
    """What the rules of a round say about one log."""

    path: Path
    round_name: str
    division: str
    errors: tuple[str, ...]
    warnings: tuple[str, ...]
    summary: str  # what the log is: benchmark, model, status, accuracy
    target_met: bool  # the run ended as it should: status success, or without a target at its last sample

    @property
    def ok(self) -> bool:
        """True if the log complies; warnings do not count."""
        return not self.errors

    @property
    def messages(self) -> tuple[str, ...]:
        return tuple(f"error: {text}" for text in self.errors) + tuple(f"warning: {text}" for text in self.warnings)

    def __str__(self) -> str:
        """One line, e.g. 'VALID for 5.0.0 open (0 errors, 0 warnings)'."""
        word = "VALID" if self.ok else "INVALID"
        counts = ", ".join(
            _count(len(items), word) for items, word in ((self.errors, "error"), (self.warnings, "warning"))
        )
        return f"{word} for {self.round_name} {self.division} ({counts})"


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def check_log(path: str | Path, round_name: str = rules.DEFAULT_ROUND) -> Verdict:
    """The verdict of the official checker (usage training) on a log.

    UserError if the round has no BERT or the file is no log; everything else that is wrong with the log is in the
    verdict, also what makes the checker itself crash.
    """
    path, round_name = Path(path), rules.parse_round(round_name)
    records = read_records(path)
    checker = mlp_compliance.make_checker("training", round_name, quiet=False, werror=False)
    errors = [f"line {record.line}: {record.fault}" for record in records if record.fault]
    crash = None
    mlp_compliance.enqueued_configs.clear()  # a module global, which a crash leaves filled
    with _quiet_logging():
        try:
            mlp_compliance.main(str(path), f"training_{round_name}/common.yaml", checker)
        except Exception as error:
            crash = error
    complaints = [*checker.overwritable.values(), *checker.not_overwritable]
    if errors:
        complaints = [message for message in complaints if message != "Log lines had parsing errors."]
    errors += [explain(message, records, round_name) for message in complaints]
    if crash is not None and not errors:
        errors.append(explain_crash(crash, records))
    warnings = [explain(message, records, round_name) for message in checker.warnings.values()]
    division = str(_first(records, "submission_division", "(no division)"))
    met = _target_met(records)
    return Verdict(path, round_name, division, tuple(errors), tuple(warnings), _summary(records), met)


def main_check(files: Iterable[str | Path], *, round_name: str = rules.DEFAULT_ROUND) -> int:
    """Print the verdict on each file; the exit code: 0 all valid, 1 one is invalid, 2 one could not be judged."""
    console = Console(soft_wrap=True, highlight=False, markup=False)
    code, round_name = EXIT_VALID, rules.parse_round(round_name)
    for file in files:
        try:
            verdict = check_log(file, round_name)
        except UserError as error:
            console.print(f"{file}: cannot be judged")
            console.print(f"  error: {error}")
            code = EXIT_UNUSABLE
            continue
        console.print(f"{file}: {verdict}", style="green" if verdict.ok else "red")
        for line in (verdict.summary, *verdict.messages):
            console.print(f"  {line}")
        code = max(code, EXIT_VALID if verdict.ok else EXIT_INVALID)
    return code


def _first(records: list[Record], key: str, default: object) -> object:
    return next((record.value for record in records if record.key == key), default)


def _summary(records: list[Record]) -> str:
    parts = [f"benchmark {_first(records, 'submission_benchmark', 'not named')}"]
    if model := _first(records, "model_name", None):
        parts.append(f"model {model}")
    accuracies = [record for record in records if record.key == "eval_accuracy"]
    if accuracies:
        last = accuracies[-1]
        value = f"{last.value:.4f}" if isinstance(last.value, float) else last.value
        parts.append(f"last accuracy {value} at {last.metadata.get('epoch_num', '?')} samples")
    stops = [record.metadata.get("status", "not stated") for record in records if record.key == "run_stop"]
    parts.append(f"run {stops[-1]}" if stops else "run not stopped")
    return ", ".join(parts)


def _target_met(records: list[Record]) -> bool:
    values = {record.key: record.value for record in records}
    statuses = [record.metadata.get("status") for record in records if record.key == "run_stop"]
    without_target = "target_accuracy" in values and values["target_accuracy"] is None
    return statuses == ["success"] or (without_target and bool(statuses) and "train_samples" in values)


@contextmanager
def _quiet_logging() -> Iterator[None]:
    """Keeps the checker's own messages off the root logger, and keeps it from adding a handler there."""
    root, placeholder, before = logging.getLogger(), logging.NullHandler(), logging.root.manager.disable
    root.addHandler(placeholder)
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
        root.removeHandler(placeholder)
