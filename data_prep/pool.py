"""Tasks in worker processes: each is done once, and the end of a worker or of this process is never waited for in vain.

Workers are spawned (no state is inherited), ignore Ctrl-C, SIGTERM and SIGHUP (this process ends them) and die with it.
"""

import ctypes
import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

from bert_mlperf.errors import UserError

Progress = Callable[[int], None]
MEMORY_PER_WORKER = 700 << 20  # bytes, interpreter and libraries included
_POLL_SECONDS = 0.2
_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1  # <sys/prctl.h>


def default_workers(num_tasks: int) -> int:
    """Worker processes for `num_tasks`: one a task, but no more than there are cores or memory for."""
    cores = len(os.sched_getaffinity(0))
    return max(1, min(num_tasks, cores, available_memory() // MEMORY_PER_WORKER))


def available_memory() -> int:
    """Bytes of memory that this process may still use: of the machine, and of its control group if it has a limit."""
    with open("/proc/meminfo", encoding="ascii") as file:
        kilobytes = next(int(line.split()[1]) for line in file if line.startswith("MemAvailable:"))
    available = kilobytes << 10
    with suppress(OSError, ValueError):
        limit = int(_read("/sys/fs/cgroup/memory.max"))  # ValueError: "max", no limit
        available = min(available, limit - int(_read("/sys/fs/cgroup/memory.current")))
    return available


def run_tasks(
    tasks: Sequence[Any],
    *,
    work: Callable[[Any, Progress], Any],
    workers: int,
    on_done: Callable[[int, Any], None],
    on_tick: Callable[[int], None],
) -> None:
    """Calls work(task, progress) for every task in `workers` processes and on_done(index, result) here as each ends.

    `work` is a function of a module; what it reports through progress(n) is summed up for on_tick(sum), several times
    a second. Raises UserError if a task raised it or its worker was killed; the other workers are stopped then.
    """
    context = multiprocessing.get_context("spawn")
    with _said_if_not_started(), _interrupts_held():  # it starts a process, too
        counter = context.Value("q", 0)
    waiting = list(enumerate(tasks))[::-1]
    running: dict[Connection, tuple[SpawnProcess, int]] = {}
    started: list[SpawnProcess] = []
    try:
        for _ in range(min(workers, len(tasks))):
            with _said_if_not_started():
                here, there = context.Pipe()
                process = context.Process(target=_serve, args=(there, work, counter, os.getpid()), daemon=True)
                with _interrupts_held():
                    process.start()
                    started.append(process)
                there.close()
            running[here] = (process, _give(here, waiting))
        while running:
            for connection in wait(list(running), timeout=_POLL_SECONDS):
                assert isinstance(connection, Connection)
                process, index = running.pop(connection)
                on_done(index, _result(connection, process, tasks[index]))
                if waiting:
                    running[connection] = (process, _give(connection, waiting))
            on_tick(counter.value)
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.join()


def _give(connection: Connection, waiting: list[tuple[int, Any]]) -> int:
    index, task = waiting.pop()
    with suppress(OSError):  # of a dead worker: the read that follows finds it
        connection.send(task)
    return index


def _result(connection: Connection, process: SpawnProcess, task: Any) -> Any:
    try:
        kind, value = connection.recv()
    except (EOFError, OSError):
        process.join()
        code = process.exitcode or 0
        if code == -signal.SIGBUS:
            raise UserError(
                f"the worker process for {task} was killed by SIGBUS, a sign that a file became shorter while it was "
                "read; put it back and run the command again."
            ) from None
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        raise UserError(
            f"the worker process for {task} {how}, often a sign of too little memory; run the command again, it goes "
            "on where it stopped, with fewer --workers if memory is short."
        ) from None
    if kind == "bad input":
        raise UserError(value)
    if kind == "failed":
        raise RuntimeError(f"a worker process failed at {task}:\n{value}")
    return value


@contextmanager
def _said_if_not_started() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"the worker processes cannot be started: {error}; give fewer --workers, or allow more open files (ulimit "
            "-n), processes (ulimit -u) or room in /dev/shm."
        ) from None


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP wait for the end of the block, and processes that are started in it never get one: the
    blocked set is inherited. Blocking alone does not hold it, for a thread of some library may take the signal."""
    held: list[int] = []
    is_main = threading.current_thread() is threading.main_thread()
    handlers = {name: signal.getsignal(name) for name in _STOPS} if is_main else {}
    for name, handler in handlers.items():
        if handler != signal.SIG_IGN:
            signal.signal(name, lambda number, _: held.append(number))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for name, handler in handlers.items():
            signal.signal(name, handler if handler is not None else signal.SIG_DFL)
    if held:
        signal.raise_signal(held[0])


def _serve(connection: Connection, work: Callable[[Any, Progress], Any], counter: Any, parent: int) -> None:
    """The life of a worker: a task in, a result out, until the other end is closed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one core a worker

    def progress(amount: int) -> None:
        with counter.get_lock():
            counter.value += amount

    while os.getppid() == parent:
        try:
            task = connection.recv()
        except EOFError:
            return
        connection.send(_attempt(work, task, progress))


def _attempt(work: Callable[[Any, Progress], Any], task: Any, progress: Progress) -> tuple[str, Any]:
    try:
        return "done", work(task, progress)
    except UserError as error:
        return "bad input", str(error)
    except MemoryError:
        return "bad input", f"there is too little memory for {task}; run the command again with fewer --workers."
    except Exception:
        return "failed", traceback.format_exc()


def _read(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read()
