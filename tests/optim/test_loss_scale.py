"""The dynamic loss scale: back-off, growth, floor, counts."""

import torch

from bert_mlperf.optim import loss_scale
from bert_mlperf.optim.loss_scale import CEILING, FLOOR, GROWTH_INTERVAL, START, LossScale

GOOD, BAD = torch.tensor(False), torch.tensor(True)


def scale_after(*steps: torch.Tensor) -> LossScale:
    scale = LossScale(torch.device("cpu"), dynamic=True)
    for step in steps:
        scale.update(step)
    return scale


def test_a_bad_step_halves_and_good_ones_in_a_row_double():
    assert scale_after().value == START
    assert scale_after(BAD).value == START / 2
    assert scale_after(*[GOOD] * (GROWTH_INTERVAL - 1)).value == START
    assert scale_after(*[GOOD] * GROWTH_INTERVAL).value == 2 * START
    assert scale_after(*[GOOD] * 2 * GROWTH_INTERVAL).value == 4 * START
    assert scale_after(*[GOOD] * (GROWTH_INTERVAL - 1), BAD, *[GOOD] * (GROWTH_INTERVAL - 1)).value == START / 2


def test_there_is_a_floor_and_a_ceiling(monkeypatch):
    assert scale_after(*[BAD] * 60).value == FLOOR
    monkeypatch.setattr(loss_scale, "GROWTH_INTERVAL", 1)
    assert scale_after(*[GOOD] * 60).value == CEILING


def test_skips_are_counted():
    scale = scale_after(BAD, BAD, GOOD, BAD)
    assert (scale.skips, scale.skips_in_row) == (3, 1)
    assert scale_after(BAD, GOOD).skips_in_row == 0
    scale.reset()
    assert (scale.value, scale.skips, scale.skips_in_row, scale.good_steps) == (START, 0, 0, 0)


def test_without_fp16_the_scale_is_one():
    scale = LossScale(torch.device("cpu"), dynamic=False)
    scale.update(BAD)
    assert (scale.value, scale.skips) == (1, 0)
