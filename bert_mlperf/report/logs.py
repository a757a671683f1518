"""Reads MLPerf logs line by line: what the official parser sees, and what it does not.

A log is read once, in memory that does not grow with its size: of a key that the rules know the first 20,000 records
are kept, of any other the first 1,000, and all that is kept stands in 8 MiB of text. Every record knows its line.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from bert_mlperf.errors import UserError

TOKEN = ":::MLLOG "
FIELDS = ("time_ms", "key", "value", "metadata")  # those that the official parser reads
KNOWN_KEYS = frozenset(
    """
    cache_clear init_start init_stop run_start run_stop epoch_start epoch_stop block_start block_stop eval_start
    eval_stop eval_accuracy train_samples eval_samples seed global_batch_size d_batch_size gradient_accumulation_steps
    max_predictions_per_seq max_sequence_length model_name target_accuracy weights_initialization num_warmup_steps
    start_warmup_step opt_base_learning_rate opt_epsilon opt_lamb_epsilon opt_lamb_beta_1 opt_lamb_beta_2
    opt_lamb_weight_decay_rate opt_learning_rate_training_steps opt_learning_rate_warmup_steps
    opt_lamb_learning_rate_decay_poly_power submission_benchmark submission_org submission_division submission_status
    submission_platform
    """.split()
)
MAX_LINE_BYTES = 1 << 16
MAX_RECORDS, MAX_OTHER_RECORDS, MAX_FAULTS = 20_000, 1_000, 200  # of a key, of an unknown key, of a log
MAX_TEXT_BYTES = 8 << 20  # as Python objects up to twenty times as much, for lists of empty lists
MAX_KEYS, MAX_KEY_LENGTH = 10_000, 200  # that are counted one by one
HEAD_BYTES = 4096

_TOKEN = TOKEN.encode()
_NEAR = re.compile(rb":::\s*MLL(?:OG)?", re.IGNORECASE)
_decoder = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Record:
    """One MLLOG line. `fault` says why the official parser cannot read it; then the other fields mean little.

    `odd` says what the official parser takes but should not: metadata that is no object, a time that is a string.
    """

    line: int  # 1-based, in the file
    index: int = 0  # 0-based, among the lines that the official parser looks at
    key: str = ""
    value: Any = None
    metadata: dict[str, Any] = field(default_factory=dict)
    time_ms: float = 0.0
    fault: str = ""
    odd: str = ""


@dataclass(frozen=True, slots=True)
class Oddity:
    """Something about a line that the official parser passes over. `kind`: two records, no space, long line."""

    line: int
    kind: str
    message: str


@dataclass(frozen=True)
class Log:
    """What a log holds. `counts` and `faults_in_all` are of the whole file, also where fewer records are kept."""

    path: Path
    size: int  # bytes
    lines: int
    records: tuple[Record, ...]
    oddities: tuple[Oddity, ...]
    counts: Counter[str]
    faults_in_all: int
    complete: bool  # every record is in `records`

    def all(self, key: str) -> list[Record]:
        """The records of a key that were kept, in the order of the file."""
        return self._by_key.get(key, [])

    def first(self, key: str) -> Record | None:
        return next(iter(self.all(key)), None)

    @property
    def faults(self) -> list[Record]:
        """Lines that the official parser cannot read."""
        return [record for record in self.records if record.fault]

    @property
    def last_line(self) -> int:
        return max(self.lines, 1)

    @property
    def _by_key(self) -> dict[str, list[Record]]:
        cached: dict[str, list[Record]] | None = self.__dict__.get("_index")
        if cached is None:
            cached = {}
            for record in self.records:
                if not record.fault:
                    cached.setdefault(record.key, []).append(record)
            self.__dict__["_index"] = cached
        return cached


def read_log(path: Path) -> Log:
    """Every MLLOG line of a file, whatever stands before it on the line.

    UserError if the file cannot be read or is no log at all: empty, binary, no MLLOG line.
    """
    reader = _Reader()
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise UserError(f"{path} is no file but a pipe, a socket or a device; give a log file.")
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
            _refuse(path, head)
            file.seek(0)
            for number, line in _lines(file):
                reader.take(number, line)
            size = file.tell()
    except FileNotFoundError:
        raise UserError(f"Log {path} does not exist.") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a folder; give the log files in it, e.g. {path}/result_0.txt.") from None
    except OSError as error:
        raise UserError(f"Log {path} cannot be read: {error.strerror}.") from None
    if not reader.index:
        near = next((odd for odd in reader.oddities if odd.kind == "no space"), None)
        hint = f"; line {near.line} has {near.message}" if near else ""
        raise UserError(f"{path} is no MLPerf log: none of its lines holds {TOKEN.strip()} followed by a space{hint}.")
    return reader.log(path, size)


def _refuse(path: Path, head: bytes) -> None:
    if not head.strip() and len(head) < HEAD_BYTES:
        raise UserError(f"Log {path} is empty.")
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise UserError(f"{path} is UTF-16 text; an MLPerf log is ASCII or UTF-8, save it as that.")
    if b"\0" in head:
        raise UserError(f"{path} is a binary file; an MLPerf log is text with lines that hold {TOKEN.strip()}.")


def _lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Number and bytes of each line; of one that is longer than MAX_LINE_BYTES only the beginning."""
    number = 0
    while line := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        yield number, line
        while line and len(line) > MAX_LINE_BYTES and not line.endswith(b"\n"):
            line = file.readline(MAX_LINE_BYTES + 1)


