"""DALI's CPU pipeline, which is the one for the GPU but for the copy."""

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from bert_mlperf.data import dali
from bert_mlperf.data.dali import DaliStage, dali_missing
from bert_mlperf.errors import UserError

needs_dali = pytest.mark.skipif(dali_missing() is not None, reason=str(dali_missing()))
DTYPES = {"ids": "int64", "segments": "int64", "samples": "int32"}


def micro_batches(seed: int = 0, count: int = 1000) -> Iterator[dict[str, np.ndarray]]:
    """Of varying length, the second one without any segment."""
    generator = np.random.default_rng(seed)
    for number in range(count):
        length = int(generator.integers(1, 2000))
        yield {
            "ids": generator.integers(0, 1 << 16, length).astype(np.uint16),
            "segments": generator.integers(0, 2, 0 if number == 1 else length).astype(np.uint8),
            "samples": np.full(length, -number, dtype=np.int32),
        }


def drawn(stage: DaliStage) -> dict[str, torch.Tensor]:
    return {name: torch.from_dlpack(value) for name, value in next(stage).items()}


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, np.ndarray]) -> None:
    for name, values in expected.items():
        assert found[name].dtype == getattr(torch, DTYPES[name])
        np.testing.assert_array_equal(found[name].numpy(), values)


@needs_dali
@pytest.mark.parametrize("prefetch", [1, 2, 4])
def test_micro_batches_come_in_order_widened_and_stay_valid(prefetch: int) -> None:
    source = micro_batches()
    stage = DaliStage(lambda: next(source), dtypes=DTYPES, device_id=None, prefetch=prefetch)
    held = [drawn(stage) for _ in range(25)]
    stage.close()
    for found, expected in zip(held, micro_batches(), strict=False):
        assert_same(found, expected)
    with pytest.raises(StopIteration):
        next(stage)


@needs_dali
def test_an_error_of_the_source_reaches_the_consumer() -> None:
    source = micro_batches()

    def failing() -> Any:
        arrays = next(source)
        if arrays["samples"][0] == -10:
            raise UserError("part_3.hdf5 is gone; put it back.")
        return arrays

    stage = DaliStage(failing, dtypes=DTYPES, device_id=None)
    with pytest.raises(UserError, match=r"part_3\.hdf5 is gone"):
        for _ in range(20):
            next(stage)
    stage.close()


def test_dali_is_missing_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dali, "find_spec", lambda name: None)
    assert dali_missing() == "DALI is not installed"


@needs_dali
def test_dali_for_another_cuda_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("nvidia.dali")]:
        monkeypatch.delitem(sys.modules, name)

    class Refusing:
        def find_spec(self, name: str, *_: Any) -> None:
            if name == "nvidia.dali.fn":
                raise OSError("libcudart.so.99:\n cannot open")

    monkeypatch.setattr(sys, "meta_path", [Refusing(), *sys.meta_path])
    assert dali_missing() == "DALI cannot be imported (libcudart.so.99: cannot open)"
