"""Our strict lint, part 3: the course of a run: times, evaluations, samples, and whether the target was reached."""

import itertools
import math
import time
from collections.abc import Iterator

from bert_mlperf.config import rules
from bert_mlperf.mlperf.findings import NOT_CONVERGED, Finding, Severity
from bert_mlperf.report.logs import Record
from bert_mlperf.report.runs import Evaluation, Run, count, finite, logged_samples

INIT_MINUTES = {"closed": 30, "open": 240}
INIT_MINUTES_0_7 = 20
DAY_S = 86_400
MAX_LISTED = 1_000  # records of a key that are looked at one by one
COUNTS = ("epoch_num", "first_epoch_num", "epoch_count", "samples_count")  # in the metadata of an event
EARLIEST_S = 1_514_764_800  # 2018, when MLPerf began
DURING = ("epoch_start", "epoch_stop", "block_start", "block_stop", "eval_start", "eval_stop", "eval_accuracy")


def lint_course(run: Run, round_name: str, division: str, *, now_s: float | None = None) -> Iterator[Finding]:
    """`now_s`: Unix time that counts as the present."""
    yield from _clock(run, time.time() if now_s is None else now_s)
    yield from _order(run)
    yield from _initialisation(run, round_name, division)
    yield from _accuracies(run)
    yield from _metadata(run)
    yield from _pairs(run)
    yield from _status(run, round_name, division)
    yield from _samples(run)
    if division == "closed":
        yield from _cadence(run)


def _clock(run: Run, now_s: float) -> Iterator[Finding]:
    """Times that no run can have."""
    for record in run.log.records:
        seconds = record.time_ms / 1e3
        if record.fault or record.odd or EARLIEST_S <= seconds <= now_s + DAY_S:
            continue
        when = "in the future" if seconds > now_s else "before 2018"
        what = f"{record.key[:60]}: time_ms {record.time_ms:.0f} is {when}"
        why = "time_ms is the Unix time in milliseconds; the time to train is a difference of two."
        yield Finding("error", run.path, record.line, "time_ms", what, why, "Set the clock, or log milliseconds.")
        return


def _order(run: Run) -> Iterator[Finding]:
    """init_start, init_stop, run_start, what happens in between, run_stop: in this order, by time and by line."""
    milestones = [run.log.first(key) for key in ("init_start", "init_stop", "run_start", "run_stop")]
    known = [record for record in milestones if record is not None]
    pairs = list(itertools.pairwise(known))
    start, stop = milestones[2], milestones[3]
    for key in DURING:
        records = run.log.all(key)
        if start is not None and records:
            pairs.append((start, records[0]))
        if stop is not None and records:
            pairs.append((records[-1], stop))
    evaluations = run.log.all("eval_accuracy")
    pairs += itertools.pairwise(evaluations)
    told = set()
    for earlier, later in sorted(pairs, key=lambda pair: pair[1].time_ms - pair[0].time_ms):
        wrong = later.time_ms < earlier.time_ms or later.line < earlier.line
        if wrong and later.line not in told:
            told.add(later.line)
            yield _misplaced(run, earlier, later)


def _misplaced(run: Run, earlier: Record, later: Record) -> Finding:
    why = "init_start, init_stop, run_start, evaluations, run_stop come in this order; the score is a distance of two."
    distance = ""
    if later.time_ms < earlier.time_ms:
        distance = f"{(earlier.time_ms - later.time_ms) / 1e3:,.3f} s "
    what = f"{later.key} is {distance}before {earlier.key} (line {earlier.line}); expected it behind that"
    return Finding("error", run.path, later.line, later.key, what, why, "Log events as they happen, with one clock.")


def _initialisation(run: Run, round_name: str, division: str) -> Iterator[Finding]:
    limit = INIT_MINUTES_0_7 if round_name == "0.7.0" else INIT_MINUTES[division]
    if run.init_seconds is not None and run.init_seconds >= limit * 60:
        found = f"found {run.init_seconds / 60:.1f}"
        what = f"init_stop: expected less than {limit} minutes after the first init_start, {found}"
        why = f"Initialisation outside the clock may take {limit} minutes in the {division} division."
        yield Finding(
            "error",
            run.path,
            run.line("init_stop"),
            "init_stop",
            what,
            why,
            "Compile ahead of time, or start the clock sooner.",
        )


