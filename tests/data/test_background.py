import threading
from collections.abc import Iterator

import pytest

from bert_mlperf.data.background import Ahead, InBackground

SECONDS = 20


def test_a_result_is_computed_meanwhile() -> None:
    go = threading.Event()
    found = InBackground(lambda: go.wait(SECONDS) and 7)
    with pytest.raises(TimeoutError, match=r"not done within 0\.01 s"):
        found.result(timeout_s=0.01)
    go.set()
    assert [found.result(timeout_s=SECONDS) for _ in range(2)] == [7, 7]


def test_an_error_is_raised_where_the_result_is_wanted() -> None:
    def fail() -> int:
        raise ZeroDivisionError("why")

    with pytest.raises(ZeroDivisionError, match="why"):
        InBackground(fail).result(timeout_s=SECONDS)


class TestAhead:
    def test_items_come_in_order_and_as_far_ahead_as_asked(self) -> None:
        drawn: list[int] = []

        def items() -> Iterator[int]:
            for number in range(100):
                drawn.append(number)
                yield number

        ahead = Ahead(items(), depth=3)
        ahead.settle(timeout_s=SECONDS)
        assert drawn == [0, 1, 2]
        assert [next(ahead) for _ in range(5)] == [0, 1, 2, 3, 4]
        ahead.settle(timeout_s=SECONDS)
        assert drawn == list(range(8))
        ahead.close(timeout_s=SECONDS)
        with pytest.raises(StopIteration):
            next(ahead)

    def test_an_error_comes_after_the_items_before_it_and_stays(self) -> None:
        def items() -> Iterator[int]:
            yield from range(2)
            raise ZeroDivisionError

        ahead = Ahead(items(), depth=5)
        ahead.settle(timeout_s=SECONDS)
        assert [next(ahead), next(ahead)] == [0, 1]
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                next(ahead)
        ahead.close(timeout_s=SECONDS)

    def test_the_end_of_the_items_is_the_end(self) -> None:
        ahead = Ahead(iter([1]), depth=1)
        assert next(ahead) == 1
        with pytest.raises(StopIteration):
            next(ahead)

    def test_close_wakes_a_consumer_and_leaves_a_hanging_draw_behind(self) -> None:
        release = threading.Event()
        ahead = Ahead(iter(lambda: release.wait(SECONDS), None), depth=1)
        ended: list[str] = []

        def consume() -> None:
            try:
                next(ahead)
            except StopIteration:
                ended.append("end")

        consumer = threading.Thread(target=consume)
        consumer.start()
        ahead.close(timeout_s=0.01)
        consumer.join(SECONDS)
        release.set()
        assert ended == ["end"]
