"""Everything that is wrong with a system JSON for an MLPerf submission, each fault with its line and what to do."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bert_mlperf.config import rules
from bert_mlperf.config.description import MLPERF_FIELDS
from bert_mlperf.config.explain import nearest
from bert_mlperf.config.reading import shown
from bert_mlperf.config.system import load_system
from bert_mlperf.errors import UserError

SEVERITIES = ("error", "warning", "note")
STACK = "other_software_stack"
LONG_STATUS = tuple(name for name, short in rules.STATUS_IN_LOG.items() if name != short)
LONG_STATUS_SINCE = 4  # major number of the round
COUNTS = {
    "number_of_nodes": r"[1-9][0-9]{0,5}",
    "host_processors_per_node": r"[0-9]{1,6}",
    "accelerators_per_node": r"[0-9]{1,6}",
}
ASKED_FOR = (  # by a reviewer, where they are empty; the official checker only wants them to be there
    "submitter",
    "system_name",
    "host_processor_model_name",
    "host_processor_core_count",
    "host_memory_capacity",
    "host_storage_type",
    "host_storage_capacity",
    "host_networking",
    "accelerator_model_name",
    "accelerator_memory_configuration",
    "accelerator_memory_capacity",
    "framework",
    STACK,
    "operating_system",
)
STAND_INS = {"division": "open", "status": LONG_STATUS[0], "submitter": "x", "system_name": "x"}


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong (error), that a reviewer will ask about (warning) or that may be meant (note)."""

    severity: Literal["error", "warning", "note"]
    field: str  # key at the top of the file, empty for the file as a whole
    line: int  # of the field, from 1; 0 if there is none
    message: str  # what is wrong, without a full stop
    advice: str  # what to do; may be empty

    def __str__(self) -> str:
        where = ": ".join(filter(None, [f"line {self.line}" if self.line else "", self.field]))
        text = f"{self.message}; {self.advice}" if self.advice else self.message
        return f"{self.severity}: {where}: {text}" if where else f"{self.severity}: {text}"


@dataclass(frozen=True)
class _Entry:
    """A key at the top of the file."""

    key: str
    value: Any
    line: int
    doubled: tuple[str, ...]  # keys that stand twice in one object of the value
    odd: tuple[str, ...]  # NaN and infinities in the value


class _NoObjectError(Exception):
    """The text is no JSON object."""

    def __init__(self, line: int, message: str, advice: str) -> None:
        self.fault = Fault("error", "", line, message, advice)


def system_faults(path: Path, round_name: str = rules.DEFAULT_ROUND) -> list[Fault]:
    """What is wrong with a system file under the rules of a round: errors, then warnings, then notes, each by line.

    UserError if the round has no BERT or the file cannot be read as text; what is no JSON object is a fault.
    """
    round_name, text = rules.parse_round(round_name), _text(path)
    faults = list(_name_faults(path))
    if text.startswith("\ufeff"):
        advice = "save the file as UTF-8 without it"
        faults.append(Fault("error", "", 1, "a byte order mark, at which the official checker ends", advice))
    try:
        entries = _entries(text.removeprefix("\ufeff"))
    except _NoObjectError as error:
        return [error.fault, *faults]
    fields = {entry.key: entry for entry in entries}
    faults += _key_faults(entries)
    for field in MLPERF_FIELDS:
        if field in fields:
            faults += _value_faults(fields[field], round_name, accelerators=_string(fields, "accelerators_per_node"))
    name = _string(fields, "system_name")
    if name and name != path.stem and not _is_todo(name):
        message = f"is {_quoted(name)}, the file is {path.name}"
        advice = "results lie in a folder with the name of the file, and the summary links to the name in the field"
        faults.append(Fault("note", "system_name", fields["system_name"].line, message, advice))
    if "run" in fields:
        spoilt = len(fields) < len(entries) or any(entry.doubled or entry.odd for entry in entries)
        faulty = {fault.field for fault in faults if fault.severity == "error"}
        if spoilt or "number_of_nodes" in faulty:
            message = "cannot be judged before the errors above are corrected"
            faults.append(Fault("note", "run", fields["run"].line, message, ""))
        else:
            faults += _run_faults(path, fields["run"], faulty)
        faults += _rank_faults(fields)
    return sorted(faults, key=lambda fault: (SEVERITIES.index(fault.severity), fault.line))


