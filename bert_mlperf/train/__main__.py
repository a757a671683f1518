"""Entry of one rank: `python -m bert_mlperf.train CONTEXT.json` under torchrun."""

import os
import sys
import traceback
from pathlib import Path

from torch.distributed.elastic.multiprocessing.errors import get_error_handler

from bert_mlperf.comm.process_group import RankInfo, close_process_group
from bert_mlperf.errors import UserError
from bert_mlperf.mlperf.log import MlperfLog
from bert_mlperf.train.context import RunContext
from bert_mlperf.train.run import run_rank
from bert_mlperf.train.stop import Stopped, raise_when_stopped


def main(arguments: list[str]) -> int:
    """Runs this rank. 0: the run ended by itself, target reached or not; 2: bad input; 128 + n: stopped by signal n."""
    raise_when_stopped()
    info = RankInfo.from_environment()
    try:
        context = RunContext.read(Path(arguments[0]))
        with MlperfLog(context.result_file if info.rank == 0 else None) as log:
            run_rank(context, info, log)
        return 0
    except Stopped as stopped:
        return stopped.exit_code
    except UserError as error:
        report(error, info)
        return 2
    except Exception as error:
        traceback.print_exc()
        report(error, info)
        return 1


def report(error: Exception, info: RankInfo) -> None:
    """Tells the launcher why this rank ends; without a launcher, the terminal."""
    if "TORCHELASTIC_ERROR_FILE" in os.environ:
        get_error_handler().record_exception(error)
    else:
        print(f"error: rank {info.rank}: {error}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    if code == 0:
        close_process_group()
    sys.exit(code)
