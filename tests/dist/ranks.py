"""Runs a function on several gloo ranks of this machine and collects what each returns."""

import multiprocessing
import queue
import tempfile
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from bert_mlperf.comm.control import Control

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["torch", "torch.distributed", "bert_mlperf.train.setup"])


def run_ranks(
    world_size: int, function: Callable[..., Any], *arguments: Any, timeout_s: float = 120, lost: tuple[int, ...] = ()
) -> list[Any]:
    """`function(control, *arguments)` on ranks 0..world_size-1; their results by rank. A rank that fails or hangs
    fails the caller, but for the `lost` ones: no answer of theirs is waited for (None). `function` must be importable.
    """
    results: Any = CONTEXT.Queue()
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            CONTEXT.Process(
                target=_rank, args=(rank, world_size, f"{folder}/store", results, function, arguments), daemon=True
            )
            for rank in range(world_size)
        ]
        for process in processes:
            process.start()
        try:
            collected = dict(results.get(timeout=timeout_s) for _ in range(world_size - len(lost)))
        except queue.Empty:
            raise AssertionError(f"a rank of {world_size} did not answer within {timeout_s} s") from None
        finally:
            for rank, process in enumerate(processes):
                process.join(timeout=0 if rank in lost else 5)
                process.kill()
    errors = [value for value in collected.values() if isinstance(value, BaseException)]
    if errors:
        raise errors[0]
    return [collected.get(rank) for rank in range(world_size)]


def _rank(rank: int, world_size: int, store: str, results: Any, function: Callable[..., Any], arguments: tuple) -> None:
    torch.set_num_threads(1)
    try:
        if world_size > 1:
            dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)
        results.put((rank, function(Control(rank=rank, world_size=world_size), *arguments)))
    except BaseException as error:
        results.put((rank, error))
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
