"""Scores of ten runs, windows of more, what does not count, and scaling: against numbers worked out by hand."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from bert_mlperf.cli import main
from bert_mlperf.errors import UserError
from bert_mlperf.report import score_table, statistics
from bert_mlperf.report.scaling import kind_of, model_flops, peak_flops, scaling
from bert_mlperf.report.score import Score, chance_of_winning, score
from bert_mlperf.report.systems import SystemRuns, find_systems
from tests.mlperf import submission


def ten(folder: Path, **options: object) -> SystemRuns:
    (system,) = find_systems([submission.write(folder / "Somebody", **options)])
    return system


def test_the_olympic_mean_drops_one_at_each_end() -> None:
    assert statistics.olympic_mean([5.0, 1.0, 2.0, 100.0, 3.0]) == 10 / 3
    assert statistics.olympic_mean([1.0, 2.0, 3.0, math.inf]) == 2.5
    assert statistics.olympic_mean([1.0, 2.0, math.inf, math.inf]) == math.inf
    assert statistics.counted([5.0, 1.0, 1.0, 7.0]) == [0, 2]
    with pytest.raises(ValueError, match="three values or more, got 2"):
        statistics.olympic_mean([1.0, 2.0])


def test_the_median_window_of_twelve_runs() -> None:
    values = [10.0] * 12
    values[0], values[1], values[11] = 30.0, 40.0, 50.0  # windows from 0, 1, 2: means 12.5, 10, 10
    assert statistics.median_window(values) == (2, 12)
    values = [1.0 * n for n in range(11)]  # two windows: the slower one
    assert statistics.median_window(values) == (1, 11)
    assert statistics.median_window([3.0] * 10) == (0, 10)


def test_the_bootstrap_is_the_same_every_time_and_holds_the_mean() -> None:
    values = [float(v) for v in np.random.default_rng(1).normal(100, 5, size=10)]
    means = statistics.bootstrap(values)
    low, high = statistics.interval(means)
    assert np.array_equal(means, statistics.bootstrap(values))
    assert low < statistics.olympic_mean(values) < high
    # the spread of a mean of ten, give or take what trimming does to it
    assert np.std(means) == pytest.approx(np.std(values) / math.sqrt(10), rel=0.2)


def test_ten_runs(tmp_path: Path) -> None:
    """Evaluations a minute apart: 16, 18 twice, 17 six times; 5 ms from the last one to run_stop."""
    result = score(ten(tmp_path), 1.5)
    assert result.olympic_s == 17 * 60 + 0.005
    assert result.seconds == 1.5 * result.olympic_s
    assert result.complete and result.failed == 0
    assert [index for index in range(10) if index not in result.counted] == [2, 5]
    samples = {n: -(-150_000 * n // 448) * 448 for n in (16, 17, 18)}
    assert result.samples_to_target == (samples[16] + samples[18] + 6 * samples[17]) / 8
    assert result.train_samples == (2 * samples[16] + 2 * samples[18] + 6 * samples[17]) / 10
    assert result.total == pytest.approx(10 * result.train_samples / (170 * 60 + 10 * 0.005))
    first, rates = 150_080, []
    for n in (17, 18, 16, 17, 17, 18, 16, 17, 17, 17):
        rates.append((samples[n] - first) / ((n - 1) * 60))
    assert result.steady == pytest.approx(sum(rates) / 10)
    assert result.interval_samples == 150_080 or result.interval_samples == 149_632
    assert result.samples_to_target / result.counted_total == pytest.approx(result.olympic_s)


def test_a_run_that_did_not_converge_is_the_slowest_and_two_are_no_score(tmp_path: Path) -> None:
    system = ten(tmp_path)
    for failed, valid in ((1, True), (2, False)):
        path = system.runs[failed + 2].path  # runs 3 and 4
        path.write_text(path.read_text().replace('"status": "success"', '"status": "aborted"'))
        (changed,) = find_systems([system.place.folder])
        result = score(changed)
        assert result.complete is valid and result.failed == failed
        text = "\n".join(score_table.summary(result))
        assert ("no score: 2 of 10 runs did not converge" in text) is not valid
        assert math.isfinite(result.olympic_s) is valid
    assert score_table.to_json(result)["olympic_s"] is None


def test_of_twelve_runs_the_window_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = submission.write(tmp_path / "Somebody", runs=12)
    assert main(["score", str(folder)]) == 0
    text = capsys.readouterr().out
    assert "of 12 in the order of their start: the median of 3 windows of ten" in text
    assert "olympic mean   1,02" in text


def test_the_command_prints_what_a_person_asks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fast = submission.write(tmp_path / "Fast", interval_ms=50_000, evaluations=16)
    slow = submission.write(tmp_path / "Slow", system="other")
    assert main(["score", str(fast), str(slow)]) == 0
    text = capsys.readouterr().out
    assert "olympic mean   800.005 s = 13.333 min (score)" in text
    assert "scaled         804.7" in text and "(x 1.005871, RCP check)" in text
    assert "result_2  " in text and "slowest" in text and "fastest" in text
    assert (
        "s: a near miss of the target costs a run 6.3% of its time, and the score 0.78%" in text
    )  # 50 s of 800 s, an eighth of it
    assert "box is 26.76% faster than Somebody other; run again, it would be ahead 100% of the time" in text
    assert main(["score", str(fast), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["olympic_s"] == 800.005 and len(found["runs"]) == 10


def test_few_runs_are_no_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = submission.write(tmp_path / "Somebody", runs=2)
    assert main(["score", str(folder)]) == 1
    assert "no score: 2 run(s), an olympic mean takes three and a result ten" in capsys.readouterr().out
    assert main(["score", str(folder), "--json"]) == 1
    (found,) = json.loads(capsys.readouterr().out)
    assert found["olympic_s"] is found["seconds"] is None and len(found["runs"]) == 2
    submission.write(tmp_path / "Somebody", runs=4)
    assert main(["score", str(folder)]) == 1
    assert "of 4 runs, which is no MLPerf result (ten are)" in capsys.readouterr().out


def test_chances_add_up(tmp_path: Path) -> None:
    first, second = score(ten(tmp_path / "a")), score(ten(tmp_path / "b"))
    assert chance_of_winning(first, second) == pytest.approx(chance_of_winning(second, first))
    assert 0.2 < chance_of_winning(first, second) < 0.5  # ties are no wins


def pair(folder: Path) -> list[Score]:
    """One node in a minute per interval, four in 20 seconds; the samples grow from 17 to 19 intervals of 150,000."""
    top = submission.write(folder / "Somebody", system="one")
    submission.write(top, system="four", nodes=4, interval_ms=20_000, evaluations=19)
    return [score(system) for system in find_systems([folder])]


def test_scaling_splits_time_into_speed_and_convergence(tmp_path: Path) -> None:
    (series,) = scaling(pair(tmp_path))
    base, point = series.points
    assert (series.name, base.score.system.name) == ("Somebody, A100-SXM", "one")
    assert (base.steady_efficiency, base.time_speedup, point.ideal) == (1.0, 1.0, 4.0)
    assert point.steady_speedup == pytest.approx(3, rel=1e-3) and point.steady_efficiency == pytest.approx(
        0.75, rel=1e-3
    )
    assert point.time_speedup == pytest.approx(17 * 60 / (19 * 20), rel=1e-4)
    assert point.convergence_part == pytest.approx(17 / 19, rel=1e-3)
    assert point.speed_part * point.convergence_part == pytest.approx(point.time_speedup, rel=1e-12)
    assert point.mfu == pytest.approx(point.score.steady / 32 * model_flops() / 312e12)


def test_another_baseline_and_what_is_missing(tmp_path: Path) -> None:
    scores = pair(tmp_path)
    (series,) = scaling(scores, "four")
    assert series.points[0].steady_efficiency == pytest.approx(4 / 3, rel=1e-3)
    with pytest.raises(UserError, match="no system of this name among the given ones; there are four, one"):
        scaling(scores, "two")
    (tmp_path / "Somebody" / "systems" / "one.json").unlink()
    with pytest.raises(UserError, match="number_of_nodes and accelerators_per_node are needed"):
        scaling([score(system) for system in find_systems([tmp_path])])


def test_operations_and_peaks() -> None:
    # 24 layers: 8 h^2 + 4 h f + 4 s h a token; head: 2 h^2 + 2 h v for 15% of the tokens; three passes
    by_hand = (
        3 * 256 * (24 * (8 * 1024**2 + 4 * 1024 * 4096 + 4 * 256 * 1024) + 0.15 * (2 * 1024**2 + 2 * 1024 * 30522))
    )
    assert model_flops() == pytest.approx(by_hand)
    assert peak_flops("NVIDIA A100-SXM4-80GB (400W)") == 312e12
    assert peak_flops("NVIDIA Blackwell GPU (B200-SXM-180GB)") == 2250e12
    assert peak_flops("abacus") is None
    assert kind_of("NVIDIA A100-SXM4-80GB (400W)") == kind_of("NVIDIA A100-SXM-80GB") == "A100-SXM"


PUBLISHED = {  # olympic means in seconds
    "v2.0/Baidu": {"XMan4.0_1_node_8_A100_PaddlePaddle": 995.9},
    "v2.1/Baidu": {"8_node_64_A100_PaddlePaddle": 148.6},
    "v2.1/NVIDIA": {"dgxa100_n8_ngc22.09_pytorch": 149.8, "dgxa100_ngc22.09_pytorch": 1012.9},
}
EFFICIENCIES = {"Baidu": (95.6, 93.8), "NVIDIA": (95.3, 93.4), "HPE": (88.5, 87.8)}  # steady, total, from one node to 8


@pytest.mark.reference
def test_published_results(reference_dir: Path) -> None:
    folder = reference_dir / "logs"
    if not folder.is_dir():
        pytest.skip("no published logs")
    for name, systems in PUBLISHED.items():
        found = {s.name: score(s).olympic_s for s in find_systems([folder / name])}
        assert {key: round(value, 1) for key, value in found.items()} == systems
    series = {
        item.submitter: item for item in scaling([score(s) for s in find_systems([folder / "v2.0", folder / "v2.1"])])
    }
    for name, (steady, total) in EFFICIENCIES.items():
        last = series[name].points[-1]
        assert (round(100 * last.steady_efficiency, 1), round(100 * last.total_efficiency, 1)) == (steady, total), name
    hpe = series["HPE"].points
    # tables made without sample counts take its evaluations as equally far apart
    assert round(100 * hpe[-1].evenly_steady_efficiency, 1) == 89.0
    assert [point.score.system.nodes for point in hpe] == [1, 2, 4, 8]
    assert [point.score.system.global_batch_size for point in hpe] == [384, 448, 1536, 3072]
