"""From a system file and `--set` arguments to one plain dictionary. Every fault becomes one sentence (UserError)."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bert_mlperf.errors import UserError


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Doubled keys, NaN and infinities are errors."""
    text = _read_text(path)

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        seen = dict(pairs)
        for key, _ in pairs:
            if sum(key == other for other, _ in pairs) > 1:
                raise UserError(f"{path}: the key {key!r} stands twice in one object; remove one of them.")
        return seen

    def finite(word: str) -> Any:
        raise UserError(f"{path}: {word} is not a JSON number; write a finite one.")

    try:
        value = json.loads(text, object_pairs_hook=unique, parse_constant=finite)
    except json.JSONDecodeError as error:
        reason = error.msg[0].lower() + error.msg[1:]
        raise UserError(f"{path}: not valid JSON at line {error.lineno}, column {error.colno}: {reason}.") from None
    except UserError:
        raise
    except RecursionError:
        raise UserError(f"{path}: not a system file: its objects are nested too deeply.") from None
    except ValueError:  # Python reads no whole number of more than 4,300 digits
        raise UserError(f"{path}: a whole number has thousands of digits; write one that can be meant.") from None
    if not isinstance(value, dict):
        raise UserError(f"{path}: a system file is one JSON object ({{...}}), got {shown(value)}.")
    return value


def _read_text(path: Path) -> str:
    try:
        if path.is_dir():
            raise UserError(f"{path} is a folder; give a system file, e.g. systems/local-cpu.json.")
        return path.read_text(encoding="utf-8").removeprefix("\ufeff")  # a byte order mark is let pass
    except FileNotFoundError:
        others = sorted(item.name for item in path.parent.glob("*.json"))
        there = f"; {path.parent} has {', '.join(others)}" if others else ""
        start = "" if path.is_absolute() else f" (relative paths start at {Path.cwd()})"
        raise UserError(f"System file {path} does not exist{start}{there}.") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not a text file (byte {error.start} is no UTF-8); expected a JSON object.") from None
    except OSError as error:
        raise UserError(f"System file {path} cannot be read: {error.strerror}.") from None


def parse_override(text: str, *, top_keys: Iterable[str], run_keys: Iterable[str]) -> tuple[tuple[str, ...], Any]:
    """Path of keys and value of one `--set key=value`.

    A key whose first part is a key of `run` may leave out "run.". Below `run` the value is JSON, or else a bare string;
    an MLPerf field (one of `top_keys`) takes it as a string.
    """
    dotted, equals, value = text.partition("=")
    keys = tuple(part.strip() for part in dotted.split("."))
    if not equals or not all(keys):
        raise UserError(
            f"--set {text}: expected key=value, e.g. --set run.recipe.base_learning_rate=1e-3; a system file goes "
            "before --set."
        )
    if keys[0] in top_keys:
        return keys, value
    if keys[0] in run_keys:
        keys = ("run", *keys)
    try:
        return keys, json.loads(value)
    except (ValueError, RecursionError):
        return keys, value


def apply_override(target: dict[str, Any], keys: tuple[str, ...], value: Any, *, text: str) -> None:
    """Write a value into nested dictionaries, in place; missing objects on the way are made."""
    for depth, key in enumerate(keys[:-1]):
        target = target.setdefault(key, {})
        if not isinstance(target, dict):
            inner = ".".join(keys[: depth + 1])
            raise UserError(
                f"--set {text}: {inner} is {shown(target)} in the system file, not an object; set {inner} as a whole."
            )
    target[keys[-1]] = value


def shown(value: Any) -> str:
    """A value and its kind in a message: '"5" (a string)'."""
    if value is None:
        return "null"
    for kind, name in KINDS:
        if isinstance(value, kind):
            text = json.dumps(value)
            return f"{text if len(text) <= 60 else text[:57] + '...'} ({name})"
    return repr(value)


KINDS: tuple[tuple[type, str], ...] = (
    (bool, "a boolean"),
    (int, "a whole number"),
    (float, "a number"),
    (str, "a string"),
    (list, "a list"),
    (dict, "an object"),
)
