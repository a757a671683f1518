"""Entry of one rank: `python -m bert_mlperf.train CONTEXT.json` under torchrun."""

import errno
import json
import os
import sys
import time
import traceback
from pathlib import Path

from bert_mlperf.errors import UserError
from bert_mlperf.train.context import RunContext
from bert_mlperf.train.stop import LAUNCHER, Stopped, ignore_stop_signals, raise_when_stopped, stop_with_launcher


def main(arguments: list[str]) -> int:
    """Runs this rank. 0: the run ended by itself, target reached or not; 2: bad input; 128 + n: stopped by signal n."""
    raise_when_stopped()
    try:
        return run_and_report(arguments)
    except Stopped as stopped:  # while another end was being reported
        return stopped.exit_code


def run_and_report(arguments: list[str]) -> int:
    """Runs this rank and reports how it ended; its exit code as above."""
    try:
        stop_with_launcher()
        run(Path(arguments[0] if arguments else "context.json"))
        return 0
    except Stopped as stopped:
        report(str(stopped))
        return stopped.exit_code
    except UserError as error:
        report(str(error))
        return 2
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            report(f"the results beside {arguments[0]} cannot be written ({error.strerror}): free space and run again")
        else:
            report(f"{type(error).__name__}: {error}", trace=traceback.format_exc())
        return 1


def run(context_file: Path) -> None:
    """This rank's part of the run. Imports what takes seconds, so that a signal that comes meanwhile is heeded."""
    context = RunContext.read(context_file)
    from bert_mlperf.comm.process_group import RankInfo, close_process_group
    from bert_mlperf.mlperf.log import MlperfLog
    from bert_mlperf.train.run import run_rank

    info = RankInfo.from_environment()
    result_file = context.unused_result_file() if info.rank == 0 else None
    with MlperfLog(result_file) as log:
        run_rank(context, info, log)
    close_process_group()


def report(message: str, *, trace: str = "") -> None:
    """Tells our launcher why and when this rank ends (`ranks.explain_failure` reads it); others read it on stderr."""
    if LAUNCHER not in os.environ:
        print(f"{trace}error: rank {os.environ.get('RANK', 0)}: {message}", file=sys.stderr, flush=True)
        return
    now = time.time()
    content = {"message": message, "timestamp": int(now), "time": now, "traceback": trace}
    Path(os.environ["TORCHELASTIC_ERROR_FILE"]).write_text(json.dumps(content))


if __name__ == "__main__":
    code = main(sys.argv[1:])
    ignore_stop_signals()  # the agent stops the other ranks of a failed run, also those that are ending
    if code == 0:
        sys.exit(0)
    # threads that wait in a collective of a failed run abort the process while the interpreter takes itself down
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
