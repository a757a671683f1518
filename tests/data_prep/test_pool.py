"""Worker processes: how Ctrl-C meets their start."""

import os
import signal
import threading

import pytest

from bert_mlperf.data_prep.pool import _interrupts_held


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
