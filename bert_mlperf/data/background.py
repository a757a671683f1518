"""Work of the data side in threads of their own: one result, or an iterator drawn ahead."""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar, cast

T = TypeVar("T")


class InBackground(Generic[T]):
    """The result of a function that a thread computes meanwhile."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._found: T | None = None
        self._error: BaseException | None = None
        self._function = function
        self._thread = threading.Thread(target=self._work, name="in background", daemon=True)
        self._thread.start()

    def result(self, *, timeout_s: float) -> T:
        """The result, or the error of the function, raised. TimeoutError if it takes longer than `timeout_s` seconds
        from now on."""
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise TimeoutError(f"it was not done within {timeout_s:g} s")
        if self._error is not None:
            raise self._error
        return cast(T, self._found)

    def _work(self) -> None:
        try:
            self._found = self._function()
        except BaseException as error:  # raised where the result is wanted
            self._error = error


class Ahead(Generic[T]):
    """Draws from `items` in a thread, `depth` ahead. Its error is raised in the consumer, after the items before it."""

    def __init__(self, items: Iterator[T], *, depth: int) -> None:
        self._items = items
        self._depth = depth
        self._ready: deque[T] = deque()
        self._end: BaseException | None = None
        self._stop = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="ahead", daemon=True)
        self._thread.start()

    def __next__(self) -> T:
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._end is not None or self._stop)
            if self._stop:
                raise StopIteration
            if not self._ready:
                raise cast(BaseException, self._end)
            item = self._ready.popleft()
            self._changed.notify_all()
        return item

    def settle(self, *, timeout_s: float) -> None:
        """Waits until the thread has drawn as far ahead as it does, or has failed."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._ready) == self._depth or self._end is not None, timeout_s)

    def close(self, *, timeout_s: float) -> None:
        """Ends the thread and the iteration. A thread that hangs for more than `timeout_s` seconds is left behind, as
        it is a daemon."""
        with self._changed:
            self._stop = True
            self._changed.notify_all()
        self._thread.join(timeout_s)

    def _work(self) -> None:
        end: BaseException = StopIteration()
        try:
            while self._has_room():
                item = next(self._items)
                with self._changed:
                    self._ready.append(item)
                    self._changed.notify_all()
        except BaseException as error:  # handed over whatever it is: the consumer must never wait for a dead thread
            end = error
        with self._changed:
            self._end = end
            self._changed.notify_all()

    def _has_room(self) -> bool:
        """Waits for room; False if the consumer has closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._stop or len(self._ready) < self._depth)
            return not self._stop
