from pathlib import Path

import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from bert_mlperf.errors import UserError
from bert_mlperf.report.charts import draw_curves
from tests.report import runs


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that are saved."""
    saved: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, path: (saved.append(self), save(self, path)))
    return saved


def test_both_panels_show_the_run(tmp_path: Path, figures: list[Figure]) -> None:
    path = draw_curves(runs.write_run(tmp_path))
    assert path == tmp_path / "run_0" / "curves.png"
    pixels = imread(path)
    assert pixels.shape[:2] == (840, 960)
    assert 0.8 < pixels[..., :3].mean() < 0.995  # a white page with something on it
    (figure,) = figures
    losses, accuracies = figure.axes
    assert figure.get_suptitle() == "small: bert-small, open division, global batch 16"
    assert losses.get_title().startswith("target 0.720 reached after 1,920 samples, ")
    assert (losses.get_ylabel(), accuracies.get_ylabel()) == ("training loss (nats)", "masked-LM accuracy (share)")
    assert accuracies.get_xlabel() == "training samples"
    assert [line.get_label() for line in losses.lines] == ["total", "masked LM", "next sentence"]
    assert list(losses.lines[0].get_xdata()) == [640, 1280, 1920]
    assert list(losses.lines[1].get_ydata()) == [6.875] * 3
    points, target = accuracies.lines
    assert list(points.get_ydata()) == [0.3, 0.6, 0.73]
    assert points.get_marker() == "o"
    assert list(target.get_ydata()) == [0.72, 0.72]


@pytest.mark.parametrize(
    ("overrides", "accuracies", "outcome", "lines"),
    [
        ((), (0.3, 0.5, 0.4), "target 0.720 not reached: at most 0.5000, after 1,280 samples", 2),
        ((), (), "not evaluated", 2),
        (("target_accuracy=null",), (0.3, 0.4), "no target: accuracy 0.4000 at the end", 1),
    ],
)
def test_other_ends(
    tmp_path: Path,
    figures: list[Figure],
    overrides: tuple[str, ...],
    accuracies: tuple[float, ...],
    outcome: str,
    lines: int,
) -> None:
    draw_curves(runs.write_run(tmp_path, *overrides, accuracies=accuracies))
    losses, accuracy_axes = figures[0].axes
    assert losses.get_title() == outcome
    assert len(accuracy_axes.lines) == lines


def test_what_is_missing_or_damaged_is_named(tmp_path: Path) -> None:
    run_dir = runs.write_run(tmp_path)
    (run_dir / "config.json").write_text("{}")
    with pytest.raises(UserError, match=r"config\.json is not the resolved config of a run"):
        draw_curves(run_dir)
    (run_dir / "config.json").unlink()
    with pytest.raises(UserError, match=r"config\.json cannot be read"):
        draw_curves(run_dir)
    with pytest.raises(UserError, match=r"metrics\.jsonl cannot be read"):
        draw_curves(tmp_path)
