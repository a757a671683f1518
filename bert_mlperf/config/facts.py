"""Facts for a system description, and how they are read: whatever is missing or odd is empty, and raises nothing."""

import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TODO = "TODO: "
ASK = "you must fill"


@dataclass(frozen=True)
class Fact:
    """A value of a field and where it is from."""

    value: str | dict[str, str]
    source: str


def todo(what: str) -> Fact:
    """The marked text for what a machine cannot know."""
    return Fact(f"{TODO}{what}", ASK)


def ask(module: Any, function: str, *arguments: Any) -> Any:
    """What a function of psutil or NVML answers; None if module or function is missing or fails, however it does."""
    try:
        return getattr(module, function)(*arguments)
    except Exception:
        return None


def alike(texts: list[str], what: str) -> Fact:
    """One text for all accelerators; different ones are counted, and an unknown one makes it a question."""
    if not all(texts):
        return todo(what)
    return Fact(texts[0] if len(set(texts)) == 1 else numbered(texts), "NVML")


def numbered(texts: Iterable[str], *, joiner: str = " + ") -> str:
    """'2x a + 1x b' for a, b, a."""
    return joiner.join(f"{number}x {text}" for text, number in Counter(texts).items())


def string(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")


def text_of(path: Path) -> str:
    """Text of a file without the white space around it; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def whole(text: str) -> int:
    """A whole number, 0 for a text that is none."""
    return int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else 0


def entries(folder: Path) -> list[Path]:
    """What a folder holds, sorted; nothing if it is missing or cannot be read."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def resolved(path: Path) -> Path:
    return Path(os.path.realpath(path))
