"""DALI's CPU pipeline, which is the one for the GPU but for the copy."""

import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
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


def num_threads() -> int:
    """Of this process, those of libraries too."""
    return len(list(Path("/proc/self/task").iterdir()))


def drawn(stage: DaliStage) -> dict[str, torch.Tensor]:
    return {name: torch.from_dlpack(value) for name, value in next(stage).items()}


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, np.ndarray]) -> None:
    for name, values in expected.items():
        assert found[name].dtype == getattr(torch, DTYPES[name])
        np.testing.assert_array_equal(found[name].numpy(), values)


def failing(error: BaseException, *, at: int) -> Callable[[], dict[str, np.ndarray]]:
    """A source that raises `error` instead of its micro-batch `at`, and must not be called again."""
    source = micro_batches(count=at)

    def call() -> dict[str, np.ndarray]:
        for arrays in source:
            return arrays
        assert not calls, "called after its error"
        calls.append(at)
        raise error

    calls: list[int] = []
    return call


@needs_dali
@pytest.mark.parametrize("prefetch", [1, 2, 4])
def test_micro_batches_come_in_order_widened(prefetch: int) -> None:
    source = micro_batches()
    stage = DaliStage(lambda: next(source), dtypes=DTYPES, device_id=None, prefetch=prefetch)
    held = [drawn(stage) for _ in range(25)]
    stage.close()
    for found, expected in zip(held, micro_batches(), strict=False):
        assert_same(found, expected)
    assert held[1]["segments"].shape == (0,)
    with pytest.raises(StopIteration):
        next(stage)


@needs_dali
def test_what_is_held_stays_valid_while_others_are_drawn_and_let_go() -> None:
    source = micro_batches()
    stage = DaliStage(lambda: next(source), dtypes=DTYPES, device_id=None)
    held = [drawn(stage) for _ in range(5)]
    for _ in range(20):
        drawn(stage)
    stage.close()
    for found, expected in zip(held, micro_batches(), strict=False):
        assert_same(found, expected)


@needs_dali
def test_the_source_may_use_its_arrays_again_and_none_may_be_written_or_lie_apart() -> None:
    ids = np.zeros(8, dtype=np.int32)
    segments = np.frombuffer(bytes([0, 1, 1]), dtype=np.uint8)  # read-only

    def source() -> dict[str, np.ndarray]:
        ids[:] += 1
        return {"ids": ids[::2], "segments": segments, "samples": ids}

    stage = DaliStage(source, dtypes=DTYPES, device_id=None)
    for number in range(1, 6):
        expected = {"ids": np.full(4, number), "segments": np.array([0, 1, 1]), "samples": np.full(8, number)}
        assert_same(drawn(stage), expected)
    stage.close()


@needs_dali
@pytest.mark.parametrize("prefetch", [1, 3])
def test_a_dtype_may_become_wider_or_narrower(prefetch: int) -> None:
    """Published shards keep their int32 beside our uint16."""
    ids = [
        np.array([7 + number], dtype) for number, dtype in enumerate(["uint16", "uint16", "int32", "uint8", "int64"])
    ]
    ids[4][0] = (1 << 40) + 1
    source = iter(ids)
    stage = DaliStage(lambda: {"ids": next(source)}, dtypes={"ids": "int64"}, device_id=None, prefetch=prefetch)
    assert [drawn(stage)["ids"].tolist() for _ in ids] == [[7], [8], [9], [10], [(1 << 40) + 1]]
    with pytest.raises(StopIteration):
        next(stage)
    stage.close()


@needs_dali
@pytest.mark.parametrize("prefetch", [1, 2, 4])
@pytest.mark.parametrize("at", [0, 1, 10])
@pytest.mark.parametrize(
    "error", [UserError("part_3.hdf5 is gone; put it back."), OSError(5, "input/output error"), StopIteration("end")]
)
def test_an_error_of_the_source_is_raised_as_it_is_behind_what_came_before(
    error: Exception, at: int, prefetch: int
) -> None:
    stage = DaliStage(failing(error, at=at), dtypes=DTYPES, device_id=None, prefetch=prefetch)
    for expected in micro_batches(count=at):
        assert_same(drawn(stage), expected)
    for _ in range(2):
        with pytest.raises(type(error)) as raised:
            next(stage)
        assert raised.value is error
    stage.close()


@needs_dali
def test_an_interrupt_does_not_wait_for_what_came_before() -> None:
    stage = DaliStage(failing(KeyboardInterrupt(), at=2), dtypes=DTYPES, device_id=None, prefetch=4)
    with pytest.raises(KeyboardInterrupt):
        next(stage)
    stage.close()


@needs_dali
def test_close_leaves_no_threads() -> None:
    source = micro_batches(count=1)
    gc.collect()  # pipelines of the tests before
    before = num_threads()
    stage = DaliStage(lambda: next(source), dtypes=DTYPES, device_id=None)
    held = next(stage)
    assert num_threads() > before
    with pytest.raises(StopIteration):  # raised anew by the source: who holds an error holds its frames
        next(stage)
    stage.close()
    stage.close()
    gc.collect()
    assert num_threads() == before
    assert len(held) == len(DTYPES)


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
