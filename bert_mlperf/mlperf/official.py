"""The checkers of mlperf-logging, called through Python and shielded: what crashes there is a finding here.

They print, log to the root logger, write scaling.json into what they check and stop at the first surprise. Here nothing
is printed, root handlers are put back, and what writes works on a copy made of links.
"""

import contextlib
import io
import json
import logging
import os
import re
import signal
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Self, TextIO

import yaml
from mlperf_logging.compliance_checker import mlp_compliance, mlp_parser
from mlperf_logging.package_checker import package_checker
from mlperf_logging.package_checker.seed_checker import SeedChecker
from mlperf_logging.repo_checker import repo_checker
from mlperf_logging.system_desc_checker import system_desc_checker

from bert_mlperf.config import rules
from bert_mlperf.mlperf.complaints import explain, explain_crash
from bert_mlperf.mlperf.findings import OFFICIAL, Finding, Severity
from bert_mlperf.report.logs import Log

MAX_BYTES = 64 << 20  # of a log that the compliance checker, which reads it whole, is given
USAGE = "training"
KEY = re.compile(r"^(\w+)(?: or \w+)*(?: \(line (\d+)\))?:")
LINES = re.compile(r"\(lines? (\d+)")
SUCCESS = "PACKAGE CHECKER FOUND NO ERRORS, SUCCESS !"


def compliance(log: Log, round_name: str) -> list[Finding]:
    """What the compliance checker says of a log; a warning instead if the log is larger than MAX_BYTES."""
    if log.size > MAX_BYTES:
        what = (
            f"{log.size / 2**20:,.0f} MiB: the official compliance checker was not run, it takes logs up to 64 MiB here"
        )
        return [_finding("warning", log.path, 0, "log-size", what)]
    ruleset = rules.ROUND_TABLE[round_name].ruleset
    checker = mlp_compliance.make_checker(USAGE, ruleset, quiet=False, werror=False)
    mlp_compliance.enqueued_configs.clear()  # a module global, which a crash leaves filled
    _, crash = _shielded(lambda: mlp_compliance.main(str(log.path), f"{USAGE}_{ruleset}/common.yaml", checker))
    findings = [_finding("error", log.path, record.line, "parse", record.fault) for record in log.faults]
    complaints = [*checker.overwritable.values(), *checker.not_overwritable]
    if findings:
        complaints = [message for message in complaints if message != "Log lines had parsing errors."]
    complaints = [message for message in complaints if not _edited_later(message, log, round_name)]
    findings += [_complaint("error", log, explain(message, log.records, round_name)) for message in complaints]
    if crash is not None and not findings:
        findings.append(_complaint("error", log, explain_crash(crash, log.records)))
    said = checker.warnings.values()
    return findings + [_complaint("warning", log, explain(message, log.records, round_name)) for message in said]


def _edited_later(message: str, log: Log, round_name: str) -> bool:
    """Round 2.1 took opt_epsilon; the rules in mlperf-logging were edited after it."""
    return round_name == "2.1.0" and "'opt_lamb_epsilon' but found 0" in message and bool(log.counts["opt_epsilon"])


def seeds(paths: Sequence[Path], round_name: str) -> list[Finding]:
    """The seed check over the logs of one result."""
    checker = SeedChecker(rules.ROUND_TABLE[round_name].ruleset)
    messages, crash = _shielded(lambda: checker.check_seeds([str(path) for path in paths]))
    folder = paths[0].parent
    if crash is not None:
        return [_crashed(folder, "seed", crash)]
    return [_finding("error", folder, 0, "seed", _plain(text)) for level, text in messages if level >= logging.ERROR]


def system_description(path: Path, round_name: str) -> list[Finding]:
    """The system description check of one file."""
    ruleset = rules.ROUND_TABLE[round_name].ruleset
    messages, crash = _shielded(lambda: system_desc_checker.check_system_desc(str(path), USAGE, ruleset))
    if crash is not None:
        return [_crashed(path, "system-description", crash)]
    return [
        _finding("error", path, 0, "system-description", _plain(text))
        for level, text in messages
        if level >= logging.ERROR
    ]


def repository(folder: Path) -> list[Finding]:
    """The repository check of a submitter's folder: names that git takes badly, files above 50 MB, broken links.

    It resolves links from the working directory; those that it calls broken are looked at again.
    """
    messages, crash = _shielded(lambda: repo_checker.run_checks(str(folder)))
    if crash is not None:
        return [_crashed(folder, "repository", crash)]
    findings = []
    for level, text in messages:
        if level < logging.ERROR or text.startswith("Please"):
            continue
        head, _, names = text.partition(": ")
        paths = [Path(name.strip()) for name in names.split("\n") if name.strip()]
        if "symbolic" in head:
            head = "broken symbolic link"
            paths = [path for path in paths if not path.exists()]
        findings += [_finding("error", path, 0, "repository", head) for path in paths]
    return findings


