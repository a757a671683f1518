"""Turns the errors of a pydantic model into one sentence: which key, got, expected, what to do."""

import difflib
import types
from collections.abc import Iterable
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from bert_mlperf.config.reading import shown

Model = type[BaseModel]


def explain(error: ValidationError, model: Model, *, file: str, overrides: dict[str, str]) -> str:
    """One sentence on the most telling error of a model that was read from `file`.

    `overrides` maps a dotted key to the `--set` argument that gave its value. A misspelt key is told before a missing
    one: it is most often the cause.
    """
    problems = sorted(error.errors(), key=lambda problem: problem["type"] != "extra_forbidden")
    first = problems[0]
    keys, field = _locate(model, first["loc"])
    key, kind = ".".join(keys), first["type"]
    full_key = ".".join(map(str, first["loc"]))
    given_by = overrides.get(full_key, overrides.get(key))
    where = file if given_by is None else f"--set {given_by}"
    if kind == "extra_forbidden":
        text = f"{where}: {_unknown(model, tuple(map(str, first['loc'])))}"
    elif kind == "missing":
        text = f"{where}: {key} is missing; add {_expectation(field)}"
    elif kind == "value_error":
        text = f"{where}: {key or 'the system'}: {first['ctx']['error']}"
    else:
        text = f"{where}: {key} is {shown(first['input'])}, expected {_expectation(field)}"
    others = len({_locate(model, problem["loc"])[0] for problem in problems}) - 1
    return f"{text}." if others == 0 else f"{text} (and {others} more)."


def nearest(word: str, words: Iterable[str]) -> str | None:
    """The closest of some words, or None if none is close."""
    close = difflib.get_close_matches(word, list(words), n=1, cutoff=0.6)
    return close[0] if close else None


def leaf_keys(model: Model) -> dict[tuple[str, ...], FieldInfo]:
    """Every key below a model, as a path of keys, objects before what they hold."""
    keys: dict[tuple[str, ...], FieldInfo] = {}
    for name, field in model.model_fields.items():
        path = (field.alias or name,)
        keys[path] = field
        inner = _inner_model(field)
        if inner is not None:
            keys |= {path + rest: nested for rest, nested in leaf_keys(inner).items()}
    return keys


def _inner_model(field: FieldInfo) -> Model | None:
    annotation = field.annotation
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _locate(model: Model, location: tuple[int | str, ...]) -> tuple[tuple[str, ...], FieldInfo | None]:
    """Longest part of an error's location that is a key of the model (what follows names a member of a union)."""
    known = leaf_keys(model)
    parts = tuple(map(str, location))
    for length in range(len(parts), 0, -1):
        if parts[:length] in known:
            return parts[:length], known[parts[:length]]
    return parts, None


def _unknown(model: Model, parts: tuple[str, ...]) -> str:
    known = leaf_keys(model)
    siblings = [path[-1] for path in known if path[:-1] == parts[:-1]]
    close = nearest(parts[-1], siblings)
    if close is not None:
        advice = f"did you mean {'.'.join((*parts[:-1], close))}?"
    elif elsewhere := [path for path in known if path[-1] == parts[-1]]:
        advice = f"it belongs at {'.'.join(elsewhere[0])}"
    else:
        advice = f"{'.'.join(parts[:-1]) or 'the file'} has {', '.join(siblings)}"
    return f"unknown key {'.'.join(parts)} ({advice})"


def _expectation(field: FieldInfo | None) -> str:
    if field is None:
        return "another value"
    kind = _kind(field.annotation, field.metadata)
    about = (field.description or "").rstrip(".")
    if about[1:2].islower():
        about = about[0].lower() + about[1:]
    return f"{kind} ({about})" if about else kind


def _kind(annotation: Any, metadata: list[Any]) -> str:
    """A type and its bounds in words: 'a number >= 0 and < 1'."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return " or ".join("null" if member is type(None) else _kind(member, metadata) for member in arguments)
    if origin is Annotated:
        inner = [item for info in arguments[1:] for item in (info.metadata if isinstance(info, FieldInfo) else [info])]
        return _kind(arguments[0], inner)
    if origin is Literal:
        *first, last = (f'"{value}"' for value in arguments)
        return f"{', '.join(first)} or {last}" if first else last
    names = {int: "a whole number", float: "a number", str: "a string"}
    name = names.get(annotation, "an object")
    if annotation is str and any(isinstance(item, annotated_types.MinLen) for item in metadata):
        name = "a string that is not empty"
    bounds = [text for item in metadata if (text := _bound(item))]
    return " ".join([name, " and ".join(bounds)]).strip()


def _bound(item: Any) -> str:
    for kind, sign, attribute in (
        (annotated_types.Ge, ">=", "ge"),
        (annotated_types.Gt, ">", "gt"),
        (annotated_types.Le, "<=", "le"),
        (annotated_types.Lt, "<", "lt"),
    ):
        if isinstance(item, kind):
            return f"{sign} {getattr(item, attribute)}"
    pattern = getattr(item, "pattern", None)
    return f"of the form {pattern}" if pattern else ""
