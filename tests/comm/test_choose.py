"""The decision behind `reduction: auto`: repetitions in turn, a pure choice, a table that says why."""

import json

import pytest

from bert_mlperf.comm.choose import (
    BUDGET_S,
    LEAST_REPETITIONS,
    MOST_REPETITIONS,
    Choice,
    Timing,
    is_enough,
    time_in_turn,
)


class FakeRanks:
    """A clock that stands still but for what is done, and other ranks that take `lag` times as long."""

    def __init__(self, lag: float = 1.0) -> None:
        self.now, self.lag, self.done = 0.0, lag, []

    def work(self, name: str, *seconds: float):
        """Takes the given seconds in turn, then the last of them again and again."""
        left = list(seconds)

        def run() -> None:
            self.done.append(name)
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return run

    def slowest(self, seconds: float) -> float:
        return self.lag * seconds


def timings(ranks: FakeRanks, *works) -> list[tuple[float, ...]]:
    return time_in_turn(works, clock=lambda: ranks.now, slowest=ranks.slowest)


def test_candidates_take_turns_and_the_first_turn_warms_up():
    ranks = FakeRanks()
    flat, node = timings(ranks, ranks.work("flat", 100.0, 4.0), ranks.work("node", 50.0, 3.0))
    assert ranks.done == (1 + len(flat)) * ["flat", "node"]
    assert set(flat) == {4.0} and set(node) == {3.0}


def test_a_repetition_lasts_as_long_as_on_the_slowest_rank():
    ranks = FakeRanks(lag=3.0)
    (seconds,) = timings(ranks, ranks.work("flat", 2.0))
    assert set(seconds) == {6.0}


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(1e-3, MOST_REPETITIONS), (100.0, LEAST_REPETITIONS), (BUDGET_S / 10, 5)],  # two candidates
)
def test_repetitions_depend_on_how_long_they_take(seconds, expected):
    ranks = FakeRanks()
    first, second = timings(ranks, ranks.work("flat", seconds), ranks.work("node", seconds))
    assert len(first) == len(second) == expected


def test_no_repetition_is_not_enough():
    assert not is_enough([])


def choice(**seconds: tuple[float, ...]) -> Choice:
    return Choice(tuple(Timing(name, 2, values) for name, values in seconds.items()))


def test_the_smallest_median_wins_not_the_smallest_repetition():
    made = choice(flat=(0.1, 3.0, 3.0), node=(2.0, 2.0, 9.0), hierarchical=(2.5, 2.5, 2.5))
    assert made.chosen == 1


def test_the_first_of_equal_ones_wins():
    assert choice(flat=(1.0, 1.0), node=(1.0, 1.0)).chosen == 0


def test_the_table_names_every_candidate_and_says_why():
    *rows, why = choice(flat=(0.3, 0.32, 0.31), hierarchical=(0.1, 0.2, 0.15)).lines()
    assert [row.split()[0] for row in rows] == ["flat", "hierarchical"]
    assert "310.0 ms (300.0 to 320.0, 2.07 x)" in rows[0]
    assert why == (
        "hierarchical is taken: it reduces and gathers all buckets in 150.0 ms, the median of 3; the next, flat, takes "
        "2.07 times as long"
    )


def test_the_record_beside_the_log_holds_all_repetitions():
    record = json.loads(json.dumps(choice(flat=(0.3, 0.1), node=(0.5, 0.7)).to_json()))
    assert record["chosen"] == "flat"
    assert record["seconds_per_step"][1] == {
        "strategy": "node",
        "shard_group": 2,
        "median": pytest.approx(0.6),
        "repetitions": [0.5, 0.7],
    }
