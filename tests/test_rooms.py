"""Which room may import which: the table of ARCHITECTURE.md."""

import ast
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ALLOWED = {
    "config": {"errors", "config"},
    "data": {"errors", "data"},
    "data_prep": {"errors", "data", "report", "data_prep"},
    "kernels": {"kernels"},
    "model": {"errors", "config", "data", "kernels", "model"},
    "optim": {"errors", "config", "kernels", "optim"},
    "comm": {"errors", "kernels", "optim", "comm"},
    "checkpoint": {"errors", "config", "model", "checkpoint"},
    "mlperf": {"errors", "config", "report", "mlperf"},
    "report": {"errors", "config", "report"},
    "train": {
        "errors", "config", "data", "kernels", "model", "optim", "comm", "checkpoint", "mlperf", "report", "train",
    },
    "bench": {"errors", "ranks", "config", "data", "model", "optim", "comm", "train", "report", "bench"},
}  # fmt: skip


def imported_rooms(file: Path) -> set[str]:
    """Rooms of bert_mlperf that a file imports."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.split(".")[1] for name in names if name.startswith("bert_mlperf.")}


@pytest.mark.parametrize("room", sorted(ALLOWED))
def test_a_room_imports_only_what_it_may(room):
    folder = ROOT / room if room in ("kernels", "data_prep") else ROOT / "bert_mlperf" / room
    files = sorted(folder.rglob("*.py"))
    assert files
    for file in files:
        assert imported_rooms(file) <= ALLOWED[room], file


def test_every_room_is_in_the_table():
    rooms = {path.name for path in (ROOT / "bert_mlperf").iterdir() if (path / "__init__.py").is_file()}
    assert rooms | {"kernels", "data_prep"} == set(ALLOWED)


def test_no_folder_of_tests_is_passed_over(pytestconfig):
    """pytest skips folders by name without a word: "dist" is one of its own choice."""
    folders = {path.parent.name for path in (ROOT / "tests").rglob("test_*.py")}
    assert "dist" in folders
    skipped = pytestconfig.getini("norecursedirs")
    assert [name for name in folders if any(fnmatch(name, pattern) for pattern in skipped)] == []


@pytest.mark.parametrize(
    "module",
    [
        "mlperf.checking",
        "mlperf.package",
        "mlperf.log",
        "report.scaling_page",
        "cli",
        "report.charts",
        "data.loader",
        "config.doctor",
    ],
)
def test_rooms_without_torch_do_not_import_it(module):
    code = f"import sys, bert_mlperf.{module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