def _text(path: Path) -> str:
    """The text of a file; UserError if it has none."""
    try:
        if path.is_dir():
            raise UserError(f"{path} is a folder; give a system file in it, e.g. systems/local-cpu.json.")
        if not path.exists():
            raise UserError(f"System file {path} does not exist; check its name and the folder you are in.")
        if not path.is_file():
            raise UserError(f"{path} is no ordinary file; give a system file, e.g. systems/local-cpu.json.")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not a text file (byte {error.start} is no UTF-8); expected a JSON object.") from None
    except OSError as error:
        raise UserError(f"System file {path} cannot be read: {error.strerror}; check its permissions.") from None


def _entries(text: str) -> list[_Entry]:
    """The keys of the JSON object in a text, doubled ones twice."""
    doubled: list[str] = []
    odd: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        doubled.extend(key for key, count in Counter(key for key, _ in items).items() if count > 1)
        return dict(items)

    def constant(word: str) -> float:
        odd.append(word)
        return float(word.replace("Infinity", "inf"))

    decoder = json.JSONDecoder(object_pairs_hook=pairs, parse_constant=constant)
    _check_object(text, decoder)
    entries, at = [], _skip(text, 0)  # at "{", then at each "," and at last at "}"
    while text[at := _skip(text, at + 1)] != "}":
        line = text.count("\n", 0, at) + 1
        key, at = decoder.raw_decode(text, at)
        doubled.clear()
        odd.clear()
        value, at = decoder.raw_decode(text, _skip(text, _skip(text, at) + 1))
        entries.append(_Entry(key, value, line, tuple(doubled), tuple(odd)))
        if text[at := _skip(text, at)] == "}":
            break
    return entries


def _check_object(text: str, decoder: json.JSONDecoder) -> None:
    """_NoObjectError if a text is not one JSON object."""
    if not text.strip():
        raise _NoObjectError(0, "the file is empty", "write one JSON object with the 33 MLPerf fields")
    try:
        value = decoder.decode(text)
    except json.JSONDecodeError as error:
        reason = error.msg[0].lower() + error.msg[1:]
        raise _NoObjectError(error.lineno, f"not valid JSON at column {error.colno}: {reason}", "correct it") from None
    except RecursionError:
        raise _NoObjectError(
            0, "its objects are nested too deeply", "write one object with the MLPerf fields"
        ) from None
    except ValueError:  # Python reads no whole number of more than 4,300 digits
        raise _NoObjectError(0, "a whole number has thousands of digits", "write one that can be meant") from None
    if not isinstance(value, dict):
        raise _NoObjectError(1, f"the file holds {shown(value)}", "write one JSON object with the 33 MLPerf fields")


def _skip(text: str, at: int) -> int:
    """Position of the next character that is no white space."""
    while text[at] in " \t\r\n":
        at += 1
    return at


def _name_faults(path: Path) -> Iterator[Fault]:
    if path.name.startswith(".") or " " in path.name:
        message = f"the official repository check refuses names with a space or a leading dot, such as {path.name!r}"
        yield Fault("error", "", 0, message, "rename the file and its folder of results")
    if path.suffix != ".json":
        yield Fault("warning", "", 0, f"the official checker looks for <name>.json, not {path.name!r}", "rename it")


def _key_faults(entries: list[_Entry]) -> Iterator[Fault]:
    """Missing, doubled and unknown keys."""
    lines = {entry.key: entry.line for entry in reversed(entries)}  # the first line of each key
    unknown = [key for key in lines if key not in (*MLPERF_FIELDS, "run")]
    for field in MLPERF_FIELDS:
        if field not in lines:
            close = nearest(field, unknown)
            advice = f"rename {close} if that is meant" if close else "add it; an empty text says that it is not stated"
            yield Fault("error", field, lines.get(close or "", 0), "is missing", advice)
    for key in unknown:
        yield Fault("note", key, lines[key], "is no field of an MLPerf system description", "it does no harm")
    for entry in entries:
        if lines[entry.key] != entry.line or entry is not _first(entries, entry.key):
            message = f"stands twice, first at line {lines[entry.key]}, and the last one counts"
            yield Fault("error", entry.key, entry.line, message, "remove one of them")
        for key in entry.doubled:
            yield Fault("error", entry.key, entry.line, f"the key {_quoted(key)} stands twice in it", "remove one")
        for word in entry.odd:
            yield Fault("error", entry.key, entry.line, f"holds {word}, which is no JSON number", "write another value")


def _first(entries: list[_Entry], key: str) -> _Entry:
    return next(entry for entry in entries if entry.key == key)


