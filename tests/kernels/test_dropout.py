"""The dropout counter: known answers, the rates it gives, what it depends on, and the same masks in Triton and C++."""

import pytest
import torch

from bert_mlperf.kernels.dropout import (
    Dropout,
    Site,
    StepDropout,
    keep_attention,
    keep_hidden,
    keep_tile,
    philox,
    site_key,
)
from bert_mlperf.kernels.jit import HAS_TRITON, jit, tl


def rows(num_rows: int, **changes: object) -> Dropout:
    positions = torch.arange(num_rows, dtype=torch.int32)
    values = {"probability": 0.1, "key": 2**62 + 5, "samples_R": positions // 7, "positions_R": positions % 7}
    return Dropout(**values | changes)


@pytest.mark.parametrize(
    "word, key, expected",
    [  # the known answers that come with Random123
        (0, 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (0xFFFFFFFF, 2**64 - 1, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ],
)
def test_philox_gives_the_known_answers(word, key, expected):
    assert philox((word,) * 4, key) == expected
    tensors = tuple(torch.tensor([word]) for _ in range(4))
    assert tuple(int(x) for x in philox(tensors, key)) == expected


def test_values_are_dropped_at_the_rate_and_scaled_to_keep_the_mean():
    for probability in (0.1, 0.5):
        dropout = rows(512, probability=probability)
        kept = keep_hidden(dropout, 1000).double()
        deviation = (probability * (1 - probability) / kept.numel()) ** 0.5
        assert abs(kept.mean() - (1 - probability)) < 5 * deviation
        assert abs((kept * dropout.scale).mean() - 1) < 5 * deviation * dropout.scale


def test_a_mask_depends_on_seed_step_layer_and_site():
    keys = [site_key(*wanted) for wanted in ((1, 2, 3, Site.OUTPUT), (9, 2, 3, Site.OUTPUT), (1, 9, 3, Site.OUTPUT))]
    keys += [site_key(1, 2, 9, Site.OUTPUT), site_key(1, 2, 3, Site.ATTENTION), site_key(1, 2 + 2**32, 3, Site.OUTPUT)]
    assert len(set(keys)) == len(keys) and all(2**62 <= key < 2**63 for key in keys)
    masks = [keep_hidden(rows(8, key=key), 64) for key in keys]
    assert not any(torch.equal(masks[0], other) for other in masks[1:])


def test_a_row_has_the_same_mask_wherever_it_lies_and_however_many_columns_are_asked_for():
    whole = keep_hidden(rows(21), 100)
    part = StepDropout(0, 0, rows(21).samples_R, rows(21).positions_R).of_rows(torch.tensor([20, 3]))
    again = keep_hidden(rows(2, samples_R=part.samples_R, positions_R=part.positions_R), 37)
    assert torch.equal(again, whole[[20, 3], :37])


def test_heads_have_masks_of_their_own():
    assert not torch.equal(keep_attention(rows(16), 0, 64), keep_attention(rows(16), 1, 64))


def test_nothing_to_drop_is_none():
    step = StepDropout(0, 0, rows(1).samples_R, rows(1).positions_R)
    assert step.at(0, Site.OUTPUT, 0.0) is None
    assert step.at(0, Site.OUTPUT, 0.1).threshold == 6554


@jit(do_not_specialize=["key", "threshold", "last"])
def _masks(out, positions, samples, key, threshold, last, R: tl.constexpr, G: tl.constexpr):
    row, group = tl.arange(0, R), tl.arange(0, G)
    positions_R1, samples_R1 = tl.load(positions + row)[:, None], tl.load(samples + row)[:, None]
    keep = keep_tile(key, group[None, :], positions_R1, samples_R1, last, threshold)
    tl.store(out + row[:, None] * (8 * G) + tl.arange(0, 8 * G)[None, :], keep.to(tl.int8))


@pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed")
def test_triton_gives_the_same_masks():
    dropout = rows(16, samples_R=torch.arange(16, dtype=torch.int32) * 123_456_789)
    out = torch.empty(16, 64, dtype=torch.int8)
    _masks[(1,)](out, dropout.positions_R, dropout.samples_R, dropout.key, dropout.threshold, 3, R=16, G=8)
    assert torch.equal(out.bool(), keep_attention(dropout, 3, 64))
