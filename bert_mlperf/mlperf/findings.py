"""What a check says: one finding per fault, with its place, its rule and what to do about it."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
NOT_CONVERGED = "not-converged"  # rule of a run that says of itself that it missed the target
SAME = {NOT_CONVERGED: "eval_accuracy"}  # what the official checker complains about then
OFFICIAL = "official"  # `source` of what a checker of mlperf-logging said; ours is "lint"


@dataclass(frozen=True)
class Finding:
    """An error will be rejected, a warning is what a reviewer will ask about, a note is good to know."""

    severity: Severity
    path: Path
    line: int  # 1-based; 0 for the file or folder as a whole
    rule: str  # short name of what was checked, e.g. "seed"
    what: str  # what was found, with what was expected
    why: str = ""  # the rule behind it
    advice: str = ""  # what to do
    source: str = "lint"

    @property
    def place(self) -> str:
        return f"{self.path}:{self.line}" if self.line else str(self.path)

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"path": str(self.path)}


def sort(findings: Iterable[Finding]) -> list[Finding]:
    """By severity, then by place; each once."""
    unique = dict.fromkeys(findings)
    return sorted(unique, key=lambda f: (SEVERITIES.index(f.severity), str(f.path), f.line, f.source, f.rule))


def merge(official: Iterable[Finding], own: Iterable[Finding]) -> list[Finding]:
    """Both, without what both say: where the official checker complains about a key of a file, our finding about the
    same key stays, for it has the reason and the advice, and is marked as official."""
    said = {(f.path, f.rule): f for f in official}
    mine = list(own)
    doubled = {_topic(f) for f in mine if f.severity == "error"} & set(said)
    kept = [f for f in said.values() if _topic(f) not in doubled]
    return kept + [replace(f, source=OFFICIAL) if _topic(f) in doubled else f for f in mine]


def _topic(finding: Finding) -> tuple[Path, str]:
    return finding.path, SAME.get(finding.rule, finding.rule)


def worst(findings: Iterable[Finding]) -> Severity | None:
    found = {f.severity for f in findings}
    return next((severity for severity in SEVERITIES if severity in found), None)


def counts(findings: Iterable[Finding]) -> str:
    """In words, e.g. '1 error, 2 warnings'; notes are not counted."""
    items = list(findings)
    parts = []
    for severity in SEVERITIES[:2]:
        number = sum(f.severity == severity for f in items)
        parts.append(f"{number} {severity}" + ("" if number == 1 else "s"))
    return ", ".join(parts)
