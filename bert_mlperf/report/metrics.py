"""Metrics of a run as JSON lines: one object per interval of training and one per evaluation."""

import json
import math
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

from bert_mlperf.errors import UserError

METRICS_FILE = "metrics.jsonl"


@dataclass(frozen=True)
class Interval:
    """Training since the interval before: means over its steps; the learning rate and the norm are its last step's."""

    samples: int  # training samples so far
    step: int  # steps so far
    loss: float  # masked-LM + next-sentence loss, in nats
    mlm_loss: float  # in nats per masked token
    nsp_loss: float  # in nats per sample
    learning_rate: float
    grad_norm: float  # of the averaged gradient, before clipping
    samples_per_s: float
    tokens_per_s: float
    wait_percent: float  # share of the time that this rank waited for data
    skipped_steps: int = 0  # whose gradient was not finite (fp16), so that nothing was updated
    time_s: float = 0.0  # since the writer was opened, which is at run_start


@dataclass(frozen=True)
class Evaluation:
    """One pass over the evaluation set."""

    samples: int  # training samples so far
    accuracy: float  # masked-LM accuracy, a share: correct / total
    correct: int  # masked tokens whose most likely token is the original
    total: int  # masked tokens of the evaluation set
    time_s: float = 0.0  # since the writer was opened, at the end of the evaluation


@dataclass(frozen=True)
class Metrics:
    """All that was written about a run, in order."""

    intervals: list[Interval]
    evaluations: list[Evaluation]


class MetricsWriter:
    """Appends to metrics.jsonl in the folder of a run, line by line, flushed, and stamps the time of each line.

    `run_dir` None (every rank but the first) writes nothing. UserError if the file cannot be written.
    """

    def __init__(self, run_dir: str | Path | None) -> None:
        self._started = time.perf_counter()
        try:
            path = None if run_dir is None else Path(run_dir) / METRICS_FILE
            self._file = None if path is None else path.open("a", encoding="ascii", buffering=1)
        except OSError as error:
            raise UserError(f"Metrics in {run_dir} cannot be written: {error.strerror}; choose another one.") from None

    def interval(self, **values: Any) -> None:
        """`values`: the fields of Interval but time_s."""
        self._write("interval", Interval(**values, time_s=time.perf_counter() - self._started))

    def evaluation(self, **values: Any) -> None:
        """`values`: the fields of Evaluation but time_s."""
        self._write("evaluation", Evaluation(**values, time_s=time.perf_counter() - self._started))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, kind: str, record: Interval | Evaluation) -> None:
        if self._file is not None:
            finite = {key: None if _not_finite(value) else value for key, value in asdict(record).items()}
            self._file.write(json.dumps({"kind": kind} | finite, allow_nan=False) + "\n")


def _not_finite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def read_metrics(path: str | Path) -> Metrics:
    """What a MetricsWriter wrote. A loss that was not finite comes back as NaN; an unfinished last line is left out.

    UserError on a missing file and on a line that is no metrics record.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", "not a text file")
        raise UserError(f"Metrics file {path} cannot be read: {reason}.") from None
    metrics = Metrics([], [])
    for number, line in enumerate(text.split("\n")[:-1], start=1):
        try:
            record = json.loads(line)
            if record["kind"] == "interval":
                metrics.intervals.append(_build(Interval, record))
            else:
                metrics.evaluations.append(_build(Evaluation, record))
        except (ValueError, KeyError, TypeError):
            raise UserError(f"{path}, line {number}: no metrics record: {line[:60]!r}; the file is damaged.") from None
    return metrics


def _build(kind: type[Any], record: dict[str, Any]) -> Any:
    values = {field.name: record[field.name] for field in fields(kind)}
    return kind(**{name: math.nan if value is None else value for name, value in values.items()})