def _value_faults(entry: _Entry, round_name: str, *, accelerators: str | None) -> Iterator[Fault]:
    """What is wrong with the value of an MLPerf field; `accelerators` is the number of them in a host."""
    field, line, value = entry.key, entry.line, entry.value
    if field == STACK and isinstance(value, dict):
        for name, version in value.items():
            yield from _text_faults(field, line, version, f"the value of {name!r}")
    else:
        yield from _text_faults(
            field, line, value, "the value" if field != STACK else "the value (or each of an object)"
        )
    if isinstance(value, str) and not _is_todo(value):
        yield from _word_faults(field, line, value, round_name)
    empty = not value.strip() if isinstance(value, str) else field == STACK and value == {}
    without = accelerators == "0" and field.startswith("accelerator_")
    if empty and field in ASKED_FOR and not without:
        yield Fault("warning", field, line, "is empty, and a reviewer will ask for it", "state it")


def _text_faults(field: str, line: int, value: Any, what: str) -> Iterator[Fault]:
    """A value has to be a string, and no TODO."""
    if not isinstance(value, str):
        advice = "put it in quotes" if isinstance(value, int | float) else "write a string"
        yield Fault("error", field, line, f"{what} is {shown(value)}, expected a string", advice)
    elif _is_todo(value):
        yield Fault("error", field, line, f"still says {_quoted(value)}", "write what it asks for")


def _quoted(text: str) -> str:
    return json.dumps(text if len(text) <= 60 else f"{text[:57]}...")


def _is_todo(value: str) -> bool:
    return "TODO:" in value or value.strip() == "TODO"


def _word_faults(field: str, line: int, value: str, round_name: str) -> Iterator[Fault]:
    """Fields that take only some words or a whole number."""
    if field in COUNTS:
        if not re.fullmatch(COUNTS[field], value):
            least = "1" if field == "number_of_nodes" else "0"
            message = f"is {_quoted(value)}, expected a whole number from {least} to 999999 in quotes"
            yield Fault("error", field, line, message, "the official summary multiplies it")
        return
    long_only = int(round_name.split(".")[0]) >= LONG_STATUS_SINCE
    statuses = LONG_STATUS if long_only else tuple(rules.STATUS_IN_LOG)
    allowed = {"division": rules.DIVISIONS, "status": statuses}.get(field)
    if allowed is None or value in allowed:
        return
    meant = _meant(value, allowed)
    advice = f'write "{meant}"' if meant else "write one of " + ", ".join(f'"{word}"' for word in allowed)
    yield Fault("error", field, line, f"is {_quoted(value)}, which round {round_name} does not know", advice)


def _meant(value: str, allowed: tuple[str, ...]) -> str | None:
    """The allowed word that a value stands for: in another case, or the short word of a long status."""
    word = value.strip().casefold()
    long = {rules.STATUS_IN_LOG[name]: name for name in LONG_STATUS}
    same = next((other for other in allowed if other.casefold() == word), None)
    return same or (long[word] if long.get(word) in allowed else nearest(value, allowed))


def _string(fields: dict[str, _Entry], key: str) -> str | None:
    value = fields[key].value if key in fields else None
    return value if isinstance(value, str) else None


def _run_faults(path: Path, entry: _Entry, faulty: set[str]) -> Iterator[Fault]:
    """What load_system says of `run`, with good values for the MLPerf fields whose faults are told already."""
    repairs = [f"{field}={STAND_INS.get(field, '')}" for field in MLPERF_FIELDS if field in faulty]
    data = entry.value.get("data") if isinstance(entry.value, dict) else None
    for key, value in data.items() if isinstance(data, dict) else ():
        if isinstance(value, str) and "${" in value:  # the variable is set where the system trains
            repairs.append(f"run.data.{key}=/a/path")
    try:
        load_system(path, repairs)
    except UserError as error:
        yield Fault("error", "run", entry.line, str(error).removeprefix(f"{path}: ").removesuffix("."), "")


def _rank_faults(fields: dict[str, _Entry]) -> Iterator[Fault]:
    """Where `run` and the number of accelerators contradict each other."""
    run, line, accelerators = fields["run"].value, fields["run"].line, _string(fields, "accelerators_per_node") or ""
    if not isinstance(run, dict) or not re.fullmatch(COUNTS["accelerators_per_node"], accelerators):
        return
    ranks, device, count = run.get("ranks_per_node", 1), run.get("device", "auto"), int(accelerators)
    if count == 0 and device == "cuda":
        yield Fault("warning", "run", line, 'device is "cuda", but accelerators_per_node is "0"', "correct one of them")
    elif count > 0 and device == "cpu":
        message = f'device is "cpu", but accelerators_per_node is "{count}"'
        yield Fault("warning", "run", line, message, 'state "0" if the processors train')
    elif count > 0 and ranks != count:
        message = f"ranks_per_node is {shown(ranks)}, but accelerators_per_node is {count}"
        yield Fault("warning", "run", line, message, "a rank trains on one accelerator: correct one of them")
