import hashlib
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_mlperf.data.samples import Samples
from bert_mlperf.data_prep.fingerprint import fingerprint, official_input_ids_md5
from tests.data.files import make_samples
from tests.data_prep.layout_files import ENDINGS, read_file, write_layout

SAMPLES = make_samples([9, 3, 512, 128, 40, 5, 77])
NAMES = [field.name for field in fields(Samples)]


def cut_at(samples: Samples, cuts: list[int]) -> list[Samples]:
    borders = [0, *sorted(cuts), samples.num_samples]
    return [samples.take(np.arange(start, end)) for start, end in pairwise(borders)]


@given(cuts=st.lists(st.integers(0, 7), max_size=5))
def test_pieces_give_the_fingerprint_of_the_whole(cuts: list[int]) -> None:
    pieces = cut_at(SAMPLES, cuts)
    assert fingerprint(pieces) == fingerprint([SAMPLES])
    assert official_input_ids_md5(pieces) == official_input_ids_md5([SAMPLES])


def test_each_field_is_the_sha256_of_its_values() -> None:
    found = fingerprint(cut_at(SAMPLES, [2, 3]))
    assert list(found) == NAMES
    for name in NAMES:
        assert found[name] == hashlib.sha256(getattr(SAMPLES, name).astype("<i8").tobytes()).hexdigest()


@pytest.mark.parametrize("name", NAMES)
def test_a_change_shows_in_its_field_alone(name: str) -> None:
    changed = getattr(SAMPLES, name).copy()
    changed[3] ^= 1
    before, after = fingerprint([SAMPLES]), fingerprint([replace(SAMPLES, **{name: changed})])
    assert [other for other in NAMES if before[other] != after[other]] == [name]


def test_the_order_of_samples_matters() -> None:
    before, after = fingerprint([SAMPLES]), fingerprint([SAMPLES.take(np.array([1, 0, 2, 3, 4, 5, 6]))])
    assert before["input_ids"] != after["input_ids"] and before["offsets"] != after["offsets"]


@pytest.mark.parametrize("layout", [layout for layout in ENDINGS if layout != "packed"])
def test_the_layout_does_not_matter(tmp_path: Path, layout: str) -> None:
    found = read_file(write_layout(tmp_path / "a", SAMPLES, layout), rows=3)
    assert fingerprint([found]) == fingerprint([SAMPLES])
    assert official_input_ids_md5([found]) == official_input_ids_md5([SAMPLES])


def test_published_checksum_as_submissions_compute_it() -> None:
    """md5 of the printed list of the md5 of each printed row, padding not included."""
    sums = []
    for i in range(SAMPLES.num_samples):
        row = SAMPLES.input_ids[SAMPLES.offsets[i] : SAMPLES.offsets[i + 1]].tolist()
        sums.append(hashlib.md5(str(row).encode("utf-8")).hexdigest())
    assert official_input_ids_md5([SAMPLES]) == hashlib.md5(str(sums).encode("utf-8")).hexdigest()


def test_of_no_samples() -> None:
    none = SAMPLES.take(np.array([], int))
    assert fingerprint([none]) == fingerprint([])
    assert official_input_ids_md5([]) == hashlib.md5(b"[]").hexdigest()
