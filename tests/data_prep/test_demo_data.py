import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bert_mlperf.data.samples import Samples
from bert_mlperf.data.shards import ShardSet, inspect_shards
from bert_mlperf.data_prep import demo_corpus, demo_data
from bert_mlperf.data_prep.demo_data import DEMO, DEMO_LONG, prepare_demo_data
from bert_mlperf.data_prep.wordpiece import read_vocabulary
from bert_mlperf.errors import UserError

TEXTS = demo_corpus.demo_texts()
SMALL = replace(DEMO, train_documents=60, eval_documents=20, train_files=3)


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def read(folder: Path) -> Samples:
    shards = ShardSet.open(folder, vocab_size=demo_corpus.VOCAB_SIZE, max_length=512)
    return shards.take(np.arange(shards.num_samples))


@pytest.fixture(autouse=True, scope="module")
def texts_made_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo_corpus, "demo_texts", lambda: TEXTS)
        yield


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_demo_data(tmp_path_factory.mktemp("demo") / "small", options=SMALL)


def test_layout(small: Path) -> None:
    assert sorted(content(small)) == [
        "eval/part_00000_of_00001.hdf5",
        "manifest.json",
        *(f"train/part_{i:05d}_of_00003.hdf5" for i in range(3)),
        "vocab.txt",
    ]
    size = read_vocabulary(small / "vocab.txt").size
    assert 100 < size <= demo_corpus.VOCAB_SIZE
    for name, least in (("train", 300), ("eval", 40)):
        summary = inspect_shards(
            small / name, vocab_size=size, max_length=demo_corpus.MAX_SEQ_LENGTH, min_samples=least
        )
        assert summary.verified


def test_samples_spell_sentences_of_the_corpus(small: Path) -> None:
    """Unmasked and decoded, an evaluation sample is text of the corpus: the same words, no unknown token."""
    vocabulary = read_vocabulary(small / "vocab.txt")
    samples = read(small / "eval")
    original = samples.input_ids.copy()
    places = np.repeat(samples.offsets[:-1], samples.masked_counts) + samples.masked_positions
    original[places] = samples.masked_ids
    tokens = np.array(vocabulary.tokens)[original]
    assert "[UNK]" not in tokens and "[MASK]" not in tokens
    words = {word.strip(".,").lower() for text in TEXTS for d in text for s in d for word in s.split()}
    spelled = " ".join(tokens.tolist()).replace(" ##", "").split()
    whole = {word for word in spelled if word.isalpha()}
    assert len(whole) > 100
    assert len(whole - words) < 0.3 * len(whole)  # shortening may cut a word at the end of a sample


def test_equal_options_give_equal_files(small: Path, tmp_path: Path) -> None:
    assert content(prepare_demo_data(tmp_path / "again", options=SMALL)) == content(small)
    assert os.listdir(tmp_path) == ["again"]


def test_prepared_data_is_used_again(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_data, "_build", lambda *_: pytest.fail("built again"))
    assert prepare_demo_data(small, options=SMALL) == small


@pytest.mark.parametrize("change", ["options", "corpus version", "lost shard", "cut shard", "no manifest file list"])
def test_other_or_incomplete_data_is_made_anew(
    small: Path, tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = prepare_demo_data(tmp_path / "data", options=SMALL)
    options = SMALL
    shard = folder / "train" / "part_00001_of_00003.hdf5"
    if change == "options":
        options = replace(SMALL, dupe_factor=1)
    elif change == "corpus version":
        monkeypatch.setattr(demo_corpus, "VERSION", -1)
    elif change == "lost shard":
        shard.unlink()
    elif change == "cut shard":
        shard.write_bytes(shard.read_bytes()[:1000])
    else:
        (folder / "manifest.json").write_text("{}")
    before = (folder / "manifest.json").read_bytes()
    prepare_demo_data(folder, options=options)
    inspect_shards(folder / "train", vocab_size=1024, max_length=64, min_samples=100)
    assert os.listdir(tmp_path) == ["data"]
    made_anew = (folder / "manifest.json").read_bytes() != before
    assert made_anew == (change not in ("lost shard", "cut shard"))
    if change in ("lost shard", "cut shard", "no manifest file list"):
        assert content(folder) == content(small)


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(UserError, match=f"the folder {tmp_path} holds files but no demo data"):
        prepare_demo_data(tmp_path, options=SMALL)
    assert content(tmp_path) == {"thesis.txt": b"precious"}


def test_nothing_is_left_of_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(demo_data, "_write_manifest", full_disk)
    with pytest.raises(UserError, match=r"the demo data cannot be written to .*No space left"):
        prepare_demo_data(tmp_path / "data", options=SMALL)
    assert os.listdir(tmp_path) == []


def test_another_process_may_be_faster(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder appears while this process builds: it stays, and is used."""
    folder = tmp_path / "data"
    write_manifest = demo_data._write_manifest

    def other_wins(building: Path, origin: str) -> None:
        write_manifest(building, origin)
        shutil.copytree(small, folder)

    monkeypatch.setattr(demo_data, "_write_manifest", other_wins)
    kept = content(prepare_demo_data(folder, options=SMALL))
    assert kept == content(small)
    assert os.listdir(tmp_path) == ["data"]


def test_long_samples(tmp_path: Path) -> None:
    folder = prepare_demo_data(tmp_path / "long", options=DEMO_LONG)
    for name in ("train", "eval"):
        samples = read(folder / name)
        assert samples.lengths.max() == 512 and samples.lengths.mean() > 300
        assert samples.masked_counts.max() == 76
    assert json.loads((folder / "manifest.json").read_text())["files"]["train/part_00000_of_00001.hdf5"] > 100_000
