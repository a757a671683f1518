"""Starts this node's ranks with torchrun's agent, waits for them, and says which of them ended a run and why."""

import logging
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bert_mlperf.errors import UserError
from bert_mlperf.train.stop import LAUNCHER, STOP_SIGNALS

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

ENVIRONMENT = {  # of ranks, where the user's says nothing else
    "OMP_NUM_THREADS": "1",  # the ranks set their own number
    "THP_MEM_ALLOC_ENABLE": "1",  # torch asks for huge pages on the CPU: new memory costs fewer page faults
}
MEETING_S = 300  # how long nodes wait for each other
GRACE_S = 30  # after which torchrun's agent kills a rank that does not stop


@dataclass(frozen=True)
class Place:
    """Which node this launcher is, and where rank 0 is met."""

    node: int
    nodes: int
    address: str
    port: int  # 0: a free one, on a single node


def start_ranks(context: Path, place: Place, *, ranks_per_node: int) -> int:
    """Starts the ranks of this node and waits until all have ended. Returns their exit code: 0, 1, 2 bad input, 128 + n
    stopped by signal n; one line on stderr names the rank at fault. UserError if the nodes do not meet."""
    os.environ.update(ENVIRONMENT | os.environ)
    from torch.distributed import DistError
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    single = place.nodes == 1 and place.port == 0
    endpoint = f"{'localhost' if single else place.address}:{place.port}"
    config = LaunchConfig(
        min_nodes=place.nodes,
        max_nodes=place.nodes,
        nproc_per_node=ranks_per_node,
        run_id="bert-mlperf",
        rdzv_backend="c10d" if single else "static",
        rdzv_endpoint=endpoint,
        rdzv_configs={"timeout": MEETING_S} if single else {"timeout": MEETING_S, "rank": place.node},
        max_restarts=0,
        monitor_interval=0.2,
        signals_to_handle=",".join(s.name for s in STOP_SIGNALS if signal.getsignal(s) != signal.SIG_IGN),
    )
    os.environ[LAUNCHER] = str(os.getpid())
    logging.disable(logging.CRITICAL)  # of the agent: the lines below say the same, shorter
    try:
        elastic_launch(config, sys.executable)("-m", "bert_mlperf.train", str(context))
    except SignalException as stopped:
        print(f"stopped by {stopped.sigval.name}", file=sys.stderr, flush=True)
        return 128 + int(stopped.sigval)
    except ChildFailedError as failed:
        return explain_failure(failed)
    except (DistError, RendezvousError) as error:
        raise UserError(
            f"the {place.nodes} nodes did not meet at {endpoint} ({str(error).splitlines()[0]}): start all of them, "
            "and check MASTER_ADDR, run.master_port and the firewall"
        ) from error
    finally:
        logging.disable(logging.NOTSET)
        del os.environ[LAUNCHER]
    return 0


def explain_failure(failed: "ChildFailedError") -> int:
    """Prints which rank ended the run and why; returns 2 if the cause was bad input, else 1."""
    failures = dict(sorted(failed.failures.items()))
    rank, killed_late = find_culprit(failures)
    failure = failures[rank]
    if failure.exitcode < 0:
        reason = f"was killed by {failure.signal_name()}"
    else:
        reason = f"failed: {(failure.message or 'no reason given').splitlines()[0].rstrip('.')}"
    if trace := failure.error_file_data.get("traceback"):
        print(trace.rstrip(), file=sys.stderr, flush=True)
    hung = "".join(f"; rank {other} hung and was killed" for other in killed_late if other != rank)
    message = f"error: rank {rank} (process {failure.pid}) {reason}{hung}; all ranks of this node have ended"
    print(message, file=sys.stderr, flush=True)
    return 2 if failure.exitcode == 2 else 1


def find_culprit(failures: "dict[int, ProcessFailure]") -> tuple[int, list[int]]:
    """The rank that ended first, and the ranks that the agent had to kill in the end. When one rank ends, the others
    lose contact and are stopped by the agent: they ended too, but later.

    A rank that a signal killed left no report, so its time is not known; but only the agent sends SIGTERM, and SIGKILL
    when GRACE_S have passed. All others report the time of their error (`train.__main__.report`).
    """
    times = {rank: f.error_file_data["time"] for rank, f in failures.items() if "time" in f.error_file_data}
    silent = [rank for rank in failures if rank not in times]
    late = [rank for rank in silent if times and failures[rank].timestamp - min(times.values()) >= GRACE_S - 5]
    crashed = [rank for rank in silent if rank not in late and failures[rank].exitcode != -signal.SIGTERM]
    if crashed:
        return crashed[0], late
    return min(times, key=lambda rank: times[rank]) if times else silent[0], late
