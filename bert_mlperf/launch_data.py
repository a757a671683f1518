"""The data of a run, found and checked before any rank starts. The launcher imports this when it is needed."""

from pathlib import Path

from bert_mlperf.config.system import DEMO_DATA, ResolvedSystem
from bert_mlperf.data.shards import DataSummary, inspect_shards
from bert_mlperf.errors import UserError

DEMO_FOLDER = Path(".demo-data")


def check_data(resolved: ResolvedSystem) -> tuple[DataSummary, DataSummary]:
    """What the training and evaluation samples of a system are; the demo data are made if the system uses them.

    Raises UserError if one of them cannot be read, does not fit the model or the batch, or if they were made with
    vocabularies of different sizes.
    """
    run, config = resolved.run, resolved.run.model
    train, evaluation = (
        inspect_shards(
            _data_path(key, path),
            vocab_size=config.vocab_size,
            max_length=config.max_position_embeddings,
            min_samples=least,
        )
        for key, path, least in (("train", run.data.train, run.recipe.global_batch_size), ("eval", run.data.eval, 1))
    )
    if None not in (train.vocab_size, evaluation.vocab_size) and train.vocab_size != evaluation.vocab_size:
        raise UserError(
            f"{train.path} was made with a vocabulary of {train.vocab_size:,} tokens and {evaluation.path} with one of "
            f"{evaluation.vocab_size:,}, expected the same; make both with one vocabulary (prep examples, prep eval)."
        )
    return train, evaluation


def warnings(resolved: ResolvedSystem, train: DataSummary) -> list[str]:
    """What is no error but may not be meant."""
    model = resolved.run.model.vocab_size
    if train.vocab_size is None or train.vocab_size >= model or resolved.uses_demo_data:
        return []
    return [
        f"run.model.vocab_size is {model:,}, {train.path} was made with a vocabulary of {train.vocab_size:,} tokens: "
        "the ids above never occur"
    ]


def demo_folder(word: str) -> Path:
    """The embedded demo data that a word of the system file means, made if it is not there yet."""
    from bert_mlperf.data_prep.demo_data import DEMO, DEMO_LONG, prepare_demo_data

    return prepare_demo_data(DEMO_FOLDER / word, options={"demo": DEMO, "demo-long": DEMO_LONG}[word])


def _data_path(key: str, value: str) -> Path:
    """Where the samples of `run.data.<key>` lie."""
    if value in DEMO_DATA:
        return demo_folder(value) / key
    path = Path(value)
    try:
        is_there = path.exists()
    except OSError:
        return path  # who reads it says why
    if not is_there:
        raise UserError(
            f"run.data.{key}: the data path {path} does not exist; give a folder of shards or one shard file (relative "
            "paths start at the folder above systems/ if the system file lies in a folder of that name, else at the "
            "working directory)."
        )
    return path