def package(
    folder: Path,
    round_name: str,
    *,
    valid: Mapping[Path, bool],
    parsed: "ParsedLogs",
    train_samples: bool,
    scaling: dict[Path, float] | None = None,
) -> list[Finding]:
    """The package check of a submitter's folder, on a copy of links, for it writes scaling.json.

    `valid`: what `compliance` said of each log, so that it is not done twice; `parsed` likewise. `train_samples`:
    whether the RCP check takes the samples from train_samples instead of epoch_num. `scaling` takes the factors of
    scaling.json, by folder.
    """
    ruleset = rules.ROUND_TABLE[round_name].ruleset
    with tempfile.TemporaryDirectory(prefix="bert-mlperf-check-") as name:
        copy = Path(name)
        _link(folder, copy)
        known = {str(copy / path.relative_to(folder)): ok for path, ok in valid.items() if path.is_relative_to(folder)}

        def check() -> None:
            with _known_compliance(known), parsed:
                package_checker.check_training_package(
                    str(copy), USAGE, ruleset, False, False, False, train_samples, False, "nowhere"
                )

        messages, crash = _shielded(check)
        if scaling is not None:
            for file in copy.glob("results/*/*/scaling.json"):
                scaling[folder / file.parent.relative_to(copy)] = json.loads(file.read_text())["scaling_factor"]
    if crash is not None:
        return [_crashed(folder, "package", crash)]
    texts = [(level, text.replace(str(copy), str(folder))) for level, text in messages]
    skipped = [text for level, text in texts if "Skipping benchmark" in text]
    findings = [_finding("warning", folder, 0, "package", _plain(text)) for text in skipped]
    findings += [
        _finding("error", folder, 0, "package", _plain(text)) for level, text in texts if level >= logging.ERROR
    ]
    if not any(SUCCESS in text for _, text in texts) and not any(f.severity == "error" for f in findings):
        findings.append(_finding("error", folder, 0, "package", "the package checker found errors and names none"))
    return findings


def _link(folder: Path, copy: Path) -> None:
    """What the package checker reads, as links: systems/*.json and the files of results/<system>/<benchmark>."""
    for pattern in ("systems/*.json", "results/*/*/*", "results/*/package_checker_params"):
        for file in folder.glob(pattern):
            if file.is_file() and file.name != "scaling.json":
                target = copy / file.relative_to(folder)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(file.resolve())
    (copy / "results").mkdir(exist_ok=True)


class _RulesReadOnce:
    """Stands for the module yaml inside mlp_compliance: each file of rules is parsed once, not once per log."""

    BaseLoader = yaml.BaseLoader

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}

    def load(self, file: TextIO, Loader: Any) -> Any:
        if file.name not in self._known:
            self._known[file.name] = yaml.load(file, Loader=Loader)
        return self._known[file.name]


mlp_compliance.yaml = _RulesReadOnce()


class ParsedLogs:
    """Inside `with`, the official parser reads a log once, for the compliance and the seed check alike. Afterwards the
    lines with seeds are kept, for the seed check inside the package check."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], tuple[list[Any], list[Any]]] = {}

    def __enter__(self) -> Self:
        self._before = mlp_parser.parse_file
        mlp_parser.parse_file = self._parse
        return self

    def __exit__(self, *_: object) -> None:
        mlp_parser.parse_file = self._before
        for key, (lines, errors) in self._known.items():
            self._known[key] = ([line for line in lines if line.key == "seed"], errors)

    def update(self, other: "ParsedLogs") -> None:
        self._known.update(other._known)

    def _parse(self, filename: str, ruleset: str) -> tuple[list[Any], list[Any]]:
        key = (os.path.realpath(filename), ruleset)
        if key not in self._known:
            self._known[key] = self._before(filename, ruleset=ruleset)
        return self._known[key]


@contextlib.contextmanager
def _known_compliance(known: Mapping[str, bool]) -> Iterator[None]:
    """Inside, the compliance check of a known log gives its verdict without reading it again."""
    before = mlp_compliance.main

    def main(filename: str, config: str, checker: Any) -> tuple[Any, ...]:
        return (known[filename], None, None, None) if filename in known else before(filename, config, checker)

    mlp_compliance.main = main
    try:
        yield
    finally:
        mlp_compliance.main = before


def _shielded(call: Callable[[], object]) -> tuple[list[tuple[int, str]], Exception | None]:
    """Level and text of every message of a call, and what it raised. Nothing is printed, root handlers are put back."""
    messages: list[tuple[int, str]] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append((record.levelno, record.getMessage()))

    root = logging.getLogger()
    handlers, level, disabled = root.handlers[:], root.level, root.manager.disable
    root.handlers[:] = [Collector()]
    root.setLevel(logging.INFO)
    logging.disable(logging.NOTSET)
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings(), _stoppable():
            warnings.simplefilter("ignore")
            call()
        return messages, None
    except Exception as error:
        return messages, error
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        logging.disable(disabled)


@contextlib.contextmanager
def _stoppable() -> Iterator[None]:
    """Inside, a signal to stop is a KeyboardInterrupt; at the end the program's own handler gets it as well.

    The checkers' bare `except` take a KeyboardInterrupt for a fault of the log, and would go on to a false verdict.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    caught: list[tuple[int, FrameType | None]] = []

    def stop(signum: int, frame: FrameType | None) -> None:
        caught.append((signum, frame))
        raise KeyboardInterrupt

    handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if callable(own := signal.getsignal(name)):
            handlers[name] = own
            signal.signal(name, stop)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if caught:
            handlers[caught[0][0]](*caught[0])


def _complaint(severity: Severity, log: Log, text: str) -> Finding:
    key, line = KEY.match(text), LINES.search(text)
    return _finding(severity, log.path, int(line[1]) if line else 0, key[1] if key else "compliance", text)


def _finding(severity: Severity, path: Path, line: int, rule: str, what: str) -> Finding:
    return Finding(severity, path, line, rule, what, source=OFFICIAL)


def _crashed(path: Path, rule: str, error: Exception) -> Finding:
    name = {"seed": "seed", "package": "package", "repository": "repository"}.get(rule, "system description")
    reason = " ".join(str(error).split())[:200]
    what = f"the official {name} checker stopped here ({type(error).__name__}: {reason})"
    what += "; what it did not reach is not checked"
    return Finding("error", path, 0, rule, what, advice="The findings beside this one name the cause.", source=OFFICIAL)


def _plain(text: str) -> str:
    return " ".join(text.replace(os.sep * 2, os.sep).split())[:600]
