"""Checks a folder offline: official files against their published sizes and md5, data sets sample by sample.

Sizes are compared first, which takes no time; then every file of the right size is read whole. A file is found by its
name, at any depth. What our own steps wrote is held against the manifest of the step instead of the official list.
"""

import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from bert_mlperf.data.shard_file import LAYOUT
from bert_mlperf.data_prep.official import CHECKPOINT, EVAL_SAMPLES, TRAIN_SAMPLES, Official, load_official
from bert_mlperf.data_prep.verify_checks import run_checks
from bert_mlperf.data_prep.verify_next import NextStep, Use, next_steps
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
_WIDEST = 100_000  # of a table
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
    have, more = _have(rows, official)
    wrong = {kind for row in rows if row.state == WRONG for kind in row.uses} - have.keys()
    steps = next_steps(have, more, wrong, official)
    _print(of_official, others, list(missing_rows(found, official)), steps, folder=Path(folder))
    return 1 if any(row.state == WRONG for row in rows) else 0


def _have(rows: Sequence[Row], official: Official) -> tuple[dict[str, Use], dict[str, list[str]]]:
    """Of each kind of thing that is there and whole the best one, and the paths of the other data sets of that kind."""
    found: dict[str, list[tuple[tuple[bool, bool, int], Use]]] = {}
    for row in rows:
        if row.state == PRESENT and CHECKPOINT not in row.uses:
            for kind, use in row.uses.items():
                rank = (not _is_named_as(kind, Path(use.path)), row.what != LAYOUT, -use.size)
                found.setdefault(kind, []).append((rank, use))
    sets = {kind: [use for _, use in sorted(uses, key=lambda pair: pair[0])] for kind, uses in found.items()}
    have = {kind: uses[0] for kind, uses in sets.items()}
    names = {file.name for file in official.files if file.kind == CHECKPOINT}
    whole = {Path(row.name) for row in rows if row.state == PRESENT and CHECKPOINT in row.uses}
    for path in sorted(whole):
        if names <= {other.name for other in whole if other.parent == path.parent}:
            have.setdefault(CHECKPOINT, Use(str(path.with_suffix(""))))
    more = {kind: [use.path for use in sets.get(kind, [])[1:]] for kind in (TRAIN_SAMPLES, EVAL_SAMPLES)}
    return have, more


def _is_named_as(kind: str, path: Path) -> bool:
    """Whether the folder of a data set is named for what it is."""
    name = {TRAIN_SAMPLES: "train", EVAL_SAMPLES: "eval"}.get(kind)
    return name is not None and name in (path.name, path.parent.name)


def _print(
    of_official: Sequence[Row],
    others: Sequence[Row],
    missing: Sequence[Row],
    steps: Sequence[NextStep],
    *,
    folder: Path,
) -> None:
    console = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False, markup=False)
    needed = {CHECKPOINT} if any(CHECKPOINT in row.uses for row in of_official) else set()  # it has several files
    needed |= {step.wants for step in steps}
    asked = [row for row in missing if needed & row.uses.keys()]
    groups = {"official files": [*of_official, *asked], "data sets and results of steps": others}
    _print_rows(groups, console, folder=folder)
    names = {row.name for row in asked}
    if needless := dict.fromkeys(row.name for row in missing if row not in asked and row.name not in names):
        console.print()
        text = f"not here, and not needed for the next step: {', '.join(needless)}"
        for line in textwrap.wrap(
            text, console.width, subsequent_indent="        ", break_long_words=False, break_on_hyphens=False
        ):
            console.print(line, style="dim", soft_wrap=True)
    _print_problems([*of_official, *others], console)
    for i, step in enumerate(steps):
        console.print(f"{'' if i else 'next':8s}{step.text}", soft_wrap=True)


def _print_rows(groups: Mapping[str, Sequence[Row]], console: Console, *, folder: Path) -> None:
    """As a table; where it is wider than the terminal each row as its name and, below that, the rest."""
    table = _table(groups, folder=folder)
    if console.measure(table, options=console.options.update_width(_WIDEST)).maximum <= console.width:
        console.print(table)
        return
    for title, rows in groups.items():
        if rows:
            console.print(title, style="bold")
        for row in rows:
            rest = Text.assemble(f"{row.what}, ", (row.state, _COLOURS[row.state]), f", {row.detail}".rstrip(", "))
            console.print(_below(row.name, folder), soft_wrap=True)
            console.print(Padding(rest, (0, 0, 0, 8)))


def _table(groups: Mapping[str, Sequence[Row]], *, folder: Path) -> Table:
    """The rows under the titles of their groups."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for _ in range(4):
        table.add_column(no_wrap=True)
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
