"""The commands on results: check, rcp, score, report, package. Thin: parse, call, print."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from bert_mlperf.config import rules
from bert_mlperf.config.doctor import PIPE_WIDTH
from bert_mlperf.errors import UserError

if TYPE_CHECKING:
    from bert_mlperf.report.score import Score

COMMANDS = ("check", "rcp", "score", "report", "package")
ROUNDS = f"{rules.ROUNDS[0]} to {rules.ROUNDS[-1]}"
ROUND_HELP = f"MLPerf round, {ROUNDS} or {rules.EDITED} (default: that of the path, else of the log's date)"
PATH_HELP = "a log, a folder of logs, or a submission"


def add_results(commands: Any) -> None:
    """Adds the commands to the subparsers of the command line."""
    check = commands.add_parser("check", help="check logs, results or submissions: official checkers and a strict lint")
    check.add_argument("paths", nargs="+", type=Path, metavar="PATH", help=PATH_HELP)
    check.add_argument("--round", help=ROUND_HELP)
    check.add_argument("--json", action="store_true", help="print the findings as JSON")
    check.add_argument("--sarif", type=Path, metavar="FILE", help="write the findings as SARIF, for a code host")

    rcp = commands.add_parser("rcp", help="compare samples to the target with the reference convergence points")
    rcp.add_argument("paths", nargs="*", type=Path, metavar="PATH", help=PATH_HELP)
    rcp.add_argument("--round", help=ROUND_HELP)
    rcp.add_argument(
        "--batch", nargs="+", type=int, default=[], metavar="N", help="show the reference at these batches"
    )
    rcp.add_argument("--picture", type=Path, metavar="FILE", help="draw the runs on the reference band, e.g. rcp.png")

    score = commands.add_parser("score", help="score the ten runs of a system, and say how much of it is luck")
    score.add_argument("paths", nargs="+", type=Path, metavar="PATH", help=PATH_HELP)
    score.add_argument("--round", help=ROUND_HELP)
    score.add_argument("--json", action="store_true", help="print the scores as JSON")

    report = commands.add_parser(
        "report", help="scaling efficiency of systems: table, CSV, JSON, charts, one HTML page"
    )
    report.add_argument("paths", nargs="+", type=Path, metavar="PATH", help=PATH_HELP)
    report.add_argument(
        "--baseline", metavar="SYSTEM", help="what to compare with (default: each one's smallest system)"
    )
    report.add_argument("--out", type=Path, metavar="DIR", help="folder for the page, the charts, CSV and JSON")

    package = commands.add_parser("package", help="build a submission from results, if every checker lets it pass")
    package.add_argument("results", nargs="+", type=Path, metavar="DIR", help="results/<system> or a folder above")
    package.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for <submitter>/")
    package.add_argument("--round", default=rules.DEFAULT_ROUND, help=f"MLPerf round, {ROUNDS} (default: %(default)s)")
    package.add_argument("--systems", type=Path, metavar="DIR", help="folder of system files (default: beside results)")


def run_results(options: argparse.Namespace) -> int:
    """Runs one of the commands and returns its exit code. UserError as usual."""
    if options.command == "check":
        from bert_mlperf.mlperf.checking import main_check

        return main_check(options.paths, round_name=options.round, as_json=options.json, sarif=options.sarif)
    if options.command == "rcp":
        from bert_mlperf.mlperf.rcp_output import main_rcp

        return main_rcp(options.paths, round_name=options.round, batches=options.batch, picture=options.picture)
    if options.command == "score":
        return run_score(options)
    if options.command == "report":
        return run_report(options)
    from bert_mlperf.mlperf.package import main_package

    return main_package(options.results, out=options.out, round_name=options.round, systems=options.systems)


def scores(paths: list[Path], round_name: str | None = None) -> list["Score"]:
    """The scores of the systems under some paths, each scaled as its RCP check says."""
    from bert_mlperf.mlperf.rcp import scaling_factor
    from bert_mlperf.report.score import score
    from bert_mlperf.report.systems import find_systems

    given = None if round_name is None else rules.parse_round(round_name)
    found = []
    for system in find_systems(paths):
        plain = score(system)
        found.append(score(system, scaling_factor(plain.runs, given or system.round_name, system.division)))
    return found


def run_score(options: argparse.Namespace) -> int:
    """Prints each system's runs and score; the exit code: 0 if all are MLPerf results, else 1."""
    from bert_mlperf.report import score_table
    from bert_mlperf.report.logs import printable

    found = scores(options.paths, options.round)
    if options.json:
        print(json.dumps([score_table.to_json(item) for item in found], indent=1))
        return 0 if all(item.complete for item in found) else 1
    console = _console()
    for item in found:
        console.print(score_table.runs_table(item))
        for line in score_table.summary(item):
            console.print(line, soft_wrap=True)
        for path, reason in item.system.unreadable:
            console.print(printable(f"left out: {path.name}: {reason}"), soft_wrap=True)
        console.print()
    for line in score_table.ranking(found):
        console.print(line, soft_wrap=True)
    return 0 if all(item.complete for item in found) else 1


def run_report(options: argparse.Namespace) -> int:
    """Prints the table and writes the files of --out; the exit code is 0."""
    from bert_mlperf.report import scaling_page, scaling_pictures, scaling_rows
    from bert_mlperf.report.scaling import scaling

    if options.out is not None and options.out.exists() and not options.out.is_dir():
        raise UserError(f"--out {options.out} is a file; give a folder, it is made if need be.")
    series = scaling(scores(options.paths), options.baseline)
    console = _console()
    for item in series:
        console.print(scaling_rows.table(item))
    for line in (*map(scaling_rows.headline, series), *scaling_rows.footnotes(series)):
        console.print(line, soft_wrap=True)
    if options.out is None:
        console.print("--out DIR writes the page, charts, CSV and JSON.")
        return 0
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        files = scaling_rows.write_files(series, options.out)
        files += scaling_pictures.draw_charts(series, options.out)
        files.append(scaling_page.write_page(series, options.out / "report.html", title="Scaling efficiency"))
    except OSError as error:
        raise UserError(f"{options.out} cannot be written: {error.strerror}; choose another folder.") from None
    console.print("written " + ", ".join(str(path) for path in files), soft_wrap=True)
    return 0


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False, markup=False, emoji=False)
