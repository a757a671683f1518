import io
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from bert_mlperf.config import doctor
from bert_mlperf.config.system import load_system
from bert_mlperf.errors import UserError
from tests.config import files


def printed(path: Path, *overrides: str) -> str:
    console = Console(file=io.StringIO(), width=200)
    doctor.doctor(load_system(path, list(overrides)), console=console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_every_value_with_its_source(tmp_path: Path) -> None:
    text = printed(files.write(tmp_path, files.small() | {"extra": "x"}), "recipe.beta_1=0.5")
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.split()}
    assert rows["run.recipe.beta_1"] == ["0.5", "--set"]
    assert rows["run.recipe.beta_2"] == ["0.999", "default"]
    assert rows["run.recipe.training_steps"] == ["100", "file"]
    assert rows["run.eval_interval_samples"] == ["rule", "rule"]
    assert rows["ranks"][:1] == ["2"]
    assert rows["interval"][0] == "150,000"
    assert "extra is no field of an MLPerf system description" in text


def test_the_command_prints_and_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = files.write(tmp_path, files.small())
    assert doctor.main_doctor(path, overrides=["seed=5"]) == 0
    assert re.search(r"run\.seed +5 +--set", capsys.readouterr().out)
    with pytest.raises(UserError, match="unknown key sead"):
        doctor.main_doctor(path, overrides=["sead=5"])


def test_installed_versions_are_told(tmp_path: Path) -> None:
    import numpy

    versions = doctor.versions()
    assert versions["numpy"] == numpy.__version__
    assert {"python", "bert-mlperf", "torch", "nvidia-dali-cuda120"} <= versions.keys()
    environment = doctor.environment()
    assert int(environment["cpus"]) >= 1
    assert environment["git_revision"] == "unknown" or len(environment["git_revision"]) >= 40


def test_an_absent_extra_is_named_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.metadata, "requires", lambda name: ["no-such-package>=1; extra == 'x'"])
    assert doctor.versions()["no-such-package"] == doctor.NOT_INSTALLED


def test_without_git_the_revision_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "REPOSITORY", tmp_path)
    assert doctor.git_revision() == "unknown"


def test_neither_config_nor_the_reports_import_torch() -> None:
    modules = "config.system config.doctor mlperf.log mlperf.check report.metrics report.charts report.progress"
    code = (
        "".join(f"import bert_mlperf.{name};" for name in modules.split())
        + "import sys; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
