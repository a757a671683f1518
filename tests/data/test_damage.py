"""Files damaged at random: read or refused in one sentence, never a traceback."""

from pathlib import Path

import h5py
import numpy as np
import pytest

from bert_mlperf.data.parts import open_part
from bert_mlperf.data.published import detect_layout
from bert_mlperf.errors import UserError
from tests.data.files import LAYOUT_WRITERS, MAX_LENGTH, VOCAB_SIZE, make_samples


def outcome(path: Path) -> str:
    """What becomes of an attempt to read the file: "read", or what it is refused with."""
    try:
        part = open_part(path, detect_layout(path))
        part.count_samples()
        for chunk in part.chunks(3):
            chunk.validate(VOCAB_SIZE, MAX_LENGTH, where=str(path))
    except UserError as error:
        return str(error)
    return "read"


@pytest.mark.parametrize("layout", LAYOUT_WRITERS)
def test_cut_anywhere(tmp_path: Path, layout: str) -> None:
    path = tmp_path / "a"
    LAYOUT_WRITERS[layout](path, make_samples([9, 40, 12, 100, 7]))
    content = path.read_bytes()
    for size in np.random.default_rng(0).integers(1, len(content), 60):
        path.write_bytes(content[:size])
        found = outcome(path)
        assert found.startswith(str(path)) and "\n" not in found, (size, found)


@pytest.mark.parametrize("layout", ["fixed-length HDF5", "TFRecord"])
def test_bytes_changed_anywhere(tmp_path: Path, layout: str) -> None:
    """Of HDF5 the structures are hit as often as the data. Ragged rows are not tried: HDF5 itself never returns from a
    damaged heap of theirs now and then."""
    path = tmp_path / "a"
    LAYOUT_WRITERS[layout](path, make_samples([9, 40, 12, 100, 7]))
    content, rng = path.read_bytes(), np.random.default_rng(1)
    filled = np.flatnonzero(np.frombuffer(content, np.uint8))
    outcomes = []
    for _ in range(200):
        damaged = bytearray(content)
        for at in rng.choice(filled, 3):
            damaged[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        outcomes.append(outcome(path))
        assert outcomes[-1] == "read" or (outcomes[-1].startswith(str(path)) and "\n" not in outcomes[-1])
    refused = sum(found != "read" for found in outcomes)
    assert refused == 200 if layout == "TFRecord" else 50 < refused < 200


def test_a_group_or_a_scalar_in_place_of_a_field(tmp_path: Path) -> None:
    path = tmp_path / "a"
    for name in ("input_ids", "masked_lm_ids", "next_sentence_labels"):
        for value in (None, np.int8(3)):
            LAYOUT_WRITERS["fixed-length HDF5"](path, make_samples([9, 40]))
            with h5py.File(path, "r+") as file:
                del file[name]
                if value is None:
                    file.create_group(name)
                else:
                    file[name] = value
            found = outcome(path)
            assert found.startswith(str(path)) and "\n" not in found
