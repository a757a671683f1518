"""Our strict lint, part 2: hyperparameters, and who ran what."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bert_mlperf.config import rules
from bert_mlperf.mlperf.findings import Finding, Severity
from bert_mlperf.mlperf.requirements import EVAL_SAMPLES
from bert_mlperf.report.logs import Record
from bert_mlperf.report.runs import Run, finite
from bert_mlperf.report.systems import PLACEHOLDER

MAX_PREDICTIONS = 76  # masked tokens of a sample of 512 tokens
PADDED_EVAL_SAMPLES = 10_240  # published results evaluated on up to so many, padded to a batch


@dataclass(frozen=True)
class Range:
    """What a value may be. `test` takes the number."""

    expected: str
    test: Callable[[float], bool]
    whole: bool = False
    closed_only: bool = False


POSITIVE = Range("a whole number above 0", lambda value: value >= 1, whole=True)
NOT_NEGATIVE = Range("a whole number from 0", lambda value: value >= 0, whole=True)
BETA = Range("a number from 0 to below 1", lambda value: 0 <= value < 1)
EPSILON = Range("a small number above 0, at most 0.01", lambda value: 0 < value <= 1e-2)
RANGES = {
    "global_batch_size": POSITIVE,
    "gradient_accumulation_steps": POSITIVE,
    "d_batch_size": POSITIVE,
    "opt_base_learning_rate": Range("a number above 0, at most 1", lambda value: 0 < value <= 1),
    "opt_learning_rate_training_steps": POSITIVE,
    "opt_learning_rate_warmup_steps": NOT_NEGATIVE,
    "num_warmup_steps": NOT_NEGATIVE,
    "start_warmup_step": Range("a whole number", lambda value: abs(value) < 1e9, whole=True),
    "opt_lamb_beta_1": BETA,
    "opt_lamb_beta_2": BETA,
    "opt_lamb_weight_decay_rate": Range("a number from 0 to 1", lambda value: 0 <= value <= 1),
    "opt_epsilon": EPSILON,
    "opt_lamb_epsilon": EPSILON,
    "opt_lamb_learning_rate_decay_poly_power": Range("1", lambda value: value == 1, closed_only=True),
    "max_predictions_per_seq": Range("76", lambda value: value == MAX_PREDICTIONS, closed_only=True),
    "max_sequence_length": Range("512", lambda value: value == 512, closed_only=True),
    "train_samples": NOT_NEGATIVE,
    "seed": Range("a whole number", lambda value: True, whole=True),
}
FIXED = "The closed division fixes it."
UNCONSTRAINED = "The value is free, within what the method can mean."


def lint_values(run: Run, round_name: str, division: str) -> Iterator[Finding]:
    """Values that cannot be meant, or that the closed division fixes."""
    for key, allowed in RANGES.items():
        if division == "closed" or not allowed.closed_only:
            for record in run.log.all(key)[:20]:
                yield from _in_range(run, record, allowed)
    yield from _eval_samples(run, division)
    yield from _agreeing(run)
    yield from _identity(run, division)
    yield from _cache_clear(run, division)


def _in_range(run: Run, record: Record, allowed: Range) -> Iterator[Finding]:
    value = finite(record.value)
    why = FIXED if allowed.closed_only else UNCONSTRAINED
    if value is None:
        kind = "text" if isinstance(record.value, str) else f"{record.value!r}"[:60]
        found = f"{record.value!r}"[:60] + " (text)" if kind == "text" else kind
    elif not allowed.test(value) or (allowed.whole and value != int(value)):
        found = f"{record.value!r}"[:60]
    else:
        return
    what = f"{record.key}: expected {allowed.expected}, found {found}"
    yield Finding(
        "error", run.path, record.line, record.key, what, why, "Log the value that was used, as a JSON number."
    )


def _eval_samples(run: Run, division: str) -> Iterator[Finding]:
    record = run.log.first("eval_samples")
    if record is None or (record.value == EVAL_SAMPLES and not isinstance(record.value, bool)):
        return
    value = finite(record.value)
    severity: Severity = "error"
    if value is not None and value > 0 and (division != "closed" or EVAL_SAMPLES < value <= PADDED_EVAL_SAMPLES):
        if division != "closed":
            return
        severity = "warning"
    what = f"eval_samples: expected {EVAL_SAMPLES:,}, found {record.value!r}"[:120]
    why = "Accuracy is taken over the whole evaluation set of 10,000 samples."
    advice = "Evaluate on all of them; samples that pad a batch have weight 0 and are not counted."
    yield Finding(severity, run.path, record.line, "eval_samples", what, why, advice)


def _agreeing(run: Run) -> Iterator[Finding]:
    """Pairs of keys that say the same thing."""
    for first, second in (("opt_epsilon", "opt_lamb_epsilon"), ("num_warmup_steps", "opt_learning_rate_warmup_steps")):
        a, b = run.number(first), run.number(second)
        if a is not None and b is not None and a != b:
            what = f"{second} is {b:g}, {first} is {a:g} (line {run.line(first)}); expected the same"
            yield Finding(
                "warning",
                run.path,
                run.line(second),
                second,
                what,
                "Both name one value.",
                "Log the value that was used.",
            )


def _identity(run: Run, division: str) -> Iterator[Finding]:
    for key, allowed in (("submission_division", rules.DIVISIONS), ("submission_benchmark", (rules.BENCHMARK,))):
        record = run.log.first(key)
        if record is not None and record.value not in allowed:
            what = f"{key}: expected {' or '.join(allowed)}, found {record.value!r}"[:120]
            why = "The official checker looks for rules of that name, letter by letter."
            yield Finding("error", run.path, record.line, key, what, why, f"Write {allowed[0]!r}.")
    for key in ("submission_org", "submission_platform"):
        text = run.text(key)
        if PLACEHOLDER.search(text):
            what = f"{key} is {text[:60]!r}, a placeholder"
            yield Finding(
                "warning",
                run.path,
                run.line(key),
                key,
                what,
                "Results are listed under it.",
                "Name the submitter and the system.",
            )
        elif run.log.first(key) is not None and not text.strip():
            what = f"{key}: expected a name, found an empty value"
            yield Finding(
                "warning",
                run.path,
                run.line(key),
                key,
                what,
                "Results are listed under it.",
                "Name the submitter and the system.",
            )


def _cache_clear(run: Run, division: str) -> Iterator[Finding]:
    start = run.log.first("run_start")
    for record in run.log.all("cache_clear")[:1000]:
        if record.value is not True and division == "closed":
            what = f"cache_clear: expected true, found {record.value!r}"[:120]
            yield Finding(
                "warning",
                run.path,
                record.line,
                "cache_clear",
                what,
                "Caches are cleared before a run.",
                "Run as root, or clear them otherwise, and log it.",
            )
            return
        if start is not None and record.line > start.line:
            what = f"cache_clear stands behind run_start (line {start.line})"
            yield Finding(
                "warning",
                run.path,
                record.line,
                "cache_clear",
                what,
                "Caches are cleared before a run.",
                "Clear them before init_start.",
            )
            return
