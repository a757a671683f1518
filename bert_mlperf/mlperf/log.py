"""The MLPerf log of one run: every key that the rules 0.7.0 to 5.0.0 ask of BERT.

One line per event, `:::MLLOG {json}`, written by mlperf_logging.mllog to a file of its own, so that nothing else that
is printed can end up in it. Progress is counted in training samples, also where the format says "epoch".
"""

import json
import logging
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

from mlperf_logging.mllog.mllog import MLLogger

from bert_mlperf.config import rules
from bert_mlperf.config.system import Run, System
from bert_mlperf.errors import UserError

NAMESPACE = "bert_mlperf"
PACKAGE_PARENT = Path(__file__).resolve().parents[2]
CALLER_OF_METHOD = 4  # mllog counts frames from its own method: _write, _event, a public method, its caller
POLYNOMIAL_POWER = 1.0  # of the learning-rate decay, fixed by the rules


class MlperfLog:
    """Writes the events of a run, in the order of the calls. `path` None (every rank but the first) writes nothing.

    Lines are appended and flushed one by one: a killed process leaves whole lines, and an existing file loses nothing.
    Values and metadata are checked before they are written: NaN and infinities raise ValueError, so the log is always
    valid JSON. `division` overrides the system's division; only tests of the closed rules pass it.

    Every instance has its own logger, so any number of them in a process write each line once, and the shared logger of
    mlperf_logging (which prints to stdout) is never touched.
    """

    def __init__(self, path: str | Path | None, *, division: str | None = None) -> None:
        self._division = division
        self._written: set[str] = set()  # keys
        self._first_epoch_num = 0
        self._handler = None if path is None else _open(Path(path))
        if self._handler is not None:
            logger = logging.Logger(f"{NAMESPACE}.mllog", level=logging.INFO)
            logger.addHandler(self._handler)
            self._mllogger = MLLogger(logger, default_namespace=NAMESPACE, root_dir=re.escape(str(PACKAGE_PARENT)))

    def close(self) -> None:
        """Close the file; events that follow are errors."""
        if self._handler is not None:
            self._handler.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Before the run.

    def cache_clear(self, *, done: bool, reason: str = "") -> None:
        """Whether the operating system's file caches were dropped, and why not."""
        self._event("cache_clear", bool(done), reason=reason)

    def init_start(self) -> None:
        """Building and warming up begin."""
        self._start("init_start", once=True)

    def submission(self, system: System) -> None:
        """Who runs what where."""
        self._event("submission_benchmark", rules.BENCHMARK, once=True)
        self._event("submission_org", system.submitter, once=True)
        self._event("submission_division", self._division or system.division, once=True)
        self._event("submission_status", rules.STATUS_IN_LOG[system.status], once=True)
        self._event("submission_platform", f"{system.number_of_nodes}x{system.system_name}", once=True)

    def hyperparameters(self, run: Run, seed: int, *, max_predictions_per_seq: int | None = None) -> None:
        """The seed, the model, the batch and everything in the recipe. LAMB's epsilon goes under both of its names.

        `max_predictions_per_seq`: masked tokens of a sample at most, by default what the rules give for its length.
        """
        model, recipe = run.model, run.recipe
        if max_predictions_per_seq is None:
            max_predictions_per_seq = rules.max_predictions(model.max_position_embeddings)
        shape = model.model_dump(exclude={"name"})
        self._event("model_name", model.name, once=True, num_parameters=model.num_parameters, **shape)
        values: dict[str, Any] = {
            "seed": seed,
            "global_batch_size": recipe.global_batch_size,
            "d_batch_size": run.micro_batch_size,
            "gradient_accumulation_steps": run.gradient_accumulation_steps,
            "max_sequence_length": model.max_position_embeddings,
            "max_predictions_per_seq": max_predictions_per_seq,
            "target_accuracy": run.target_accuracy,
            "opt_base_learning_rate": recipe.base_learning_rate,
            "opt_lamb_beta_1": recipe.beta_1,
            "opt_lamb_beta_2": recipe.beta_2,
            "opt_lamb_weight_decay_rate": recipe.weight_decay,
            "opt_lamb_learning_rate_decay_poly_power": POLYNOMIAL_POWER,
            "opt_learning_rate_training_steps": recipe.training_steps,
            "opt_learning_rate_warmup_steps": recipe.warmup_steps,
            "num_warmup_steps": recipe.warmup_steps,
            "start_warmup_step": recipe.start_warmup_step,
        }
        for key, value in (values | dict.fromkeys(rules.EPSILON_KEYS, recipe.epsilon)).items():
            self._event(key, value, once=True)

    def weights_initialization(self, tf_names: Iterable[str]) -> None:
        """One line per variable of the reference whose first value was set."""
        for name in tf_names:
            self._event("weights_initialization", tensor=name)

    def init_stop(self) -> None:
        """Everything is built; no sample was read."""
        self._stop("init_stop", once=True)

    # The run. `samples`: training samples so far.

    def run_start(self) -> None:
        """The clock starts."""
        self._start("run_start", once=True)

    def block_start(self, samples: int) -> None:
        """Training begins or goes on."""
        self._first_epoch_num = samples
        self._start("block_start", first_epoch_num=samples, epoch_count=1, samples_count=samples)

    def block_stop(self, samples: int) -> None:
        """Training stops for an evaluation or for good."""
        self._stop("block_stop", first_epoch_num=self._first_epoch_num, epoch_num=samples, samples_count=samples)

    def epoch_start(self, samples: int) -> None:
        """A pass over the training data begins."""
        self._start("epoch_start", epoch_num=samples, samples_count=samples)

    def epoch_stop(self, samples: int) -> None:
        """A pass over the training data ends."""
        self._stop("epoch_stop", epoch_num=samples, samples_count=samples)

    def eval_start(self, samples: int) -> None:
        """An evaluation begins."""
        self._start("eval_start", samples, epoch_num=samples, samples_count=samples)

    def eval_accuracy(self, value: float, samples: int) -> None:
        """Masked-LM accuracy on the whole evaluation set, a share."""
        self._event("eval_accuracy", value, epoch_num=samples, samples_count=samples)

    def eval_stop(self, samples: int) -> None:
        """An evaluation ends."""
        self._stop("eval_stop", samples, epoch_num=samples, samples_count=samples)

    def tracked_stats(self, samples_per_second: float, samples: int) -> None:
        """Training throughput, in samples per second."""
        self._event("tracked_stats", {"throughput": samples_per_second}, epoch_num=samples, samples_count=samples)

    def train_samples(self, samples: int) -> None:
        """Training samples of the whole run."""
        self._event("train_samples", samples, once=True)

    def eval_samples(self, samples: int) -> None:
        """Size of the evaluation set, in samples."""
        self._event("eval_samples", samples, once=True)

    def run_stop(self, status: str, samples: int) -> None:
        """The clock stops. `status`: success (the target was reached) or aborted."""
        if status not in ("success", "aborted"):
            raise ValueError(f"run_stop: status is {status!r}, expected 'success' or 'aborted'.")
        self._stop("run_stop", once=True, status=status, epoch_num=samples, samples_count=samples)

    @property
    def ended(self) -> bool:
        """True once run_stop was written."""
        return "run_stop" in self._written

    # Writing. These three are called by public methods alone: the log names the line that called the public method.

    def _event(self, key: str, value: Any = None, *, once: bool = False, **metadata: Any) -> None:
        self._write("event", key, value, once, metadata)

    def _start(self, key: str, value: Any = None, *, once: bool = False, **metadata: Any) -> None:
        self._write("start", key, value, once, metadata)

    def _stop(self, key: str, value: Any = None, *, once: bool = False, **metadata: Any) -> None:
        self._write("end", key, value, once, metadata)

    def _write(self, method: str, key: str, value: Any, once: bool, metadata: dict[str, Any]) -> None:
        plain_value, plain_metadata = _plain(key, value), _plain(key, metadata)
        if once and key in self._written:
            raise ValueError(f"{key} was written to this log already; the rules allow it once.")
        self._written.add(key)
        if self._handler is not None:
            write = getattr(self._mllogger, method)
            write(key, plain_value, metadata=plain_metadata, stack_offset=CALLER_OF_METHOD)


class _LineFile(logging.FileHandler):
    """Appends line by line. A full disk or a closed file stops the run instead of leaving a log with holes."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (logging's name)
        raise

    def emit(self, record: logging.LogRecord) -> None:
        if self.stream is None:
            raise ValueError(f"The MLPerf log {self.baseFilename} is closed; nothing can be written to it any more.")
        super().emit(record)


def _open(path: Path) -> logging.Handler:
    try:
        return _LineFile(path, mode="a", encoding="ascii")
    except OSError as error:
        raise UserError(f"The MLPerf log {path} cannot be written: {error.strerror}; choose another folder.") from None


def _plain(key: str, value: Any) -> Any:
    """A value as JSON would give it back (numpy scalars become numbers); ValueError on what JSON cannot hold."""
    try:
        return json.loads(json.dumps(value, allow_nan=False, default=lambda item: item.item()))
    except (ValueError, TypeError, AttributeError):
        raise ValueError(
            f"{key}: {value!r} cannot stand in an MLPerf log, expected finite numbers, text or None."
        ) from None
