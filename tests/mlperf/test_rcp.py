"""Convergence beside the reference points: the official tool's verdict and factor, to the last digits."""

import contextlib
import io
import json
from pathlib import Path

import pytest
from mlperf_logging.rcp_checker import rcp_checker

from bert_mlperf.cli import main
from bert_mlperf.config import rules
from bert_mlperf.errors import UserError
from bert_mlperf.mlperf import rcp
from bert_mlperf.report.systems import find_systems
from tests.mlperf import submission

TABLE = (256, 448, 1536, 3072, 4096, 4608, 6144, 6912, 8192, 8704, 12288, 13056, 16384)
BETWEEN = (1, 384, 768, 2048, 5000, 10_000, 13_888, 20_000)


def with_batch(folder: Path, batch: int, scale: float) -> Path:
    """Ten runs at a batch whose samples to the target are `scale` times what the reference takes, give or take."""
    known = rcp.reference("5.0.0", batch) or rcp.points("5.0.0")[-1]
    interval = rules.eval_interval_samples(batch)
    return submission.write(folder / f"S{batch}", batch=batch, evaluations=max(3, round(scale * known.mean / interval)))


@pytest.mark.parametrize(("number", "batch"), enumerate((*TABLE, *BETWEEN)))
def test_verdict_and_factor_are_the_official_ones(tmp_path: Path, number: int, batch: int) -> None:
    scale = (0.98, 1.1, 0.9)[number % 3]
    (system,) = find_systems([with_batch(tmp_path, batch, scale)])
    mine = rcp.convergence(system.runs, "5.0.0")
    with contextlib.redirect_stdout(io.StringIO()):
        passed, _, factor = rcp_checker.check_directory(
            str(system.place.folder), "training", "5.0.0", False, False, rcp_pass="pruned_rcps"
        )
    assert mine.passed == passed
    if passed:
        assert mine.factor == pytest.approx(float(factor), rel=1e-12)


def test_points_of_every_round_and_what_is_pruned() -> None:
    assert [p.global_batch_size for p in rcp.points("5.0.0", "full_rcps")] == list(TABLE)
    assert [p.global_batch_size for p in rcp.points("5.0.0")] == [448, 4608, 6144, 6912, 12288, 13056, 16384]
    assert rcp.reference("5.0.0", 448).mean == pytest.approx(2_414_421.3, abs=0.05)
    assert rcp.reference("2.0.0", 448, "full_rcps").mean == pytest.approx(2_621_696.0, abs=0.05)
    between = rcp.reference("5.0.0", 768)
    assert (between.kind, round(between.mean, 2), round(between.minimum)) == ("interpolated", 2_443_933.54, 2_306_738)
    assert rcp.reference("5.0.0", 100).kind == "smallest" and rcp.reference("5.0.0", 16_385) is None
    with pytest.raises(UserError, match="points: they began with"):
        rcp.points("0.7.0")


def test_failed_runs_and_placeholders(tmp_path: Path) -> None:
    (system,) = find_systems([submission.write(tmp_path / "S")])
    path = system.runs[0].path
    path.write_text(path.read_text().replace('"status": "success"', '"status": "aborted"'))
    for run in system.runs[1:]:
        lines = [json.loads(line[9:]) for line in run.path.read_text().splitlines()]
        for record in lines:
            if record["key"] == "eval_accuracy":
                record["metadata"]["epoch_num"] = 1
        run.path.write_text("".join(f":::MLLOG {json.dumps(record)}\n" for record in lines))
    (system,) = find_systems([tmp_path])
    found = rcp.convergence(system.runs, "5.0.0")
    assert (found.failed, found.from_train_samples, found.passed) == (1, True, True)
    official = rcp_checker.check_directory(
        str(system.place.folder), "training", "5.0.0", False, True, rcp_pass="pruned_rcps"
    )
    assert official[0] and found.factor == pytest.approx(float(official[2]), rel=1e-12)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = submission.write(tmp_path / "S", evaluations=16)
    picture = tmp_path / "rcp.png"
    assert main(["rcp", str(folder), "--batch", "768", "20000", "--picture", str(picture)]) == 0
    text = capsys.readouterr().out
    assert "its time is multiplied by 1.00587" in text
    assert "2,443,934" in text and "none: above all points" in text
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert main(["rcp", str(submission.write(tmp_path / "Fast", evaluations=12))]) == 1
    assert "faster than chance allows" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Give folders of runs, or --batch"),
        (["--batch", "0"], "--batch is 0, expected"),
        (["--batch", str(10**26)], "from 1 to 10,000,000"),
        (["--batch", "9", "--picture", "a.txt"], "ends in .png"),
        (["--batch", "9", "--round", "5.1"], "Round 5.1.0 has no BERT"),
        (["gone"], "gone does not exist"),
    ],
)
def test_bad_input_is_one_sentence(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rcp", *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1


@pytest.mark.reference
def test_factors_of_published_packages(reference_dir: Path) -> None:
    folder = reference_dir / "logs"
    if not folder.is_dir():
        pytest.skip("no published logs")
    for system in find_systems([folder / name for name in ("v2.0", "v2.1", "v5.0")]):
        mine = rcp.convergence(system.runs, system.round_name)
        place, inferred = str(system.place.folder), mine.from_train_samples
        passed, _, factor = rcp_checker.check_directory(
            place, "training", system.round_name, False, inferred, rcp_pass="pruned_rcps"
        )
        assert (mine.passed, passed) == (True, True)
        assert mine.factor == pytest.approx(float(factor), rel=1e-12)
