"""The complaints of the official checker in words: which key, on which line, what was expected, what was found.

The checker says what failed as the Python expression of its rule. Those of the BERT rules are put into words here; one
that is not known is shown as it is.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence

from bert_mlperf.config import rules
from bert_mlperf.report.logs import Record, parse_record

INIT_MINUTES = {"open": 240, "closed": 30}  # since 1.0
INIT_MINUTES_0_7 = 20

ORDER = {
    "not s['init_stopped']": "to stand before init_stop",
    "not s['run_started']": "to stand before run_start",
    "s['init_started']": "to stand after init_start",
    "s['run_started']": "to stand after run_start",
    "( s['init_stopped'] == True )": "to stand after init_stop",
    "v['value'] != ''": "a value that is not empty",
    "v['value'] > 0": "a value above 0",
    "'value' in v": "a value",
}


def explain(message: str, records: Sequence[Record], round_name: str) -> str:
    """One complaint of the checker as one line for people."""
    if match := re.match(r"Required EXACTLY_ONE occurrence of '(\w+)' but found (\d+)", message):
        return f"{match[1]}: expected exactly one line, found {_found_lines(match[1], records)}"
    if match := re.match(r"Required AT_LEAST_ONE occurrence of (.+?)( but found 0)?$", message):
        keys = sorted(re.findall(r"'(\w+)'", match[1]))
        return f"{' or '.join(keys)}: expected at least one line, found none"
    if match := re.match(r"Failed checks for (\w+) : (.*)", message):
        return _no_value_passes(match[1], match[2], records, round_name)
    if match := re.match(r"(?s)failed test: (sorted\(s\['initialized_tensors'\].*?)\ncurrent context", message):
        return _wrong_tensors(re.findall(r'"([^"]+)"', match[1]), records)
    if match := re.match(r"(?s)CHECK for '\w+' failed in line (\d+):.*?\nfailed test: (.*?)\ncurrent context", message):
        index = int(match[1])
        record = next((r for r in records if r.index == index), Record(0, index, "a line"))
        return _failed_line(record, match[2].strip(), records, round_name)
    if match := re.match(r"(?s)Failed executing CHECK code:\n(.*?)\ntriggered by line:\n.*?:::MLLOG (.*?)\n", message):
        return _crashed_line(match[2], _expected(match[1].strip(), records, round_name), records)
    if match := re.match(r"Could not find config file: .*?(\w+)_(\w+)\.yaml", message):
        return f"the rules of {round_name} know no division {match[1]!r} of benchmark {match[2]!r}"
    return " ".join(message.split())[:300]


def explain_crash(error: Exception, records: Sequence[Record]) -> str:
    """Why the checker itself stopped."""
    for record in records:
        if record.key == "eval_accuracy" and not _is_number(record.value):
            return f"eval_accuracy (line {record.line}): expected a number, found {record.value!r}"
    return f"the official checker stopped here ({type(error).__name__}: {error}); what it did not reach is not checked"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _crashed_line(text: str, expected: str, records: Sequence[Record]) -> str:
    """A test that could not even be made, of the line whose JSON is `text`."""
    same = parse_record(0, 0, text)
    for record in records:
        if (record.key, record.value, record.metadata, record.time_ms) == (
            same.key, same.value, same.metadata, same.time_ms
        ):  # fmt: skip
            own = {key: value for key, value in record.metadata.items() if key not in ("file", "lineno")}
            found = f"metadata {own}" if expected.startswith("metadata") else repr(record.value)
            return f"{record.key} (line {record.line}): expected {expected}, found {found[:160]}"
    return f"{_key_of(text)}: expected {expected}, found {text[:160]}"


def _key_of(json_text: str) -> str:
    match = re.search(r'"key": ?"(\w+)"', json_text)
    return match[1] if match else "a line"


def _found_lines(key: str, records: Sequence[Record]) -> str:
    same = [record for record in records if record.key == key]
    if not same:
        return "none"
    values = list(dict.fromkeys(repr(record.value) for record in same))
    lines = ", ".join(str(record.line) for record in same[:5])
    what = "the same value" if len(values) == 1 else f"different values {', '.join(values[:5])}"
    return f"{len(same)} with {what} (lines {lines}{', ...' if len(same) > 5 else ''})"


def _no_value_passes(key: str, test: str, records: Sequence[Record], round_name: str) -> str:
    values = [(r.value, r) for r in records if r.key == key and _is_number(r.value) and math.isfinite(r.value)]
    batch = next((r.value for r in records if r.key == "global_batch_size" and _is_number(r.value)), 0)
    target = rules.quality_target(round_name.removesuffix("-edited"), batch)
    expected = f"at least one value >= {target} and < 1.0" if ">=" in test else "at least one value < 1.0"
    if not values:
        return f"{key}: expected {expected}, found no number"
    best, record = max(values, key=lambda pair: pair[0])
    return f"{key}: expected {expected}, found at most {best} (line {record.line})"


def _wrong_tensors(expected: list[str], records: Sequence[Record]) -> str:
    counts = Counter(str(record.metadata.get("tensor")) for record in records if record.key == "weights_initialization")
    faults = {
        "missing": [name for name in expected if name not in counts],
        "more than once": [name for name in counts if counts[name] > 1],
        "not part of BERT-Large": [name for name in counts if name not in expected],
    }
    found = "; ".join(f"{len(names)} {what} (first: {names[0]})" for what, names in faults.items() if names)
    return f"weights_initialization: expected each of {len(expected)} variables once, found {found}"


def _failed_line(record: Record, test: str, records: Sequence[Record], round_name: str) -> str:
    place = f"{record.key} (line {record.line})"
    expected = _expected(test, records, round_name)
    if "first_init_start" in test:
        start = min(r.time_ms for r in records if r.key == "init_start")
        return f"{place}: expected {expected}, found {(record.time_ms - start) / 60e3:.1f} minutes"
    if test in ORDER and ORDER[test].startswith("to stand"):
        return f"{place}: expected {expected}, found it in another order"
    if "v['metadata']" in test:
        own = {key: value for key, value in record.metadata.items() if key not in ("file", "lineno")}
        return f"{place}: expected {expected}, found metadata {own}"
    return f"{place}: expected {expected}, found {record.value!r}"


def _expected(test: str, records: Sequence[Record], round_name: str) -> str:
    if test in ORDER:
        return ORDER[test]
    if "first_init_start" in test:
        division = next((r.value for r in records if r.key == "submission_division"), "closed")
        minutes = INIT_MINUTES_0_7 if "20*60" in test else INIT_MINUTES.get(str(division), 30)
        return f"less than {minutes} minutes after the first init_start"
    if match := re.match(r"v\['value'\] in \[(.*)\]$", test):
        return f"one of {match[1].replace(chr(39), '')}"
    if names := re.findall(r"'(\w+)' in v\['metadata'\]", test):
        bound = re.match(r"v\['metadata'\]\['(\w+)'\] (>=?) (\d+)", test)
        return f"metadata {bound[1]} {bound[2]} {bound[3]}" if bound else f"metadata {' or '.join(names)}"
    return f"that the rule {test!r} holds"
