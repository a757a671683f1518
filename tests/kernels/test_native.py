"""How the C++ library comes about: built once, found again, built anew when a source changes, and what stops it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bert_mlperf.kernels import native

LOAD = "from bert_mlperf.kernels import native; print(native.unavailable())"


def started(folder: Path, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", LOAD],
        env=os.environ | {"XDG_CACHE_HOME": str(folder)} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_processes_that_build_at_once_leave_one_library_and_nothing_else(tmp_path):
    processes = [started(tmp_path) for _ in range(3)]
    assert [process.communicate()[0] for process in processes] == 3 * ["None\n"]
    (library,) = (tmp_path / "bert-mlperf").iterdir()
    built = library.stat().st_mtime_ns
    assert started(tmp_path).communicate()[0] == "None\n"
    assert library.stat().st_mtime_ns == built


def test_without_a_compiler_there_is_a_reason(tmp_path):
    said = started(tmp_path, CXX="no-such-compiler", PATH=str(tmp_path)).communicate()[0]
    assert said == "no C++ compiler is found (install g++ or set CXX)\n"


def test_a_folder_that_cannot_be_written_is_a_reason(tmp_path):
    (tmp_path / "bert-mlperf").write_text("in the way")
    said = started(tmp_path).communicate()[0]
    assert said.startswith(f"the library {tmp_path}/bert-mlperf/kernels-") and "cannot be made or loaded" in said


def test_a_source_that_cannot_be_compiled_is_a_reason_and_leaves_nothing(tmp_path, monkeypatch):
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "broken.cpp").write_text("int f() { return undeclared; }\n")
    monkeypatch.setattr(native, "SOURCES", sources)
    compiler = shutil.which("g++")
    with pytest.raises(native.BuildError, match=r"cannot build it: .*broken\.cpp.*undeclared"):
        native.build(compiler, tmp_path / "kernels.so")
    assert [path.name for path in tmp_path.iterdir()] == ["sources"]


def test_another_source_or_header_gives_another_name(tmp_path, monkeypatch):
    (tmp_path / "a.cpp").write_text("int a;")
    monkeypatch.setattr(native, "SOURCES", tmp_path)
    names = {native.fingerprint("g++")}
    (tmp_path / "a.cpp").write_text("int b;")
    names.add(native.fingerprint("g++"))
    (tmp_path / "a.h").write_text("int c;")
    names.add(native.fingerprint("g++"))
    assert len(names) == 3


def test_the_openmp_runtime_is_the_one_of_torch():
    native.library()
    loaded = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "gomp" in line}
    assert len(loaded) == 1 and "torch" in loaded.pop()
