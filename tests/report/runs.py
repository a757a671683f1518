"""Folders of runs that tests write."""

from pathlib import Path
from typing import Any

from bert_mlperf.config.system import load_system
from bert_mlperf.report.metrics import MetricsWriter
from tests.config import files

INTERVAL: dict[str, Any] = {
    "samples": 640,
    "step": 10,
    "loss": 7.5,
    "mlm_loss": 6.875,
    "nsp_loss": 0.625,
    "learning_rate": 1e-3,
    "grad_norm": 1.25,
    "samples_per_s": 1140.4,
    "tokens_per_s": 50000.0,
    "wait_percent": 0.21,
    "skipped_steps": 0,
}


def write_run(folder: Path, *overrides: str, accuracies: tuple[float, ...] = (0.3, 0.6, 0.73)) -> Path:
    """A run with one interval and one evaluation every 640 samples."""
    run_dir = folder / "run_0"
    run_dir.mkdir()
    (run_dir / "config.json").write_text(load_system(files.write(folder, files.small()), list(overrides)).to_json())
    with MetricsWriter(run_dir) as metrics:
        for index, accuracy in enumerate(accuracies, start=1):
            metrics.interval(**INTERVAL | {"samples": 640 * index, "step": 10 * index})
            metrics.evaluation(samples=640 * index, accuracy=accuracy, correct=int(1000 * accuracy), total=1000)
    return run_dir
