import math

import pytest

from bert_mlperf.config import rules
from bert_mlperf.errors import UserError


@pytest.mark.parametrize(
    ("batch", "interval"),
    [
        (96, 150_000),
        (448, 150_000),
        (2048, 150_000),
        (3072, 175_000),
        (4096, 175_000),
        (4608, 200_000),
        (6144, 200_000),
        (8192, 225_000),
        (12288, 275_000),
        (16384, 325_000),
    ],
)
def test_interval_of_published_batches(batch: int, interval: int) -> None:
    assert rules.eval_interval_samples(batch) == interval


def test_interval_equals_the_formula_in_floating_point() -> None:
    for batch in range(1, 20_000, 7):
        formula = math.floor(0.05 * (230.23 * batch + 3_000_000) / 25_000) * 25_000
        assert rules.eval_interval_samples(batch) == formula


def test_points_are_rounded_up_to_whole_batches_from_exact_multiples() -> None:
    points = rules.evaluation_points(150_000, global_batch_size=448, max_samples=900_000)
    assert points == [150_080, 300_160, 450_240, 600_320, 750_400, 900_032]  # 900,032, not 6 * 150,080


def test_last_point_is_max_samples_rounded_up_to_a_batch() -> None:
    assert rules.evaluation_points(100, global_batch_size=32, max_samples=250) == [128, 224, 256]
    assert rules.evaluation_points(100, global_batch_size=32, max_samples=201) == [128, 224]
    assert rules.evaluation_points(100, global_batch_size=32, max_samples=7) == [32]
    assert rules.evaluation_points(100, global_batch_size=50, max_samples=200) == [100, 200]


def test_an_interval_below_the_batch_gives_every_batch_once() -> None:
    assert rules.evaluation_points(3, global_batch_size=10, max_samples=40) == [10, 20, 30, 40]


@pytest.mark.parametrize("name", rules.ROUNDS)
def test_every_round_is_known_to_the_official_checker(name: str) -> None:
    from mlperf_logging.compliance_checker.mlp_compliance import rule_choices

    assert name in rule_choices()
    assert rules.parse_round(name) == name


def test_a_round_may_be_given_short() -> None:
    assert rules.parse_round("5.0") == "5.0.0"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("5.1.0", "has no BERT: the benchmark was retired after 5.0.0"),
        ("6.1", "Round 6.1.0 has no BERT"),
        ("0.6.0", "has no rules for BERT"),
        ("latest", "'latest' is not a version number"),
    ],
)
def test_other_rounds_are_refused_by_name(name: str, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        rules.parse_round(name)


def test_targets() -> None:
    assert rules.quality_target("5.0.0", 16384) == 0.72
    assert rules.quality_target("0.7.0", 448) == 0.712
    assert rules.quality_target("0.7.0", 8192) == 0.706


def test_masked_tokens_of_a_sample() -> None:
    assert rules.max_predictions(512) == 76
    assert rules.max_predictions(64) == 10
    assert rules.max_predictions(4) == 1
