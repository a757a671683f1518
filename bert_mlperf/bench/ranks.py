"""Runs a function on ranks of (emulated) hosts: what `rank.py` does in each process, from the outside."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bert_mlperf.bench.hosts import INTERFACE, Host
from bert_mlperf.errors import UserError
from bert_mlperf.ranks import ENVIRONMENT
from bert_mlperf.train.stop import LAUNCHER

_PORT = 29400  # inside a namespace every port is free
_LOOPBACK = "127.0.0.1"


def run_on_hosts(
    function: str, arguments: dict[str, Any], *, hosts: Sequence[Host], ranks_per_host: int, timeout_s: float = 600.0
) -> list[Any]:
    """`function` ("package.module:name", called with a Control and the JSON-able `arguments`) on `ranks_per_host` ranks
    of each host; what it returned (JSON-able), by rank. UserError if a rank fails, or after `timeout_s` seconds."""
    places = [(host.address, INTERFACE, host.command) for host in hosts for _ in range(ranks_per_host)]
    return _run(function, arguments, places, hosts[0].address, _PORT, ranks_per_host, timeout_s)


def run_on_loopback(
    function: str, arguments: dict[str, Any], *, num_hosts: int, ranks_per_host: int, timeout_s: float = 600.0
) -> list[Any]:
    """The same with all ranks on this host as it is, as if there were `num_hosts`."""
    places = num_hosts * ranks_per_host * [(_LOOPBACK, "lo", list)]
    return _run(function, arguments, places, _LOOPBACK, _free_port(), ranks_per_host, timeout_s)


def _run(
    function: str,
    arguments: dict[str, Any],
    places: Sequence[tuple[str, str, Any]],
    master: str,
    port: int,
    ranks_per_host: int,
    timeout_s: float,
) -> list[Any]:
    with tempfile.TemporaryDirectory(prefix="bert-mlperf-bench-") as folder:
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for rank, (_, interface, command) in enumerate(places):
                environment = (
                    ENVIRONMENT
                    | os.environ
                    | {
                        "RANK": str(rank),
                        "LOCAL_RANK": str(rank % ranks_per_host),
                        "WORLD_SIZE": str(len(places)),
                        "MASTER_ADDR": master,
                        "MASTER_PORT": str(port),
                        "GLOO_SOCKET_IFNAME": interface,
                        LAUNCHER: str(os.getpid()),
                    }
                )
                files = [f"{folder}/{rank}.{kind}" for kind in ("job", "result", "log")]
                Path(files[0]).write_text(json.dumps({"function": function, "arguments": arguments}))
                line = command([sys.executable, "-m", "bert_mlperf.bench.rank", files[0], files[1]])
                with open(files[2], "wb") as log:
                    processes.append(
                        subprocess.Popen(line, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
                    )
            _wait(processes, Path(folder), timeout_s)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        return [json.loads(Path(folder, f"{rank}.result").read_text()) for rank in range(len(places))]


def _wait(processes: Sequence["subprocess.Popen[bytes]"], folder: Path, timeout_s: float) -> None:
    """Until all have ended well; UserError with the last line of the first that has not."""
    deadline = time.monotonic() + timeout_s
    while any(process.poll() is None for process in processes):
        time.sleep(0.05)
        if time.monotonic() > deadline:
            raise UserError(f"the ranks of the benchmark were not done after {timeout_s:.0f} s; give a smaller size.")
        if any(process.poll() for process in processes):
            break
    for rank, process in enumerate(processes):
        if process.poll():
            lines = (folder / f"{rank}.log").read_text(errors="replace").strip().splitlines() or ["it said nothing"]
            raise UserError(f"rank {rank} of the benchmark failed with exit code {process.returncode}: {lines[-1]}.")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_LOOPBACK, 0))
        return int(probe.getsockname()[1])
