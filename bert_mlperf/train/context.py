"""What the launcher tells the ranks of one run: a JSON file beside the log."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path


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
    save_dir: str | None = None

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def read(cls, path: Path) -> "RunContext":
        return cls(**json.loads(path.read_text()))
