"""Which rank an error line names: the one that ended first, whatever happened to the others because of it."""

from types import SimpleNamespace
from typing import Any

import pytest

from bert_mlperf.ranks import GRACE_S, find_culprit

FAILED, BAD_INPUT, STOPPED, TERMINATED, KILLED, CRASHED = 1, 2, 143, -15, -9, -11


def ended(exitcode: int, *, reported: float | None = None, noticed: int = 100) -> Any:
    """A rank that ended: when it says so itself, and when the agent noticed it (seconds)."""
    data = {} if reported is None else {"message": "why", "time": reported}
    timestamp = noticed if reported is None else int(reported)
    return SimpleNamespace(exitcode=exitcode, error_file_data=data, timestamp=timestamp)


@pytest.mark.parametrize(
    ("failures", "culprit", "late"),
    [
        ([ended(FAILED, reported=100.2), ended(FAILED, reported=100.1)], 1, []),
        ([ended(FAILED, reported=100.2), ended(STOPPED, reported=100.1)], 1, []),
        ([ended(STOPPED, reported=100.9), ended(FAILED, reported=100.1)], 1, []),
        ([ended(TERMINATED), ended(BAD_INPUT, reported=100.1)], 1, []),
        ([ended(FAILED, reported=100.1), ended(KILLED)], 1, []),
        ([ended(FAILED, reported=100.1), ended(CRASHED)], 1, []),
        ([ended(FAILED, reported=100.1), ended(KILLED, noticed=100 + GRACE_S)], 0, [1]),
        ([ended(TERMINATED), ended(KILLED)], 1, []),
        ([ended(TERMINATED), ended(TERMINATED)], 0, []),
    ],
)
def test_the_rank_that_ended_first(failures: list[Any], culprit: int, late: list[int]) -> None:
    assert find_culprit(dict(enumerate(failures))) == (culprit, late)
