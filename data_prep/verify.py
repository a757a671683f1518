"""Checks a folder offline: official files against their published sizes and md5, data sets sample by sample.

Sizes are compared first, which takes no time; then every file of the right size is read whole. A file is found by its
name, at any depth. What our own steps wrote is held against the manifest of the step instead of the official list.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bert_mlperf.data_prep.verify_checks import run_checks
from bert_mlperf.data_prep.verify_next import next_steps
from bert_mlperf.data_prep.verify_rows import (
    MISSING,
    PRESENT,
    WRONG,
    Row,
    checks_for,
    extracted_rows,
    file_row,
    is_official_text,
    missing_rows,
    set_row,
    step_rows,
)
from bert_mlperf.data_prep.verify_scan import scan

PIPE_WIDTH = 100
_FILE_WIDTH = 36
_MOST_NAMED = 5  # damaged files of one row
_COLOURS = {PRESENT: "green", WRONG: "bold red", MISSING: "dim"}


def verify(folder: str | Path, *, workers: int | None = None) -> int:
    """Prints what lies below `folder`, what of it is wrong, and what to do next.

    Returns 0 if nothing is wrong (files may be missing), 1 if a file is wrong or a numbered set incomplete. Raises
    UserError if there is no such folder or nothing known in it.
    """
    folder = Path(folder)
    found = scan(folder)
    results = run_checks(list(checks_for(found)), workers=workers)
    official = [file_row(path, file, results) for path, file in found.official]
    others = [*extracted_rows(found), *step_rows(found, results)]
    for key, parts in found.sets.items():
        (official if is_official_text(key) else others).append(set_row(key, parts, results, folder=folder))
    have = {row.kind: row.use for row in (*others, *official)[::-1] if row.state == PRESENT}
    official += missing_rows(found, have)
    console = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False, markup=False)
    console.print(_table("official files", official, console, folder=folder))
    if others:
        console.print(_table("\ndata sets and results of steps", others, console, folder=folder))
    _print_problems([*official, *others], console)
    for i, line in enumerate(next_steps(have)):
        console.print(f"{'next' if not i else '':8s}{line}", soft_wrap=True)
    return 1 if any(row.state == WRONG for row in (*official, *others)) else 0


def _table(title: str, rows: Sequence[Row], console: Console, *, folder: Path) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("file", overflow="fold", max_width=max(_FILE_WIDTH, console.width - 64))
    table.add_column("what", overflow="fold")
    table.add_column("state", no_wrap=True)
    table.add_column("detail", overflow="fold")
    for row in dict.fromkeys((_below(row.name, folder), row.what, row.state, row.detail) for row in rows):
        table.add_row(*row, style=_COLOURS[row[2]] if row[2] != PRESENT else "")
    return table


def _below(name: str, folder: Path) -> str:
    """The name of a row without the folder that was asked for."""
    path = Path(name)
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else name


def _print_problems(rows: Sequence[Row], console: Console) -> None:
    problems = {row.name: row.problems for row in rows if row.problems}
    if problems:
        console.print()
    for of_row in problems.values():
        for problem in of_row[:_MOST_NAMED]:
            console.print(f"wrong   {problem}", soft_wrap=True)
        if len(of_row) > _MOST_NAMED:
            console.print(f"wrong   and {len(of_row) - _MOST_NAMED:,} more of the same set")
    console.print()
