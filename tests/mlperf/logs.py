"""Logs that tests write: a run of a 24-layer model as the training loop would log it, without any training."""

from pathlib import Path

from bert_mlperf.config.system import load_system
from bert_mlperf.mlperf.log import MlperfLog
from tests.config import files

MATRIX, NORM = ("kernel", "bias"), ("LayerNorm/beta", "LayerNorm/gamma")


def dense(prefix: str) -> list[str]:
    return [f"{prefix}/{part}" for part in MATRIX]


def norm(prefix: str) -> list[str]:
    return [f"{prefix}/{part}" for part in NORM]


def variables(layers: int = 24) -> list[str]:
    """Names of the reference's variables: 16 a layer and 14 around them."""
    names = [f"bert/embeddings/{kind}_embeddings" for kind in ("word", "token_type", "position")]
    names += norm("bert/embeddings")
    for layer in (f"bert/encoder/layer_{index}" for index in range(layers)):
        for part in ("query", "key", "value"):
            names += dense(f"{layer}/attention/self/{part}")
        names += dense(f"{layer}/attention/output/dense") + norm(f"{layer}/attention/output")
        names += dense(f"{layer}/intermediate/dense")
        names += dense(f"{layer}/output/dense") + norm(f"{layer}/output")
    names += dense("bert/pooler/dense") + dense("cls/predictions/transform/dense") + norm("cls/predictions/transform")
    return [
        *names,
        "cls/predictions/output_bias",
        "cls/seq_relationship/output_weights",
        "cls/seq_relationship/output_bias",
    ]


def begin(log: MlperfLog, folder: Path, *, status: str = "Available on-premise") -> None:
    """Everything up to run_start."""
    resolved = load_system(files.write(folder, files.small()), ["model=bert-large", f"status={status}"])
    log.cache_clear(done=False, reason="not root")
    log.init_start()
    log.submission(resolved.system)
    log.hyperparameters(resolved.run, 11)
    log.weights_initialization(variables())
    log.init_stop()
    log.run_start()


def train(log: MlperfLog, accuracies: tuple[float, ...]) -> int:
    """Blocks of 1,000 samples, each with an evaluation; the number of samples."""
    samples = 0
    log.epoch_start(samples)
    for accuracy in accuracies:
        log.block_start(samples)
        samples += 1000
        log.tracked_stats(123.5, samples)
        log.block_stop(samples)
        log.eval_start(samples)
        log.eval_stop(samples)
        log.eval_accuracy(accuracy, samples)
    log.epoch_stop(samples)
    return samples


def write_run(
    folder: Path,
    *,
    division: str | None = None,
    accuracies: tuple[float, ...] = (0.4, 0.7, 0.7205),
    success: bool = True,
) -> Path:
    """The log of a whole run."""
    path = folder / "result_0.txt"
    with MlperfLog(path, division=division) as log:
        begin(log, folder)
        samples = train(log, accuracies)
        log.train_samples(samples)
        log.eval_samples(10_000)
        log.run_stop("success" if success else "aborted", samples)
    return path


def without(path: Path, *keys: str) -> Path:
    """A copy of a log without the lines of some keys."""
    kept = [line for line in path.read_text().splitlines(True) if not any(f'"key": "{key}"' in line for key in keys)]
    copy = path.with_name(f"without_{keys[0]}.txt")
    copy.write_text("".join(kept))
    return copy
