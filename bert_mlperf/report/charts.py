"""Pictures of a run, drawn from what it saved: no display and no training library needed."""

import json
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from bert_mlperf.errors import UserError
from bert_mlperf.report.metrics import METRICS_FILE, Evaluation, Metrics, read_metrics

CONFIG_FILE = "config.json"  # ResolvedSystem.to_json()
CURVES_FILE = "curves.png"
BLUE, ORANGE, GREEN, GRAY = "#0072B2", "#D55E00", "#009E73", "#595959"  # told apart by every kind of colour vision
FEW_POINTS = 20  # below this each point is marked: a line through one point cannot be seen
SIZE_INCHES, DOTS_PER_INCH = (8.0, 7.0), 120


def draw_curves(run_dir: str | Path) -> Path:
    """Draw loss and accuracy over training samples from run_dir's metrics and config; returns run_dir/curves.png.

    UserError if one of the two files is missing or damaged.
    """
    run_dir = Path(run_dir)
    metrics = read_metrics(run_dir / METRICS_FILE)
    config = _read_config(run_dir / CONFIG_FILE)
    target = config["system"]["run"]["target_accuracy"]
    figure = Figure(figsize=SIZE_INCHES, dpi=DOTS_PER_INCH, layout="constrained")
    losses, accuracies = figure.subplots(2, 1, sharex=True)
    figure.suptitle(_title(config), fontsize=13)
    losses.set_title(_outcome(metrics, target), fontsize=10, color=GRAY)
    _draw_losses(losses, metrics)
    _draw_accuracies(accuracies, metrics.evaluations, target)
    accuracies.set_xlabel("training samples")
    accuracies.xaxis.set_major_locator(MaxNLocator(integer=True))
    accuracies.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    path = run_dir / CURVES_FILE
    figure.savefig(path)
    return path


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        _title(config)
        return config
    except OSError as error:
        raise UserError(f"Resolved config {path} cannot be read: {error.strerror}.") from None
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path} is not the resolved config of a run; give the folder of a run.") from None


def _title(config: dict[str, Any]) -> str:
    system = config["system"]
    run = system["run"]
    batch = run["recipe"]["global_batch_size"]
    return f"{config['name']}: {run['model']['name']}, {system['division']} division, global batch {batch:,}"


def _outcome(metrics: Metrics, target: float | None) -> str:
    if not metrics.evaluations:
        return "not evaluated"
    if target is None:
        return f"no target: accuracy {metrics.evaluations[-1].accuracy:.4f} at the end"
    reached = next((item for item in metrics.evaluations if item.accuracy >= target), None)
    if reached is not None:
        seconds = _duration(reached.time_s)
        return f"target {target:.3f} reached after {reached.samples:,} samples, {seconds} after run_start"
    best = max(metrics.evaluations, key=lambda item: item.accuracy)
    return f"target {target:.3f} not reached: at most {best.accuracy:.4f}, after {best.samples:,} samples"


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.1f} min"


def _draw_losses(axes: Axes, metrics: Metrics) -> None:
    samples = [item.samples for item in metrics.intervals]
    marker = "." if len(samples) < FEW_POINTS else ""
    for name, label, color, style in (
        ("loss", "total", BLUE, "-"),
        ("mlm_loss", "masked LM", ORANGE, "--"),
        ("nsp_loss", "next sentence", GREEN, ":"),
    ):
        values = [getattr(item, name) for item in metrics.intervals]
        axes.plot(samples, values, marker + style, color=color, label=label)
    axes.set_ylabel("training loss (nats)")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(loc="best")


def _draw_accuracies(axes: Axes, evaluations: list[Evaluation], target: float | None) -> None:
    samples = [item.samples for item in evaluations]
    accuracies = [item.accuracy for item in evaluations]
    axes.plot(samples, accuracies, "o-", color=BLUE, label="evaluation")
    if target is not None:
        axes.axhline(target, linestyle="--", color=ORANGE, label=f"target {target:.3f}")
    for sample, accuracy in list(zip(samples, accuracies, strict=True))[-1:]:
        axes.annotate(f"{accuracy:.4f}", (sample, accuracy), xytext=(-6, 8), textcoords="offset points", ha="right")
    axes.set_ylabel("masked-LM accuracy (share)")
    axes.set_ylim(0, 1.15 * max([target or 0.0, 0.01, *accuracies]))
    axes.set_xlim(left=0)
    axes.grid(alpha=0.3)
    axes.legend(loc="best")
