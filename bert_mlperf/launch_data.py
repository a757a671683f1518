"""The data of a run, found and checked before any rank starts. The launcher imports this when it is needed."""

import hashlib
from pathlib import Path
from typing import Any

from bert_mlperf.config.system import DEMO_DATA, ResolvedSystem, Run
from bert_mlperf.data.exchange import own_files
from bert_mlperf.data.indexing import FROM_SAMPLES, beside, index_of, inspect_own_files, read_checked
from bert_mlperf.data.node_cache import check_space
from bert_mlperf.data.parts import find_shards
from bert_mlperf.data.shards import DataSummary, inspect_shards
from bert_mlperf.errors import UserError

DEMO_FOLDER = Path(".demo-data")


def check_data(resolved: ResolvedSystem, *, node: int = 0) -> tuple[DataSummary, DataSummary]:
    """What the training and evaluation samples of a system are; the demo data are made if the system uses them. In
    exchange mode with an index the shards of the ranks of `node` are enough.

    Raises UserError if one of them cannot be read, does not fit the model or the batch, or if they were made with
    vocabularies of different sizes.
    """
    run, config = resolved.run, resolved.run.model
    size: dict[str, Any] = {"vocab_size": config.vocab_size, "max_length": config.max_position_embeddings}
    path = _data_path("train", run.data.train)
    if run.read == "exchange" and run.cache == "none" and path.is_dir() and beside(path).is_file():
        train = _inspect_own(resolved, path, node, size)
    else:
        _check_all_here(path)
        train = inspect_shards(path, min_samples=run.recipe.global_batch_size, verify=run.cache == "none", **size)
    evaluation = inspect_shards(_data_path("eval", run.data.eval), min_samples=1, **size)
    if run.cache == "node":
        check_space(find_shards(path), Path(run.cache_folder))
    if None not in (train.vocab_size, evaluation.vocab_size) and train.vocab_size != evaluation.vocab_size:
        raise UserError(
            f"{train.path} was made with a vocabulary of {train.vocab_size:,} tokens and {evaluation.path} with one of "
            f"{evaluation.vocab_size:,}, expected the same; make both with one vocabulary (prep examples, prep eval)."
        )
    return train, evaluation


def _check_all_here(path: Path) -> None:
    """Raises UserError if a file that the index beside the samples lists is not there."""
    if not path.is_dir() or not beside(path).is_file():
        return
    index = read_checked(beside(path))
    missing = [file.name for file in index.files if not (path / file.name).is_file()]
    if missing:
        raise UserError(
            f"{path / missing[0]}, which {index.where} lists, is not there ({len(missing)} of {len(index.files)} "
            "shards are missing); put them there, or set run.read=exchange and run.cache=none if every node holds the "
            "shards of its ranks."
        )


def _inspect_own(resolved: ResolvedSystem, path: Path, node: int, size: dict[str, Any]) -> DataSummary:
    """The training samples as far as the ranks of this node read them."""
    run, index = resolved.run, read_checked(beside(path))
    first = node * run.ranks_per_node
    names = {
        name
        for rank in range(first, first + run.ranks_per_node)
        for name in own_files(index, rank=rank, world_size=resolved.world_size)
    }
    found = inspect_own_files(path, index, names, **size)
    if found.num_samples < run.recipe.global_batch_size:
        raise UserError(
            f"{path} holds {found.num_samples:,} samples, expected at least one global batch of "
            f"{run.recipe.global_batch_size:,}; add data or lower run.recipe.global_batch_size."
        )
    return found


def train_index(run: Run, train: DataSummary) -> Path | None:
    """The file of the index that the ranks are to use; None where they make one in memory. Raises UserError if the one
    that is there does not belong to the samples."""
    if run.read == "exchange" and train.path.is_dir() and beside(train.path).is_file():
        return beside(train.path)
    if run.read == "index" and train.num_samples < FROM_SAMPLES and not beside(train.path).is_file():
        return None
    return index_of(train.path)


def digest(summary: DataSummary) -> str:
    """What must be the same on all nodes, hex. An index does not know the content of published layouts, so there it is
    the counts."""
    content = "" if summary.vocab_size is None else summary.fingerprint
    counts = (summary.num_samples, summary.num_tokens, summary.num_masked)
    return hashlib.sha256(repr([content, *counts]).encode()).hexdigest()


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
