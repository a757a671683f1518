"""When a run ends: at the first evaluation that reaches the target, or at the last point."""

from pathlib import Path

import pytest

from bert_mlperf.mlperf.log import MlperfLog
from bert_mlperf.report.metrics import MetricsWriter
from bert_mlperf.report.progress import Progress
from bert_mlperf.train.evaluate import Accuracy
from bert_mlperf.train.loop import Outcome, TrainLoop
from bert_mlperf.train.trace import StepTrace


class Samples:
    samples = 0


class ScriptedLoop(TrainLoop):
    """Trains nothing; the evaluations give the accuracies in `script`, in 25ths."""

    script: list[int]

    def train_until(self, point, steps):
        self.state.samples = point

    def evaluate(self):
        return Accuracy(self.script.pop(0), 25)


def run(script: list[int], target: float | None) -> Outcome:
    progress = Progress(total_samples=30, target=target, active=False)
    trace = StepTrace(None, Path())
    loop = ScriptedLoop(Samples(), [], [], MlperfLog(None), MetricsWriter(None), progress, 1.0, trace)
    loop.script = script
    return loop.run([10, 20, 30], target)


@pytest.mark.parametrize(
    ("script", "target", "outcome"),
    [
        ([17, 18, 25], 0.72, Outcome(reached=True, accuracy=0.72, samples=20)),  # exactly the target is enough
        ([25, 0, 0], 0.72, Outcome(reached=True, accuracy=1.0, samples=10)),
        ([17, 17, 17], 0.72, Outcome(reached=False, accuracy=0.68, samples=30)),
        ([25, 25, 10], None, Outcome(reached=False, accuracy=0.4, samples=30)),
    ],
)
def test_a_run_ends_at_its_target_or_at_its_last_point(script, target, outcome):
    assert run(script, target) == outcome
