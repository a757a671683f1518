"""What is installed: every package folder, kernels and data_prep under bert_mlperf and nowhere else."""

import importlib.metadata
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MAPPED = {"kernels": "bert_mlperf.kernels", "data_prep": "bert_mlperf.data_prep"}
SAY_WHERE = """
import importlib.util
import bert_mlperf.data.shards, bert_mlperf.data_prep.examples
ours = ("cli", "kernels", "kernels.attention", "data_prep.examples")
for name in (*(f"bert_mlperf.{name}" for name in ours), "kernels", "data_prep"):
    spec = importlib.util.find_spec(name)
    print(spec.origin if spec else None)
"""
MODULES = ("bert_mlperf/cli.py", "kernels/__init__.py", "kernels/attention.py", "data_prep/examples.py")


def pip(*arguments: str) -> None:
    """Runs pip; builds use the setuptools that is installed if it is new enough, else pip fetches one."""
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    if int(importlib.metadata.version("setuptools").split(".")[0]) >= 77:
        command.append("--no-build-isolation")
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def where(python: str | Path, folder: Path, *, path: str = "") -> list[str]:
    """What SAY_WHERE prints in a new interpreter started in `folder`, `path` being its PYTHONPATH."""
    done = subprocess.run(
        [python, "-c", SAY_WHERE],
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def copy_of_the_sources(folder: Path) -> Path:
    """What a build needs, without what earlier builds have left (setuptools would take it for sources)."""
    folder.mkdir()
    for name in ("bert_mlperf", *MAPPED):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / name)
    return folder


def package_folders() -> dict[str, Path]:
    """Packages by their import names: every folder of the sources that holds Python files."""
    folders = {
        ".".join(path.parent.relative_to(ROOT).parts): path.parent
        for top in ("bert_mlperf", *MAPPED)
        for path in (ROOT / top).rglob("*.py")
    }
    return {
        ".".join([MAPPED.get(name.split(".")[0], name.split(".")[0]), *name.split(".")[1:]]): p
        for name, p in folders.items()
    }


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-deps", "--wheel-dir", str(folder), str(copy_of_the_sources(folder / "sources")))
    (built,) = folder.glob("*.whl")
    return built


def test_every_package_folder_is_listed_and_exists() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    assert sorted(listed) == sorted(package_folders())
    for name, folder in package_folders().items():
        assert (folder / "__init__.py").is_file(), f"{name} has no __init__.py"


def test_wheel_holds_every_module_once_its_data_and_nothing_else(wheel: Path) -> None:
    expected = {
        f"{name.replace('.', '/')}/{path.name}"
        for name, folder in package_folders().items()
        for path in folder.glob("*.py")
    }
    library = f"bert_mlperf/data_prep/_examples{sysconfig.get_config_var('EXT_SUFFIX')}"
    expected |= {library, "bert_mlperf/data_prep/examples.c", "bert_mlperf/data_prep/official.json"}
    expected.add("bert_mlperf/report/scaling_page.css")
    expected |= {f"bert_mlperf/kernels/native/{path.name}" for path in (ROOT / "kernels/native").iterdir()}
    names = zipfile.ZipFile(wheel).namelist()
    assert {"bert_mlperf/kernels/attention.py", "bert_mlperf/data_prep/examples.py"} <= set(names)
    assert any(name.startswith("bert_mlperf/checkpoint/convert/") for name in names)
    assert {name for name in names if ".dist-info/" not in name} == expected
    assert len(names) == len(set(names))


def test_installed_wheel_is_imported_from_its_place(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    pip("install", "--no-deps", "--target", str(target), str(wheel))
    lines = where(sys.executable, tmp_path, path=str(target))
    assert lines[:4] == [f"{target}/{'' if name.startswith('bert') else 'bert_mlperf/'}{name}" for name in MODULES]
    assert not any(str(place) in line for line in lines[4:] for place in (target, ROOT))
    assert sorted(path.name for path in target.iterdir() if path.name != "bin") == sorted(
        ["bert_mlperf", "-".join(wheel.name.split("-")[:2]) + ".dist-info"]
    )
    script = (target / "bin" / "bert-mlperf").read_text()
    assert "from bert_mlperf.cli import main" in script


def test_editable_install_is_imported_from_the_sources(tmp_path: Path) -> None:
    """In an environment of its own, which finds the dependencies in this one."""
    sources = copy_of_the_sources(tmp_path / "sources")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True, timeout=60)
    python = tmp_path / "venv" / "bin" / "python"
    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip("--python", str(python), "install", "--no-deps", "--ignore-installed", "--editable", str(sources))
    lines = where(python, tmp_path)
    assert lines[:4] == [f"{sources}/{name}" for name in MODULES]
    assert not any(str(place) in line for line in lines[4:] for place in (sources, ROOT))
    assert (tmp_path / "venv" / "bin" / "bert-mlperf").is_file()
