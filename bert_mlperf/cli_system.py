"""The commands `bert-mlperf system ...`: a description of this machine, and what is wrong with a description."""

import argparse
import importlib
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from rich.console import Console
from rich.table import Table

from bert_mlperf.cli_output import one_line
from bert_mlperf.config import rules
from bert_mlperf.config.description import MLPERF_FIELDS
from bert_mlperf.config.doctor import PIPE_WIDTH
from bert_mlperf.config.facts import TODO, Fact, todo
from bert_mlperf.config.inventory import machine_facts
from bert_mlperf.config.reading import read_object, shown
from bert_mlperf.config.validate import LONG_STATUS, SEVERITIES, Fault, system_faults
from bert_mlperf.errors import UserError

EXIT_VALID, EXIT_INVALID, EXIT_UNUSABLE = 0, 1, 2
MOST_NODES = 999_999
QUESTIONS = {  # what no machine can know of itself
    "submitter": "organisation that submits",
    "division": "closed (the exact benchmark) or open",
    "status": f"one of {'; '.join(LONG_STATUS)}",
    "system_name": "name of the system, that of its file",
    "number_of_nodes": "number of hosts that train",
    "host_networking_topology": "topology of the network between the hosts",
    "cooling": "cooling of the system, e.g. air",
}


def add_system(commands: Any) -> None:
    """Adds `system` with its commands to the subparsers of the command line."""
    system = commands.add_parser("system", help="describe this machine for MLPerf, check a description")
    steps = system.add_subparsers(dest="step", required=True, metavar="STEP")
    init = steps.add_parser("init", help="write a system file with what this machine says of itself")
    init.add_argument("--out", type=Path, metavar="FILE", help="new system file (default: print it)")
    init.add_argument("--name", metavar="NAME", help="name of the system (default: that of the file)")
    init.add_argument("--nodes", type=int, metavar="N", help="number of hosts that train")
    init.add_argument("--submitter", metavar="TEXT", help="organisation that submits")
    init.add_argument("--division", choices=rules.DIVISIONS, help="MLPerf division")
    init.add_argument("--status", choices=tuple(rules.STATUS_IN_LOG), help="availability of the system")
    init.add_argument(
        "--template", type=Path, metavar="FILE", help="system file that gives run and what the machine cannot know"
    )
    validate = steps.add_parser("validate", help="say everything that is wrong with a system file for a submission")
    validate.add_argument("files", nargs="+", type=Path, metavar="FILE", help="systems/<name>.json")
    validate.add_argument(
        "--round", default=rules.DEFAULT_ROUND, help="MLPerf round whose rules apply (default: %(default)s)"
    )


def run_system(options: argparse.Namespace) -> int:
    """Runs one of the commands and returns its exit code. UserError as usual."""
    if options.step == "validate":
        return run_validate(options.files, round_name=options.round)
    return run_init(options)


def run_init(options: argparse.Namespace) -> int:
    """Describes this machine. UserError if the file exists, or a name, number or template is bad."""
    _check_target(options.out)
    template = {} if options.template is None else read_template(options.template)
    facts = machine_facts(host=_module("psutil"), nvml=_module("pynvml"))
    described = describe(facts, given=given_facts(options), template=template)
    text = system_text(described, template)
    if options.out is None:
        print(text, end="")
    else:
        write_new(options.out, text)
    stream = sys.stderr if options.out is None else sys.stdout
    console = Console(
        file=stream, width=None if stream.isatty() else PIPE_WIDTH, highlight=False, markup=False, emoji=False
    )
    console.print(facts_table(described))
    for line in closing_lines(described, out=options.out, has_run="run" in template):
        console.print(line, soft_wrap=True)
    return EXIT_VALID


def _check_target(out: Path | None) -> None:
    if out is None:
        return
    if out.exists() or out.is_symlink():
        raise UserError(f"{out} exists and is not overwritten; give --out another name or move it away.")
    if out.suffix != ".json" or " " in out.name or out.name.startswith("."):
        raise UserError(f"--out {out}: expected <name>.json without a space or a leading dot, as MLPerf's check wants.")
    if not out.parent.is_dir():
        raise UserError(f"--out {out}: the folder {out.parent} does not exist; make it first.")


