"""What strategies send: theory by hand, and the interface counters of emulated hosts beside it."""

import pytest

from bert_mlperf.bench.comm import Row, layout_of, rows_of
from bert_mlperf.bench.hosts import emulated_hosts, why_not
from bert_mlperf.bench.ranks import run_on_hosts, run_on_loopback
from bert_mlperf.bench.traffic import bytes_sent
from bert_mlperf.cli import main
from bert_mlperf.comm.reduction import STRATEGIES
from bert_mlperf.errors import UserError

REASON = why_not()
with_namespaces = pytest.mark.skipif(REASON is not None, reason=str(REASON))
GRADIENTS = 3_000_000


@pytest.mark.parametrize(
    ("strategy", "hosts", "ranks", "megabytes"),
    [
        ("flat", 2, 2, 33.6 + 33.6),
        ("node", 2, 2, 50.4),
        ("hierarchical", 2, 2, 33.6),
        ("flat", 4, 1, 25.2 + 25.2),
        ("node", 4, 1, 50.4),
        ("hierarchical", 4, 1, 50.4),
        ("flat", 8, 8, 2 * 7 * 33.6),
        ("hierarchical", 8, 8, 58.8),
    ],
)
def test_theory_by_hand(strategy, hosts, ranks, megabytes):
    sent = bytes_sent(strategy, hosts=hosts, ranks_per_host=ranks, gradients=33.6, weights=33.6)
    assert sent == pytest.approx(megabytes)


def test_bf16_gradients_and_fp32_weights_count_as_they_are():
    assert bytes_sent("flat", hosts=2, ranks_per_host=1, gradients=2.0, weights=4.0) == 1.0 + 2.0


def test_buckets_hold_the_gradients():
    layout = layout_of(33_600_000, 4)
    assert sum(s.end - s.start for s in layout.slots.values()) == 8_400_000
    assert len(layout.buckets) == 2


@with_namespaces
def test_counters_agree_with_theory():
    job = {"ranks_per_host": 1, "gradients": GRADIENTS}
    with emulated_hosts(2, mbit=1000) as hosts:
        results = run_on_hosts("bert_mlperf.bench.comm:measure", job, hosts=hosts, ranks_per_host=1)
    rows = rows_of(results, **job, counted=True)
    assert [row.strategy for row in rows] == list(STRATEGIES)
    for row in rows:
        assert row.sent == pytest.approx(row.expected, rel=0.08)
    assert results[0]["auto"]["chosen"] == results[1]["auto"]["chosen"]


@with_namespaces
def test_a_reduce_scatter_sends_no_more_than_it_must():
    with emulated_hosts(3, mbit=1000) as hosts:
        job = {"gradients": GRADIENTS}
        sent = run_on_hosts("bert_mlperf.bench.comm:reduce_scatter", job, hosts=hosts, ranks_per_host=1)
    assert all(0.95 <= value / (2 / 3 * GRADIENTS) <= 1.1 for value in sent)


def test_without_counters_there_is_no_traffic_to_report():
    job = {"ranks_per_host": 2, "gradients": GRADIENTS}
    results = run_on_loopback(
        "bert_mlperf.bench.comm:measure", job | {"counters": False}, num_hosts=2, ranks_per_host=2
    )
    rows = rows_of(results, **job, counted=False)
    assert all(isinstance(row, Row) and row.sent is None and min(row.seconds) > 0 for row in rows)


def test_a_rank_that_fails_is_named():
    with pytest.raises(UserError, match=r"rank \d of the benchmark failed with exit code 1: .*no_such_function"):
        run_on_loopback("bert_mlperf.bench.comm:no_such_function", {}, num_hosts=1, ranks_per_host=2)


@pytest.mark.parametrize(
    "arguments",
    [["--mbit", "0"], ["--mbit", "nan"], ["--hosts", "1"], ["--ranks", "0"], ["--megabytes", "-3"]],
)
def test_bad_sizes_are_one_sentence(arguments, capsys):
    assert main(["bench", "comm", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1 and arguments[0] in error
