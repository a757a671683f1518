"""Checks a folder offline: official files against their published sizes and md5, data sets sample by sample.

Sizes are compared first, which takes no time; then every file of the right size is read whole. A file is found by its
name, at any depth. What our own steps wrote is held against the manifest of the step instead of the official list.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bert_mlperf.data.shard_file import LAYOUT
from bert_mlperf.data_prep.official import CHECKPOINT, Official, load_official
from bert_mlperf.data_prep.verify_checks import run_checks
from bert_mlperf.data_prep.verify_next import NextStep, next_steps
from bert_mlperf.data_prep.verify_rows import (
    MISSING,
    PRESENT,
    WRONG,
    Row,
    checks_for,
    file_row,
    missing_rows,
    other_rows,
    set_row,
    step_rows,
)
from bert_mlperf.data_prep.verify_scan import scan

PIPE_WIDTH = 1000  # a row a line
_MOST_NAMED = 5  # damaged files of one row
_COLOURS = {PRESENT: "", WRONG: "bold red", MISSING: "yellow"}


def verify(folder: str | Path, *, workers: int | None = None, official: Official | None = None) -> int:
    """Prints what lies below `folder`, what of it is wrong, and what to do next. `official`: official.json by default.

    Returns 0 if nothing is wrong (files may be missing), 1 if a file is wrong or a numbered set incomplete. Raises
    UserError if there is no such folder or nothing known in it.
    """
    official = official or load_official()
    found = scan(Path(folder), official)
    results = run_checks(list(checks_for(found, official)), workers=workers)
    of_official = [file_row(path, file, results[path]) for path, file in found.official]
    others = [*other_rows(found), *step_rows(found, results)]
    for key, parts in found.sets.items():
        row = set_row(key, parts, results, found=found, official=official)
        (of_official if official.set_named(key.pattern, is_text=key.is_text) else others).append(row)
    rows = [*of_official, *others]
    have = _have(rows, official)
    wrong = {kind for row in rows if row.state == WRONG for kind in row.uses} - have.keys()
    steps = next_steps(have, wrong, official)
    _print(of_official, others, list(missing_rows(found, official)), steps, folder=Path(folder))
    return 1 if any(row.state == WRONG for row in rows) else 0


def _have(rows: Sequence[Row], official: Official) -> dict[str, str]:
    """The path of each kind of thing that is there and whole, of our own shards before others."""
    have: dict[str, str] = {}
    for row in sorted(rows, key=lambda row: row.what != LAYOUT):
        if row.state == PRESENT and CHECKPOINT not in row.uses:
            for kind, use in row.uses.items():
                have.setdefault(kind, use)
    names = {file.name for file in official.files if file.kind == CHECKPOINT}
    whole = {Path(row.name) for row in rows if row.state == PRESENT and CHECKPOINT in row.uses}
    for path in sorted(whole):
        if names <= {other.name for other in whole if other.parent == path.parent}:
            have.setdefault(CHECKPOINT, str(path.with_suffix("")))
    return have


def _print(
    of_official: Sequence[Row],
    others: Sequence[Row],
    missing: Sequence[Row],
    steps: Sequence[NextStep],
    *,
    folder: Path,
) -> None:
    console = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False, markup=False)
    begun = {CHECKPOINT for row in of_official if CHECKPOINT in row.uses}  # it has several files
    needed = begun | {step.wants for step in steps}
    console.print(
        _table(
            {
                "official files": [*of_official, *(row for row in missing if needed & row.uses.keys())],
                "data sets and results of steps": others,
            },
            folder=folder,
        )
    )
    needless = dict.fromkeys(row.name for row in missing if not needed & row.uses.keys())
    if needless:
        console.print(f"\nnot here, and not needed for the next step: {', '.join(needless)}", style="dim")
    _print_problems([*of_official, *others], console)
    for i, step in enumerate(steps):
        console.print(f"{'' if i else 'next':8s}{step.text}", soft_wrap=True)


def _table(groups: Mapping[str, Sequence[Row]], *, folder: Path) -> Table:
    """The rows under the titles of their groups."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for _ in range(4):
        table.add_column(overflow="fold")
    for title, rows in groups.items():
        if rows:
            if table.row_count:
                table.add_row()
            table.add_row(title, "what", "state", "detail", style="bold")
        for row in rows:
            table.add_row(_below(row.name, folder), row.what, Text(row.state, _COLOURS[row.state]), row.detail)
    return table


def _below(name: str, folder: Path) -> str:
    """The name of a row without the folder that was asked for."""
    path = Path(name)
    return str(path.relative_to(folder)) if path.is_relative_to(folder) and path != folder else name


def _print_problems(rows: Sequence[Row], console: Console) -> None:
    problems = [list(row.problems) for row in rows if row.problems]
    if problems:
        console.print()
    printed: set[str] = set()
    for of_row in problems:
        for problem in of_row[:_MOST_NAMED]:
            if problem not in printed:
                console.print(f"wrong   {problem}", soft_wrap=True)
            printed.add(problem)
        if len(of_row) > _MOST_NAMED:
            console.print(f"wrong   and {len(of_row) - _MOST_NAMED:,} more faults of the same set", soft_wrap=True)
    console.print()
