"""A closed submission that tests write: one system, ten runs of BERT-Large as the training loop would log them, with
chosen times and samples. Nothing is trained."""

import json
from pathlib import Path

from bert_mlperf.config.description import MLPERF_FIELDS
from bert_mlperf.config.rules import eval_interval_samples, round_up_to_batch
from tests.mlperf import logs

BATCH = 448
TARGET = 0.7205


def records(
    *,
    seed: int,
    evaluations: int = 17,
    start_ms: int = 1_740_000_000_000,  # February 2025, round 5.0
    interval_ms: int = 60_000,
    batch: int = BATCH,
    division: str = "closed",
    org: str = "Somebody",
    success: bool = True,
) -> list[tuple[str, str, object, dict[str, object], int]]:
    """Event type, key, value, metadata and time of every line."""
    point, start, stop = "POINT_IN_TIME", "INTERVAL_START", "INTERVAL_END"
    interval = eval_interval_samples(batch)
    init = [
        (point, "cache_clear", True, {}, 0),
        (start, "init_start", None, {}, 1000),
        (point, "submission_benchmark", "bert", {}, 1100),
        (point, "submission_org", org, {}, 1100),
        (point, "submission_division", division, {}, 1100),
        (point, "submission_status", "onprem", {}, 1100),
        (point, "submission_platform", "1xbox", {}, 1100),
        (point, "seed", seed, {}, 1100),
        (point, "global_batch_size", batch, {}, 1100),
        (point, "d_batch_size", batch // 8, {}, 1100),
        (point, "gradient_accumulation_steps", 1, {}, 1100),
        (point, "max_predictions_per_seq", 76, {}, 1100),
        (point, "opt_base_learning_rate", 4.25e-4, {}, 1100),
        (point, "opt_epsilon", 1e-6, {}, 1100),
        (point, "opt_lamb_epsilon", 1e-6, {}, 1100),
        (point, "opt_lamb_beta_1", 0.9, {}, 1100),
        (point, "opt_lamb_beta_2", 0.999, {}, 1100),
        (point, "opt_lamb_weight_decay_rate", 0.01, {}, 1100),
        (point, "opt_learning_rate_training_steps", 6700, {}, 1100),
        (point, "opt_learning_rate_warmup_steps", 0, {}, 1100),
        (point, "num_warmup_steps", 0, {}, 1100),
        (point, "start_warmup_step", 0, {}, 1100),
        *((point, "weights_initialization", None, {"tensor": name}, 1200) for name in logs.variables()),
        (stop, "init_stop", None, {}, 20_000),
        (start, "run_start", None, {}, 20_000),
        (start, "epoch_start", None, {"epoch_num": 0}, 20_010),
        (start, "block_start", None, {"first_epoch_num": 0, "epoch_count": 1}, 20_010),
    ]
    lines, samples, now = [], 0, 20_000
    for number in range(1, evaluations + 1):
        samples, now = round_up_to_batch(number * interval, batch), now + interval_ms
        accuracy = TARGET if number == evaluations and success else 0.3 + 0.4 * number / (evaluations + 1)
        lines.append((point, "eval_accuracy", accuracy, {"epoch_num": samples}, now))
    end = [
        (stop, "block_stop", None, {"first_epoch_num": 0}, now + 1),
        (stop, "epoch_stop", None, {"epoch_num": samples}, now + 1),
        (point, "train_samples", samples, {}, now + 2),
        (point, "eval_samples", 10_000, {}, now + 2),
        (stop, "run_stop", None, {"status": "success" if success else "aborted"}, now + 5),
    ]
    return [(kind, key, value, more, start_ms + time) for kind, key, value, more, time in (*init, *lines, *end)]


def write_log(path: Path, **options: object) -> Path:
    """The log of one run; `options` as for `records`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        for number, (kind, key, value, more, time_ms) in enumerate(records(**options), start=1):  # type: ignore[arg-type]
            metadata = {"file": "bert_mlperf/train/run.py", "lineno": number, **more}
            record = {"namespace": "", "time_ms": time_ms, "event_type": kind, "key": key, "value": value}
            file.write(f":::MLLOG {json.dumps(record | {'metadata': metadata})}\n")
    return path


def write(
    top: Path,
    *,
    system: str = "box",
    evaluations: int = 17,
    runs: int = 10,
    nodes: int = 1,
    batch: int = BATCH,
    interval_ms: int = 60_000,
    round_name: str = "5.0.0",
) -> Path:
    """A submitter's folder with one system more. Runs differ in seed, start and, by one each way, in evaluations."""
    wobble = (0, 1, -1, 0, 0, 1, -1, 0, 0, 0)
    for number in range(runs):
        write_log(
            top / "results" / system / "bert" / f"result_{number}.txt",
            seed=1000 + number,
            evaluations=evaluations + wobble[number % 10],
            start_ms=1_740_000_000_000 + 10_000_000 * number,
            interval_ms=interval_ms,
            batch=batch,
        )
    described: dict[str, object] = dict.fromkeys(MLPERF_FIELDS, "said")
    described |= {
        "submitter": "Somebody",
        "division": "closed",
        "status": "Available on-premise",
        "system_name": system,
        "number_of_nodes": str(nodes),
        "host_processors_per_node": "2",
        "accelerators_per_node": "8",
        "accelerator_model_name": "NVIDIA A100-SXM4-80GB",
    }
    (top / "systems").mkdir(exist_ok=True)
    (top / "systems" / f"{system}.json").write_text(json.dumps(described, indent=2))
    sources = top / "benchmarks" / "bert" / "implementations" / "x"
    sources.mkdir(parents=True, exist_ok=True)
    (sources / "train.py").write_text("print('train')\n")
    for name in ("LICENSE.md", "README.md"):
        (top / name).write_text("text\n")
    return top