def _accuracies(run: Run) -> Iterator[Finding]:
    for record in run.log.all("eval_accuracy"):
        value = finite(record.value)
        if value is not None and 0 <= value < 1:
            continue
        text = f"{record.value!r}"[:60] + (" (text)" if isinstance(record.value, str) else "")
        what = f"eval_accuracy: expected a number from 0 to below 1, found {text}"
        why = "It is correct masked tokens over all masked tokens of the evaluation set."
        yield Finding("error", run.path, record.line, "eval_accuracy", what, why, "Log the share, as a JSON number.")


def _metadata(run: Run) -> Iterator[Finding]:
    """Counts beside events: numbers from 0 on, and epoch_num at every evaluation."""
    why = "Progress is counted in training samples, a number that other tools read."
    for key in DURING:
        for record in run.log.all(key)[:MAX_LISTED]:
            for name in COUNTS:
                if name in record.metadata and count(record.metadata[name]) is None:
                    found = repr(record.metadata[name])[:60]
                    what = f"{key}: expected metadata {name} as a number from 0 on, found {found}"
                    yield Finding(
                        "error", run.path, record.line, key, what, why, f"Log {name}=<training samples so far>."
                    )
    for record in run.log.all("eval_accuracy"):
        if "epoch_num" not in record.metadata and not record.odd:
            what = "eval_accuracy: expected metadata epoch_num, found none"
            why, advice = "The RCP check reads the training samples there.", "Log epoch_num=<training samples so far>."
            yield Finding("error", run.path, record.line, "eval_accuracy", what, why, advice)
            return


def _pairs(run: Run) -> Iterator[Finding]:
    """Starts and stops."""
    for name in ("block", "epoch", "eval"):
        starts, stops = run.log.counts[f"{name}_start"], run.log.counts[f"{name}_stop"]
        if starts != stops and (starts and stops):
            more = f"{name}_start" if starts > stops else f"{name}_stop"
            records = run.log.all(more)
            what = f"{starts} {name}_start and {stops} {name}_stop; expected one stop for each start"
            yield Finding("warning", run.path, records[-1].line, more, what, "", "Log both ends of each.")


def _status(run: Run, round_name: str, division: str) -> Iterator[Finding]:
    """Success exactly when the last evaluation reaches the target."""
    stop = run.log.first("run_stop")
    if stop is None:
        return
    if run.status not in ("success", "aborted"):
        what = f"run_stop: expected status success or aborted, found {run.status!r}"[:120]
        yield Finding(
            "error",
            run.path,
            stop.line,
            "run_stop",
            what,
            "The score counts runs that say success.",
            "Log metadata status.",
        )
        return
    target, last = target_of(run, round_name, division), run.log.all("eval_accuracy")
    value = finite(last[-1].value) if last else None
    if target is None or value is None:
        if run.converged and not last:
            what = "run_stop says success, and nothing was evaluated"
            yield Finding(
                "error",
                run.path,
                stop.line,
                "status",
                what,
                "A run succeeds at an evaluation.",
                "Log every evaluation.",
            )
        return
    best = max((v for v in (finite(record.value) for record in last) if v is not None), default=value)
    severity: Severity = "error" if division == "closed" else "warning"  # the open division lets it pass
    yield from _verdict(run, stop, last[-1], value, best, target, failed=severity)


def _verdict(
    run: Run, stop: Record, last: Record, value: float, best: float, target: float, *, failed: Severity
) -> Iterator[Finding]:
    why = f"A run ends with success at the evaluation that reaches {target:g}, and only there."
    if run.converged and value < target:
        earlier = f"; an earlier one reached {best:.5f}" if best >= target else ""
        what = f"run_stop (line {stop.line}) says success, and the last eval_accuracy is {value:.7g}, below {target:g}"
        what += earlier
        yield Finding(
            "error",
            run.path,
            last.line,
            "eval_accuracy",
            what,
            why,
            "Stop at the evaluation that reaches the target, or log aborted.",
        )
    elif not run.converged and value >= target:
        reached = f"{value:.7g}, which reaches {target:g}"
        what = f"run_stop says aborted, and the last eval_accuracy (line {last.line}) is {reached}"
        yield Finding(
            "error",
            run.path,
            stop.line,
            "run_stop",
            what,
            why,
            "Log status success, or say why the run does not count.",
        )
    elif not run.converged:
        what = f"the run did not converge: status aborted, eval_accuracy at most {best:.7g}, below {target:g}"
        advice = "One such run of ten counts as the slowest; a second makes the result invalid."
        yield Finding(failed, run.path, stop.line, NOT_CONVERGED, what, why, advice)


