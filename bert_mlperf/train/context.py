"""What the launcher tells the ranks of one run: a JSON file beside the log."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bert_mlperf.errors import UserError


@dataclass(frozen=True)
class RunContext:
    """One run of one system. Paths are absolute strings; a node without rank 0 has no result file."""

    system: dict  # the resolved system, as `System.model_dump()` gives it
    train_data: str
    eval_data: str
    checkpoint: str | None
    evaluation_points: list[int]  # training samples after which the model is evaluated, ascending
    threads_per_rank: int  # on the CPU
    seed: int  # drawn by node 0; the other nodes learn it from rank 0
    run_dir: str
    result_file: str | None
    cache_cleared: bool
    cache_note: str
    data_digests: list[str] = field(default_factory=list)  # hex, of train and eval; the same on all nodes
    train_index: str | None = None  # file of the index of the training samples; without it they are all looked at
    cache_dir: str | None = None  # folder on this node for run.cache
    save_dir: str | None = None
    trace_step: int | None = None

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def read(cls, path: Path) -> "RunContext":
        """The context in the file `path`; UserError if there is none."""
        try:
            return cls(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError) as error:
            raise UserError(
                f"{path} is no context of a run ({error}): give a context.json that the launcher wrote, or start the "
                "run with ./run_and_time.sh"
            ) from error

    def unused_result_file(self) -> str | None:
        """The result file; UserError if it has lines already: a run never adds to the log of another."""
        if self.result_file is not None and Path(self.result_file).exists() and Path(self.result_file).stat().st_size:
            raise UserError(
                f"{self.result_file} holds the log of a run already and is not written again: start a new run with "
                "./run_and_time.sh"
            )
        return self.result_file
