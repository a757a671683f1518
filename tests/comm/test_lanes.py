"""Lanes: work is done in order, beside the caller, and its errors arrive where they are waited for."""

import gc
import threading
import time

import pytest
import torch

from bert_mlperf.comm.lanes import Lane
from bert_mlperf.comm.recorder import Recorder

CPU = torch.device("cpu")


def make_lane(*, overlap: bool = True, recorder: Recorder | None = None) -> Lane:
    return Lane("reduce", CPU, overlap=overlap, recorder=recorder or Recorder(CPU))


@pytest.mark.parametrize("overlap", [True, False])
def test_work_is_done_in_the_order_it_is_handed_in(overlap: bool) -> None:
    lane, done = make_lane(overlap=overlap), []
    pending = [lane.submit(lambda i=i: done.append(i), name=f"reduce {i}") for i in range(50)]
    pending[-1].wait()
    assert done == list(range(50))
    for item in pending:
        item.wait()  # once more does no harm


def test_the_caller_goes_on_meanwhile() -> None:
    lane, may_end = make_lane(), threading.Event()
    pending = lane.submit(lambda: assert_set(may_end), name="reduce 0")
    may_end.set()  # a lane in this thread would not come here
    pending.wait()


def assert_set(event: threading.Event) -> None:
    assert event.wait(timeout=20)


@pytest.mark.parametrize("overlap", [True, False])
def test_an_error_is_raised_and_the_lane_goes_on(overlap: bool) -> None:
    lane, done = make_lane(overlap=overlap), []

    def fail() -> None:
        raise RuntimeError("the other rank is gone")

    with pytest.raises(RuntimeError, match="the other rank is gone"):
        lane.submit(fail, name="reduce 0").wait()
    lane.submit(lambda: done.append(1), name="reduce 1").wait()
    assert done == [1]


def test_no_gradient_is_kept_for_work_of_a_lane() -> None:
    weights = torch.ones(3, requires_grad=True)
    results: list[torch.Tensor] = []
    make_lane().submit(lambda: results.append(weights * 2), name="gather 0").wait()
    assert not results[0].requires_grad


def test_the_recorder_notes_what_is_done_while_it_is_on() -> None:
    recorder = Recorder(CPU)
    lane = make_lane(recorder=recorder)
    lane.submit(lambda: None, name="reduce 0").wait()
    before = time.time()
    recorder.start()
    lane.submit(lambda: time.sleep(0.02), name="reduce 1").wait()
    with recorder.span("compute", "update"):
        time.sleep(0.01)
    spans = recorder.stop()
    lane.submit(lambda: None, name="reduce 2").wait()
    assert [(span.lane, span.name) for span in spans] == [("reduce", "reduce 1"), ("compute", "update")]
    assert all(before - 1 < span.start < span.end < time.time() + 1 for span in spans)
    assert spans[0].end - spans[0].start >= 0.02 and spans[0].end <= spans[1].start
    recorder.start()
    assert recorder.stop() == []


def test_the_thread_ends_with_the_lane() -> None:
    before = set(threading.enumerate())
    lane = make_lane()
    lane.submit(lambda: None, name="reduce 0").wait()
    (thread,) = set(threading.enumerate()) - before
    del lane
    gc.collect()
    thread.join(timeout=10)
    assert not thread.is_alive()