class _Reader:
    """Takes the lines of a file one by one and keeps what a Log holds."""

    def __init__(self) -> None:
        self.index = 0  # lines that the official parser looks at, so far
        self.oddities: list[Oddity] = []
        self._records: list[Record] = []
        self._counts: Counter[str] = Counter()
        self._faults = self._kept_bytes = self._lines = 0
        self._dropped = False

    def take(self, number: int, line: bytes) -> None:
        self._lines = number
        if b":::" not in line:
            return
        if b"\r" in line:  # a progress bar's way back to the start: the official parser ends a line there
            for part in line.split(b"\r"):
                self._take_part(number, part)
        else:
            self._take_part(number, line)

    def _take_part(self, number: int, line: bytes) -> None:
        before, token, text = line.rpartition(_TOKEN)
        if not token:
            if near := _NEAR.search(line):
                self._odd(number, "no space", f"{_shown(near.group())} instead of '{TOKEN}' with a space behind it")
            return
        index, self.index = self.index, self.index + 1
        if _TOKEN in before:
            self._odd(number, "two records", f"{before.count(_TOKEN) + 1} records, of which only the last one counts")
        if len(line) > MAX_LINE_BYTES:
            self._odd(number, "long line", f"a record of more than {MAX_LINE_BYTES:,} bytes, which is not looked at")
            self._dropped = True
            return
        self._keep(parse_record(number, index, text.decode("latin-1")), len(text))

    def _keep(self, record: Record, size: int) -> None:
        key = record.key
        if record.fault:
            self._faults += 1
            kept = self._faults <= MAX_FAULTS
        else:
            known = key in KNOWN_KEYS
            if len(key) > MAX_KEY_LENGTH or (len(self._counts) >= MAX_KEYS and key not in self._counts and not known):
                key = "(other)"
            self._counts[key] += 1
            kept = self._counts[key] <= (MAX_RECORDS if known else MAX_OTHER_RECORDS)
        if kept and self._kept_bytes + size <= MAX_TEXT_BYTES:
            self._kept_bytes += size
            self._records.append(record)
        else:
            self._dropped = True

    def _odd(self, line: int, kind: str, message: str) -> None:
        if len(self.oddities) < MAX_FAULTS:
            self.oddities.append(Oddity(line, kind, message))

    def log(self, path: Path, size: int) -> Log:
        records, odd = tuple(self._records), tuple(self.oddities)
        return Log(path, size, self._lines, records, odd, self._counts, self._faults, not self._dropped)


def parse_record(line: int, index: int, text: str) -> Record:
    """The record behind a token, as the official parser reads it: any JSON that Python takes, NaN included."""
    text = text.strip()
    try:
        content, end = _decoder.raw_decode(text)
    except RecursionError:
        return Record(line, index, fault="objects nested too deeply to be read")
    except ValueError as error:
        reason = getattr(error, "msg", str(error))
        cut = "; the line is cut off" if text.startswith("{") and not text.endswith("}") else ""
        return Record(line, index, fault=f"not valid JSON after {TOKEN.strip()} ({reason}){cut}: {_shown(text[:60])}")
    if end != len(text):
        rest = _shown(text[end : end + 40])
        return Record(line, index, fault=f"not valid JSON after {TOKEN.strip()}: text behind the record: {rest}")
    if not isinstance(content, dict):
        return Record(line, index, fault=f"expected a JSON object after {TOKEN.strip()}, found {_shown(text[:60])}")
    missing = [name for name in FIELDS if name not in content]
    if missing:
        key = _shown(content.get("key", "record"))
        return Record(line, index, key, fault=f"{key}: the field {missing[0]} is missing")
    try:
        time_ms = float(content["time_ms"])
    except (TypeError, ValueError, OverflowError):
        key, shown = _shown(content["key"]), _shown(content["time_ms"])
        return Record(line, index, key, fault=f"{key}: time_ms is {shown}, expected milliseconds")
    key, metadata = content["key"], content["metadata"]
    odd = _odd(content)
    metadata = metadata if isinstance(metadata, dict) else {}
    return Record(line, index, str(key), content["value"], metadata, time_ms, odd=odd)


def _odd(content: dict[str, Any]) -> str:
    time_ms, key, metadata = content["time_ms"], content["key"], content["metadata"]
    if type(time_ms) is not int and (not isinstance(time_ms, float) or not math.isfinite(time_ms)):
        return f"time_ms is {_shown(json.dumps(time_ms))}, expected a number of milliseconds"
    if not isinstance(key, str):
        return f"the key is {_shown(json.dumps(key))}, expected a string"
    if not key.strip():
        return "the key is empty"
    if not isinstance(metadata, dict):
        return f"metadata is {_shown(json.dumps(metadata))}, expected an object"
    return ""


def _shown(value: object) -> str:
    """A value in a message: short, printable."""
    return printable(value.decode("latin-1") if isinstance(value, bytes) else str(value))[:80]


def printable(text: object) -> str:
    """Text of a log or of a name on one line: what a terminal would obey is escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in str(text))
