"""Reads the lines of an MLPerf log as the official parser does, and says what is wrong with their shape."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bert_mlperf.errors import UserError

TOKEN = ":::MLLOG "
FIELDS = ("time_ms", "key", "value", "metadata")  # those that the official parser reads
HEAD_BYTES = 4096


@dataclass(frozen=True)
class Record:
    """One line of a log. `fault` says why the official parser cannot read it; then the other fields mean nothing."""

    line: int  # 1-based, in the file
    key: str = ""
    value: Any = None
    metadata: dict[str, Any] = field(default_factory=dict)
    time_ms: float = 0.0
    fault: str = ""


def read_records(path: Path) -> list[Record]:
    """Every MLLOG line of a file, whatever stands before it on the line. UserError if the file is no log at all."""
    try:
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
        with path.open(encoding="latin-1") as file:
            records = [_parse(number, text) for number, text in enumerate(file, start=1) if TOKEN in text]
    except FileNotFoundError:
        raise UserError(f"Log {path} does not exist.") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a folder; give the log files in it, e.g. {path}/result_0.txt.") from None
    except OSError as error:
        raise UserError(f"Log {path} cannot be read: {error.strerror}.") from None
    if not head:
        raise UserError(f"Log {path} is empty.")
    if b"\0" in head:
        raise UserError(f"{path} is a binary file; an MLPerf log is text with lines that hold {TOKEN.strip()}.")
    if not records:
        raise UserError(f"{path} is no MLPerf log: none of its lines holds {TOKEN.strip()} followed by a space.")
    return records


def _parse(line: int, text: str) -> Record:
    text = text.rpartition(TOKEN)[2].strip()
    try:
        content = json.loads(text)
    except ValueError as error:
        reason = getattr(error, "msg", str(error))
        return Record(line, fault=f"not valid JSON after {TOKEN.strip()} ({reason}): {text[:60]}")
    if not isinstance(content, dict):
        return Record(line, fault=f"expected a JSON object after {TOKEN.strip()}, found {text[:60]}")
    missing = [name for name in FIELDS if name not in content]
    if missing:
        return Record(line, fault=f"{content.get('key', 'record')}: the field {missing[0]} is missing")
    try:
        time_ms = float(content["time_ms"])
    except (TypeError, ValueError):
        return Record(line, fault=f"{content['key']}: time_ms is {content['time_ms']!r}, expected milliseconds")
    metadata = content["metadata"] if isinstance(content["metadata"], dict) else {}
    return Record(line, str(content["key"]), content["value"], metadata, time_ms)
