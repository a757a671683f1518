"""The embedded demo data: corpus, vocabulary, masked examples and shards, made by the same code as the Wikipedia data.

    FOLDER/vocab.txt       WordPiece vocabulary, trained on the training text
    FOLDER/train/, eval/   shards part_<i>_of_<n>.hdf5
    FOLDER/manifest.json   what the data was made from and the size of each file

Equal versions and options give equal files.
"""

import hashlib
import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import tokenizers

from bert_mlperf.data.index import FILE_NAME as INDEX
from bert_mlperf.data.samples import Samples
from bert_mlperf.data.shards import write_shard
from bert_mlperf.data_prep import demo_corpus
from bert_mlperf.data_prep.examples import ExampleOptions, make_examples
from bert_mlperf.data_prep.wordpiece import Vocabulary, encode_documents, train_vocabulary, write_vocabulary
from bert_mlperf.errors import UserError

VERSION = 1  # raise it with every change of this file that changes the data
_MANIFEST = "manifest.json"


@dataclass(frozen=True)
class DemoOptions:
    """One set of demo data."""

    max_seq_length: int  # tokens
    max_predictions: int
    train_documents: int  # documents of the corpus that are used, at most
    eval_documents: int
    documents_together: int  # documents of the corpus that are joined to one, so that long samples come about
    dupe_factor: int
    eval_dupe_factor: int
    train_files: int
    full_length_only: bool = False  # leaves out samples that are shorter than max_seq_length


DEMO = DemoOptions(
    max_seq_length=demo_corpus.MAX_SEQ_LENGTH,
    max_predictions=demo_corpus.MAX_PREDICTIONS,
    train_documents=demo_corpus.TRAIN_DOCUMENTS,
    eval_documents=demo_corpus.EVAL_DOCUMENTS,
    documents_together=1,
    dupe_factor=demo_corpus.DUPE_FACTOR,
    eval_dupe_factor=demo_corpus.EVAL_DUPE_FACTOR,
    train_files=4,
)
# A few samples of full length, to see that a large model runs; nothing can be learned from them.
DEMO_LONG = DemoOptions(
    max_seq_length=512,
    max_predictions=76,
    train_documents=400,
    eval_documents=40,
    documents_together=20,
    dupe_factor=1,
    eval_dupe_factor=1,
    train_files=1,
    full_length_only=True,
)


def prepare_demo_data(folder: str | Path, *, options: DemoOptions = DEMO) -> Path:
    """Makes the demo data in `folder`, unless it is there already, and returns the folder.

    It appears whole or not at all; data made by another version or with other options is replaced. Raises UserError if
    `folder` holds anything else or cannot be written.
    """
    folder = Path(folder)
    origin = _origin(options)
    if _holds(folder, origin):
        return folder
    if folder.exists() and any(folder.iterdir()) and not (folder / _MANIFEST).is_file():
        raise UserError(f"the folder {folder} holds files but no demo data, so it is left alone; give another folder.")
    building = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    shutil.rmtree(building, ignore_errors=True)  # of a killed process that had the same number
    try:
        building.mkdir(parents=True)
        _build(building, options)
        _write_manifest(building, origin)
        _put_in_place(building, folder, origin)
    except OSError as error:
        raise UserError(
            f"the demo data cannot be written to {folder}: {error}; check the folder's permissions and free space."
        ) from error
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return folder


def _build(folder: Path, options: DemoOptions) -> None:
    train_texts, eval_texts = demo_corpus.demo_texts()
    train_texts, eval_texts = train_texts[: options.train_documents], eval_texts[: options.eval_documents]
    lines = [sentence for document in train_texts for sentence in document]
    vocabulary = train_vocabulary(lines, max_size=demo_corpus.VOCAB_SIZE)
    write_vocabulary(folder / "vocab.txt", vocabulary)
    for name, texts, dupe_factor, files in (
        ("train", train_texts, options.dupe_factor, options.train_files),
        ("eval", eval_texts, options.eval_dupe_factor, 1),
    ):
        documents = encode_documents(_joined(texts, options.documents_together), vocabulary)
        example_options = ExampleOptions(
            max_seq_length=options.max_seq_length, max_predictions=options.max_predictions, dupe_factor=dupe_factor
        )
        samples = make_examples(documents, vocabulary=vocabulary, options=example_options)
        if options.full_length_only:
            samples = samples.take(np.flatnonzero(samples.lengths == options.max_seq_length))
        _write_parts(folder / name, samples, vocabulary, files=files)


def _joined(documents: list[list[str]], together: int) -> list[list[str]]:
    """Runs of `together` documents as one document each."""
    return [
        [sentence for document in documents[first : first + together] for sentence in document]
        for first in range(0, len(documents), together)
    ]


def _write_parts(folder: Path, samples: Samples, vocabulary: Vocabulary, *, files: int) -> None:
    folder.mkdir()
    for i, ids in enumerate(np.array_split(np.arange(samples.num_samples), files)):
        path = folder / f"part_{i:05d}_of_{files:05d}.hdf5"
        write_shard(path, samples.take(ids), vocab_size=vocabulary.size)


def _origin(options: DemoOptions) -> str:
    """sha256 (hex) of everything that the data depends on."""
    versions = {"data": VERSION, "corpus": demo_corpus.VERSION, "tokenizers": tokenizers.__version__}
    return hashlib.sha256(json.dumps([versions, asdict(options)], sort_keys=True).encode()).hexdigest()


def _files(folder: Path) -> dict[str, int]:
    """Bytes of each file below `folder` but the manifest and an index, which is made later."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name not in (_MANIFEST, INDEX))
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in paths}


def _write_manifest(folder: Path, origin: str) -> None:
    manifest = {"made_from": origin, "files": _files(folder)}
    (folder / _MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def _holds(folder: Path, origin: str) -> bool:
    """Whether `folder` holds the data of this origin, complete."""
    try:
        manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        return bool(manifest["made_from"] == origin and manifest["files"] == _files(folder))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _put_in_place(building: Path, folder: Path, origin: str) -> None:
    """Renames `building` to `folder`; older data there goes first, equal data of another process stays."""
    if _holds(folder, origin):
        return
    if folder.exists():
        outdated = building.with_name(f"{building.name}.old")
        folder.rename(outdated)
        shutil.rmtree(outdated)
    building.rename(folder)
