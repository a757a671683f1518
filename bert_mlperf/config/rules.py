"""The MLPerf Training rules for BERT, round by round: tables and pure functions."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime

from bert_mlperf.errors import UserError


@dataclass(frozen=True)
class Round:
    """What changed from round to round for BERT."""

    published: str  # the day of the results, ISO
    ruleset: str  # of mlperf-logging
    epsilon_key: str  # under which LAMB's epsilon has to be logged
    tensors: bool  # whether weights_initialization has to name the 398 variables
    identity_keys: tuple[str, ...]  # of who and where, required in the log
    rcp: bool = True  # whether there are reference convergence points


_WHO = ("submission_org", "submission_platform", "submission_status")
EDITED = "2.1.0-edited"  # the rules of 2.1.0 as they were edited after the round, which is what mlperf-logging has now
ROUND_TABLE = {
    "0.7.0": Round("2020-07-29", "0.7.0", "opt_epsilon", False, _WHO, rcp=False),
    "1.0.0": Round("2021-06-30", "1.0.0", "opt_epsilon", False, _WHO),
    "1.1.0": Round("2021-12-01", "1.1.0", "opt_epsilon", True, _WHO),
    "2.0.0": Round("2022-06-29", "2.0.0", "opt_epsilon", True, _WHO),
    "2.1.0": Round("2022-11-09", "2.1.0", "opt_epsilon", True, _WHO),
    EDITED: Round("2022-11-09", "2.1.0", "opt_lamb_epsilon", True, _WHO),
    "3.0.0": Round("2023-06-27", "3.0.0", "opt_lamb_epsilon", False, _WHO),
    "3.1.0": Round("2023-11-08", "3.1.0", "opt_lamb_epsilon", False, _WHO),
    "4.0.0": Round("2024-06-12", "4.0.0", "opt_lamb_epsilon", False, _WHO),
    "4.1.0": Round("2024-11-13", "4.1.0", "opt_lamb_epsilon", False, _WHO[:2]),
    "5.0.0": Round("2025-06-04", "5.0.0", "opt_lamb_epsilon", False, ()),
}

BENCHMARK = "bert"
ROUNDS = tuple(name for name in ROUND_TABLE if name != EDITED)
ROUNDS_WITHOUT_BERT = ("5.1.0", "6.0.0", "6.1.0")  # those that were published since
DEFAULT_ROUND = "5.0.0"  # the last round that has BERT
DIVISIONS = ("closed", "open")
CLOSED_MODEL = "bert-large"
TARGET_ACCURACY = 0.720  # masked-LM accuracy on the evaluation set, every round but 0.7.0

# What a system file says (`status`) and what the log says (`submission_status`). Rounds up to 3.1 took the short words
# in the system file too, rounds since 4.0 want the long ones there; the log has the short word, which rounds up to 2.1
# demand and later ones do not look at.
STATUS_IN_LOG = {
    "Available on-premise": "onprem",
    "Available cloud": "cloud",
    "Research, Development, or Internal (RDI)": "research",
    "Preview": "preview",
    "onprem": "onprem",
    "cloud": "cloud",
    "research": "research",
    "preview": "preview",
}

# LAMB's epsilon in the log: the first name up to 2.0, the second since 2.1 (whose rules were edited after the round, so
# that published logs have the first). A log with both passes all rounds.
EPSILON_KEYS = ("opt_epsilon", "opt_lamb_epsilon")


def parse_round(text: str) -> str:
    """Full name of a round that has BERT ("5.0" is "5.0.0"); UserError with the reason for any other."""
    if text == EDITED:
        return text
    name = text.removeprefix("v")
    name += ".0" * max(0, 2 - name.count("."))
    if name in ROUNDS:
        return name
    if not re.fullmatch(r"\d+\.\d+\.\d+", name):
        raise UserError(f"Round {text!r} is not a version number: expected one of {', '.join(ROUNDS)}.")
    if _version(name) > _version(DEFAULT_ROUND):
        raise UserError(
            f"Round {name} has no BERT: the benchmark was retired after {DEFAULT_ROUND}, so check the log against "
            f"{DEFAULT_ROUND} or an earlier round."
        )
    raise UserError(f"Round {name} has no rules for BERT: expected one of {', '.join(ROUNDS)}.")


def round_of_time(seconds: float) -> str:
    """The first round whose results were published after a Unix time; the last one with BERT for a later time."""
    for name in ROUNDS:
        if seconds < datetime.fromisoformat(ROUND_TABLE[name].published).replace(tzinfo=UTC).timestamp():
            return name
    return DEFAULT_ROUND


def _version(name: str) -> tuple[int, ...]:
    return tuple(int(part) for part in name.split("."))


def quality_target(round_name: str, global_batch_size: int) -> float:
    """Masked-LM accuracy that a closed run of a round has to reach."""
    if round_name == "0.7.0":
        return 0.712 if global_batch_size < 8192 else 0.706
    return TARGET_ACCURACY


def eval_interval_samples(global_batch_size: int) -> int:
    """Training samples between two evaluations: floor(0.05 * (230.23 * B + 3,000,000) / 25,000) * 25,000.

    Computed in integers (the numerator is scaled by 100 / 0.05), so that no rounding moves the floor.
    """
    return (23_023 * global_batch_size + 300_000_000) // 50_000_000 * 25_000


def max_predictions(max_length: int) -> int:
    """Masked tokens of a sample of `max_length` tokens, at most: a share of 0.15, and never more than 76."""
    return min(76, max(1, round(0.15 * max_length)))


def round_up_to_batch(samples: int, global_batch_size: int) -> int:
    """Smallest multiple of the global batch that is at least `samples`."""
    return -(-samples // global_batch_size) * global_batch_size


def evaluation_points(interval: int, *, global_batch_size: int, max_samples: int) -> list[int]:
    """Training samples after which the model is evaluated: ascending, without 0.

    k * interval for k = 1, 2, ..., each rounded up to a whole batch, up to max_samples; the last point is max_samples
    rounded up to a whole batch. A batch larger than the interval gives one point per batch.
    """
    end = round_up_to_batch(max_samples, global_batch_size)
    points = {round_up_to_batch(samples, global_batch_size) for samples in range(interval, max_samples + 1, interval)}
    return sorted(points | {end})
