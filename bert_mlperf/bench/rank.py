"""One rank of a benchmark: `python -m bert_mlperf.bench.rank JOB RESULT`, started by ranks.py."""

import importlib
import json
import sys
from pathlib import Path

import torch

from bert_mlperf.comm.control import Control
from bert_mlperf.comm.process_group import RankInfo, close_process_group, open_process_group
from bert_mlperf.train.stop import stop_with_launcher

TIMEOUT_S = 300.0  # of a collective: links may be slow


def main(job_file: Path, result_file: Path) -> None:
    """Does the job on one thread and writes what its function returned as JSON."""
    stop_with_launcher()
    job = json.loads(job_file.read_text())
    module, name = job["function"].split(":")
    function = getattr(importlib.import_module(module), name)
    torch.set_num_threads(1)
    info = RankInfo.from_environment()
    open_process_group(info, torch.device("cpu"), timeout_s=TIMEOUT_S)
    result = function(Control(rank=info.rank, world_size=info.world_size), **job["arguments"])
    result_file.write_text(json.dumps(result))
    close_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
