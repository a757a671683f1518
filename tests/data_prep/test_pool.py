"""Worker processes: how Ctrl-C meets their start, and ends of theirs that are none of the program's faults."""

import errno
import os
import signal
import threading
from typing import Any

import pytest

from bert_mlperf.data_prep import pool
from bert_mlperf.data_prep.pool import _interrupts_held, run_tasks
from bert_mlperf.errors import UserError


def end(how: str, progress: Any) -> None:
    if how == "memory":
        raise MemoryError
    os.kill(os.getpid(), signal.Signals[how])


def run(*tasks: str) -> None:
    run_tasks(tasks, work=end, workers=len(tasks), on_done=lambda *_: None, on_tick=lambda _: None)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("memory", "there is too little memory for memory; run the command again with fewer --workers"),
        ("SIGBUS", "was killed by SIGBUS, a sign that a file became shorter while it was read"),
        ("SIGKILL", "was killed by SIGKILL, often a sign of too little memory"),
    ],
)
def test_how_a_worker_ended(how: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        run(how)


def test_workers_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(pool.multiprocessing.get_context("spawn"), "Pipe", refuse)
    with pytest.raises(UserError, match=r"cannot be started: .*Too many open files; give fewer --workers, or allow"):
        run("memory")


def test_ctrl_c_waits_for_the_end_of_a_start_whichever_thread_takes_it() -> None:
    """The blocked set is that of this thread alone; without a handler the interrupt would come in the middle."""
    done = threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()
    before = signal.getsignal(signal.SIGINT)
    steps = []
    try:
        with pytest.raises(KeyboardInterrupt), _interrupts_held():
            os.kill(os.getpid(), signal.SIGINT)
            steps += [sum(range(1000)) for _ in range(1000)]
        assert len(steps) == 1000
    finally:
        done.set()
        other.join()
    assert signal.getsignal(signal.SIGINT) == before
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, set())