def _module(name: str) -> ModuleType | None:
    """psutil or pynvml; None where it is not installed, and what it would tell is asked for instead."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def given_facts(options: argparse.Namespace) -> dict[str, Fact]:
    """The fields that the command line gives. UserError on an empty name or an impossible number."""
    if options.nodes is not None and not 1 <= options.nodes <= MOST_NODES:
        raise UserError(f"--nodes is {options.nodes}, expected a number of hosts from 1 to {MOST_NODES}.")
    for flag in ("name", "submitter"):
        value = getattr(options, flag)
        if value is not None and not value.strip():
            raise UserError(f"--{flag} is empty; give a text or leave the option out.")
    given = {
        "submitter": (options.submitter, "--submitter"),
        "division": (options.division, "--division"),
        "status": (options.status, "--status"),
        "system_name": (options.name, "--name"),
        "number_of_nodes": (options.nodes, "--nodes"),
    }
    if options.name is None and options.out is not None:
        given["system_name"] = (options.out.stem, "--out")
    return {field: Fact(str(value), source) for field, (value, source) in given.items() if value is not None}


def read_template(path: Path) -> dict[str, Any]:
    """A system file whose MLPerf fields, as far as they are there, are strings. UserError otherwise."""
    template = read_object(path)
    for field in MLPERF_FIELDS:
        value = template.get(field, "")
        versions = value.values() if field == "other_software_stack" and isinstance(value, dict) else [value]
        for text in versions:
            if not isinstance(text, str):
                raise UserError(f"--template {path}: {field} is {shown(text)}, expected a string; correct it.")
    return template


def describe(facts: dict[str, Fact], *, given: dict[str, Fact], template: dict[str, Any]) -> dict[str, Fact]:
    """Every MLPerf field in order: what is given, else what the machine says, else the template, else a question."""
    described = {}
    for field in MLPERF_FIELDS:
        unknown = Fact("", "may stay empty") if field.endswith("_notes") else todo(QUESTIONS.get(field, "this field"))
        fact = given.get(field) or facts.get(field) or unknown
        if template.get(field) and (is_question(fact) or not fact.value):
            fact = Fact(template[field], "template")
        described[field] = fact
    return described


def is_question(fact: Fact) -> bool:
    """Whether a person must replace the value."""
    return isinstance(fact.value, str) and fact.value.startswith(TODO)


def system_text(described: dict[str, Fact], template: dict[str, Any]) -> str:
    """The JSON of a system: the MLPerf fields, what else the template has, and `run` at the end."""
    record: dict[str, Any] = {field: fact.value for field, fact in described.items()}
    record |= {key: value for key, value in template.items() if key not in (*MLPERF_FIELDS, "run")}
    if "run" in template:
        record["run"] = template["run"]
    return json.dumps(record, indent=2) + "\n"


def write_new(path: Path, text: str) -> None:
    """Writes a file that must not exist. UserError if it does by now, or cannot be written."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UserError(f"{path} exists and is not overwritten; give --out another name or move it away.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}; give --out another place.") from None


def facts_table(described: dict[str, Fact]) -> Table:
    """Field, value and source of every MLPerf field."""
    table = Table(box=None, pad_edge=False)
    table.add_column("field", no_wrap=True)
    table.add_column("value", overflow="fold")
    table.add_column("from", overflow="fold")
    for field, fact in described.items():
        versions = fact.value if isinstance(fact.value, dict) else {}
        text = ", ".join(f"{name} {version}" for name, version in versions.items()) or str(fact.value or "-")
        table.add_row(field, text, fact.source, style="yellow" if is_question(fact) else None)
    return table


def closing_lines(described: dict[str, Fact], *, out: Path | None, has_run: bool) -> Iterable[str]:
    """What is left to do."""
    questions = sum(map(is_question, described.values()))
    file = out or "FILE"
    if questions:
        yield f"{questions} fields say TODO: replace them, then run: bert-mlperf system validate {file}"
    if not has_run:
        yield (
            "There is no run section, which training needs (docs/systems.md; --template takes one over); "
            f"{'with the TODOs filled in ' if questions else ''}this is a whole MLPerf description."
        )
    if out is not None:
        yield f"Written: {out}"


def run_validate(files: Iterable[Path], *, round_name: str) -> int:
    """Prints the faults of each file; the exit code: 0 no error, 1 an error, 2 a file could not be judged."""
    console = Console(soft_wrap=True, highlight=False, markup=False, emoji=False)
    code, round_name = EXIT_VALID, rules.parse_round(round_name)
    for file in files:
        try:
            faults = system_faults(file, round_name)
        except UserError as error:
            console.print(f"{one_line(file)}: cannot be judged\n  error: {one_line(error)}")
            code = EXIT_UNUSABLE
            continue
        invalid = any(fault.severity == "error" for fault in faults)
        word = "INVALID" if invalid else "VALID"
        console.print(
            f"{one_line(file)}: {word} for {round_name} ({_counts(faults)})", style="red" if invalid else "green"
        )
        for fault in faults:
            console.print(f"  {one_line(fault)}")
        code = max(code, EXIT_INVALID if invalid else EXIT_VALID)
    return code


def _counts(faults: list[Fault]) -> str:
    """'1 error, 2 warnings, 0 notes'."""
    numbers = {name: sum(fault.severity == name for fault in faults) for name in SEVERITIES}
    return ", ".join(f"{number} {name}{'' if number == 1 else 's'}" for name, number in numbers.items())
