"""What the command line does with output that cannot be written, and with names and errors that nobody expects."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from bert_mlperf.cli import main
from bert_mlperf.cli_output import one_line
from bert_mlperf.data.shards import write_shard
from tests.data.files import VOCAB_SIZE, make_samples, write_fixed

PROGRAM = shlex.join([sys.executable, "-m", "bert_mlperf"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_shard(tmp_path / "a.hdf5", make_samples([20, 30]), vocab_size=VOCAB_SIZE)
    return tmp_path


def shell(folder: Path, command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a line of bash, in which PROGRAM is ours; the exit code is that of the program."""
    line = f"{command.replace('PROGRAM', PROGRAM)}; exit ${{PIPESTATUS[0]}}"
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | variables
    return subprocess.run(
        ["bash", "-c", line], cwd=folder, env=environment, capture_output=True, text=True, errors="surrogateescape"
    )


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("step", ["inspect a.hdf5", "verify ."])
def test_output_that_nobody_reads(folder: Path, step: str, unbuffered: str) -> None:
    result = shell(folder, f"PROGRAM prep {step} | true", PYTHONUNBUFFERED=unbuffered)
    assert (result.returncode, result.stderr) == (141, "")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("step", ["inspect a.hdf5", "verify ."])
def test_output_to_a_full_disk(folder: Path, step: str, unbuffered: str) -> None:
    result = shell(folder, f"PROGRAM prep {step} > /dev/full", PYTHONUNBUFFERED=unbuffered)
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: the output ") and "written: No space left on device; " in line


def test_closed_output(folder: Path) -> None:
    result = shell(folder, "PROGRAM prep verify . >&-")
    assert (result.returncode, result.stderr) == (0, "")


def test_names_that_the_output_cannot_show(folder: Path) -> None:
    odd = os.fsdecode(b"M\xe4r\xc3\xa4")  # Latin-1, then UTF-8
    (folder / odd).mkdir()
    (folder / "a.hdf5").rename(folder / odd / "a.hdf5")
    for encoding, shown in (("utf-8", "M\\udce4rä"), ("ascii", "M\\udce4r\\xe4")):
        result = shell(folder, "PROGRAM prep inspect M*", PYTHONIOENCODING=encoding)
        assert result.returncode == 0 and shown in result.stdout, result.stderr
        assert shell(folder, "PROGRAM prep verify .", PYTHONIOENCODING=encoding).returncode == 0


def test_a_line_end_in_a_name_is_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prep", "inspect", str(tmp_path / "two\nlines\t")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"error: the data path {tmp_path}/two\\nlines\\t does not exist" in line
    assert one_line("Grün \x1b[31m ") == "Grün \\x1b[31m "


@pytest.mark.parametrize("step", ["clean {text} --out {long}", "inspect {text} --png {long}.png", "verify {long}"])
def test_a_name_that_is_too_long(tmp_path: Path, capsys: pytest.CaptureFixture[str], step: str) -> None:
    write_fixed(tmp_path / "text", make_samples([20]))
    long = tmp_path / ("x" * 300)
    assert main(["prep", *step.format(text=tmp_path / "text", long=long).split()]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and f"{long}" in line and "File name too long" in line and line.endswith(".")
