"""The sources of a submission: the checkout at the revision that ran, and the READMEs that say how to run it again."""

import json
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bert_mlperf.config.doctor import REPOSITORY, git_revision
from bert_mlperf.errors import UserError
from bert_mlperf.mlperf.findings import Finding
from bert_mlperf.report.logs import read_log

CHANGED = "+changes"
LEFT_OUT = ("tests", "results")  # of the checkout; names with a dot in front too, which the repository check refuses
OWN_FOLDER = "bert_mlperf/"  # in front of the file that a record of ours names
ENVIRONMENT = "environment.json"


def copy(target: Path, logs: Iterable[Path]) -> list[Finding]:
    """Copies the sources that wrote some logs; what a reviewer may ask about them.

    They are those of the revision that the runs noted, where it is known and the checkout had no changes, else those of
    the checkout as it is. UserError if a log was written by another program, or there is no checkout.
    """
    if not (REPOSITORY / "run_and_time.sh").is_file():
        raise UserError(
            f"{REPOSITORY} is no checkout of bert-mlperf: a submission holds its sources; package from one."
        )
    revisions = {}
    for log in logs:
        _refuse_foreign(log)
        revisions[log] = revision_of(log)
    known = set(revisions.values())
    revision = known.pop() if len(known) == 1 else None
    if revision and not revision.endswith(CHANGED) and _archive(revision, target):
        return [
            Finding("note", target, 0, "sources", f"sources are those of revision {revision}, which all runs noted")
        ]
    _copy_checkout(target)
    said = ", ".join(sorted(value or "none" for value in set(revisions.values())))
    what = f"sources are those of the checkout as it is ({git_revision()}); the runs noted revision {said}"
    advice = "Run from a clean checkout, all ten runs from the same one."
    return [Finding("warning", target, 0, "sources", what, "A submission holds the sources that ran.", advice)]


def _refuse_foreign(log: Path) -> None:
    for record in read_log(log).records:
        file = str(record.metadata.get("file"))
        if record.fault or file.startswith(OWN_FOLDER):
            continue  # a line that cannot be read is told by the checks
        raise UserError(
            f"{log}, line {record.line}, was written by {file[:60]!r}, not by bert-mlperf: its sources are not here; "
            "package it where they are."
        )


def revision_of(log: Path) -> str | None:
    """The git revision that a run noted beside its log, in run_<n>/environment.json."""
    number = log.stem.removeprefix("result_")
    try:
        value = json.loads((log.parent / f"run_{number}" / ENVIRONMENT).read_text(encoding="utf-8"))["git_revision"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return value if isinstance(value, str) and value != "unknown" else None


def _archive(revision: str, target: Path) -> bool:
    """The tree of a revision; False where git does not have it."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "sources.tar"
        command = ["git", "-C", str(REPOSITORY), "archive", "--format=tar", f"--output={file}", revision]
        try:
            if subprocess.run(command, capture_output=True, timeout=300).returncode != 0:
                return False
        except (OSError, subprocess.TimeoutExpired):
            return False
        with tarfile.open(file) as archive:
            archive.extractall(target, members=[m for m in archive if _belongs(Path(m.name))], filter="data")
    return True


def _copy_checkout(target: Path) -> None:
    """The files that git tracks; without git all but what is built."""
    done = subprocess.run(["git", "-C", str(REPOSITORY), "ls-files", "-z"], capture_output=True, text=True)
    if done.returncode == 0 and done.stdout:
        names = done.stdout.split("\0")[:-1]
    else:
        names = [str(p.relative_to(REPOSITORY)) for p in REPOSITORY.rglob("*") if "__pycache__" not in p.parts]
    for name in map(Path, names):
        if _belongs(name) and (REPOSITORY / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(REPOSITORY / name, target / name)


def _belongs(name: Path) -> bool:
    hidden = any(part.startswith(".") for part in name.parts)
    return not hidden and name.parts[0] not in LEFT_OUT and ".egg-info" not in name.parts[0]


def system_readme(name: str, description: Mapping[str, Any]) -> str:
    """How to make the runs of one system again."""
    return (
        f"# {name}\n\n"
        f"{description.get('number_of_nodes')} node(s), {description.get('accelerators_per_node')} x "
        f"{description.get('accelerator_model_name')} each, {description.get('framework')}.\n\n"
        "```\n"
        f"./run_and_time.sh systems/{name}.json --runs 10\n"
        "```\n\n"
        f"`systems/{name}.json` holds every setting; `README.md` says how the data are prepared and where the initial\n"
        "checkpoint belongs, `docs/systems.md` what each key means and how several nodes are started.\n"
    )


def submission_readme(descriptions: Mapping[str, Mapping[str, Any]], implementation: str) -> str:
    """What the submission holds."""
    lines = [
        "# MLPerf Training: BERT",
        "",
        "| system | nodes | accelerators of a node | division | status |",
        "|---|---|---|---|---|",
    ]
    for name, description in descriptions.items():
        devices = f"{description.get('accelerators_per_node')} x {description.get('accelerator_model_name')}"
        row = (
            name,
            description.get("number_of_nodes"),
            devices,
            description.get("division"),
            description.get("status"),
        )
        lines.append("| " + " | ".join(str(cell).replace("|", "/") for cell in row) + " |")
    folder = f"benchmarks/bert/implementations/{implementation}"
    return "\n".join([*lines, "", f"Sources and how to run each system again: `{folder}/README_<system>.md`.", ""])