def target_of(run: Run, round_name: str, division: str) -> float | None:
    """The accuracy to reach: that of the rules, in the open division the one that the log names."""
    if division == "closed":
        return rules.quality_target(round_name.removesuffix("-edited"), run.global_batch_size or 0)
    return run.number("target_accuracy")


def _samples(run: Run) -> Iterator[Finding]:
    """train_samples and the samples of the evaluations agree and grow."""
    if run.samples_are_inferred:
        if run.log.counts["eval_accuracy"]:
            yield _placeholder(run)
    else:
        yield from _growing(run)
    end, record = run.samples_at_end, run.log.first("train_samples")
    logged = finite(record.value) if record is not None else None
    batch = run.global_batch_size or 1
    if record is None or logged is None or end is None or logged == end:
        return
    last = run.evaluations[-1]
    what = f"train_samples is {logged:,.0f}, the last evaluation (line {last.line}) stands at {end:,}"
    if run.samples_are_inferred:
        what = f"train_samples is {logged:,.0f}, {len(run.evaluations)} evaluations by the rule end at {end:,}"
    severe = logged < end - batch and not run.samples_are_inferred
    why = "Training ends at its last evaluation; the RCP check takes the samples of either."
    yield Finding(
        "error" if severe else "warning",
        run.path,
        record.line,
        "train_samples",
        what,
        why,
        "Log the samples that were trained on.",
    )


def _placeholder(run: Run) -> Finding:
    record = run.log.all("eval_accuracy")[0]
    found = logged_samples(record)
    what = f"epoch_num is {'missing' if found is None else f'{found} at every evaluation'}, a placeholder"
    why = "epoch_num is the training samples so far: the RCP check reads it, unless told to take train_samples."
    advice = "Log the samples. Here they follow from the batch and the rule of the evaluation points."
    return Finding("warning", run.path, record.line, "epoch_num", what, why, advice)


def _growing(run: Run) -> Iterator[Finding]:
    for earlier, later in zip(run.evaluations, run.evaluations[1:], strict=False):
        if earlier.samples is not None and later.samples is not None and later.samples <= earlier.samples:
            what = (
                f"eval_accuracy: epoch_num {later.samples:,} does not exceed {earlier.samples:,} (line {earlier.line})"
            )
            why = "epoch_num is the training samples so far, and grows."
            yield Finding(
                "error", run.path, later.line, "epoch_num", what, why, "Log the samples that were trained on."
            )
            return


def _cadence(run: Run) -> Iterator[Finding]:
    """An evaluation at every k * interval, rounded up to a batch, give or take a batch."""
    batch = run.global_batch_size
    if batch is None or run.samples_are_inferred:
        return
    interval = rules.eval_interval_samples(batch)
    why = f"Evaluations follow every {interval:,} samples at a global batch of {batch:,}, rounded up to a batch."
    off: list[tuple[Evaluation, int]] = []  # evaluation, and where it was due
    before = 0
    for item in run.evaluations:
        assert item.samples is not None
        number = max(1, round(item.samples / interval))
        due = rules.round_up_to_batch(number * interval, batch)
        if number > before + 1 and off == []:
            missing = rules.round_up_to_batch((before + 1) * interval, batch)
            what = f"no evaluation at {missing:,} samples; the next one stands at {item.samples:,}"
            yield Finding("warning", run.path, item.line, "cadence", what, why, "Evaluate at the required samples.")
        if not due - batch <= item.samples <= due + batch or number == before:
            off.append((item, due))
        before = number
    if not off:
        return
    item, due = off[0]
    assert item.samples is not None
    batches = math.ceil(abs(item.samples - due) / batch)
    what = (
        f"evaluation at {item.samples:,} samples, expected at {due:,} ({batches:,} batches "
        f"{'behind' if item.samples > due else 'before'} it); {len(off)} of {len(run.evaluations)} evaluations are off"
    )
    yield Finding("warning", run.path, item.line, "cadence", what, why, "Evaluate at the required samples.")
