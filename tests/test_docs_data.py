"""The commands of docs/data.md, run as they stand there on a toy corpus."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bert_mlperf.config.model import ModelConfig
from bert_mlperf.config.system import load_system
from bert_mlperf.data.batches import BatchPlan
from bert_mlperf.data.loader import IndexReader, Loader
from bert_mlperf.data.order import SampleOrder
from bert_mlperf.data.shards import ShardSet, inspect_shards
from tests.config import files
from tests.data_prep.commands import environment, write_corpus

PAGE = Path(__file__).resolve().parents[1] / "docs" / "data.md"
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with text/ and vocab.txt in which all commands of the page were run."""
    folder = write_corpus(tmp_path_factory.mktemp("docs"), files=4, articles=150)
    programs = Path(sys.executable).parent
    for block in BLOCK.findall(PAGE.read_text()):
        for line in block.replace("\\\n", " ").splitlines():
            result = subprocess.run(
                ["bash", "-c", line],
                cwd=folder,
                env=environment(PATH=f"{programs}:{os.environ['PATH']}"),
                capture_output=True,
                text=True,
            )
            assert result.returncode == 0, (line, result.stderr, result.stdout)
            assert "Traceback" not in result.stderr
    return folder


@pytest.mark.slow
def test_every_step_leaves_what_the_page_says(folder: Path) -> None:
    commands = [line.split() for block in BLOCK.findall(PAGE.read_text()) for line in block.splitlines() if line]
    assert {words[2] for words in commands if words[1] == "prep"} == set(STEPS)
    for name in ("clean", "segmented", "split", "parts", "train", "eval", "tfrecord"):
        assert (folder / name / "manifest.json").is_file() and not (folder / name / ".unfinished").exists()
    assert (folder / "lengths.png").read_bytes()[:4] == b"\x89PNG"
    assert json.loads((folder / "clean/manifest.json").read_text())["options"]["extracted_with"]
    assert json.loads((folder / "split/manifest.json").read_text())["summary"]["eval_articles"] == 40


STEPS = ("clean", "segment", "split", "gather", "examples", "eval", "inspect", "convert", "verify")


def test_the_system_file_of_the_page_is_valid(tmp_path: Path) -> None:
    (block,) = re.findall(r"^```json\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    resolved = load_system(files.write(tmp_path, files.small() | {"run": json.loads(block)}))
    assert resolved.run.model.name == "my-bert" and resolved.evaluation_points[-1] == 64000


def test_every_key_of_a_model_is_in_the_page_on_system_files() -> None:
    text = PAGE.with_name("systems.md").read_text()
    rows = text.split("## A model of your own")[1].split("##")[0].splitlines()
    names = [name for row in rows if row.startswith("| `") for name in re.findall(r"`(\w+)`", row.split(" | ")[0])]
    assert sorted(names) == sorted(ModelConfig.model_fields)


@pytest.mark.slow
def test_training_reads_the_result(folder: Path) -> None:
    vocab_size = len((folder / "vocab.txt").read_text().splitlines())
    summaries = [
        inspect_shards(folder / name, vocab_size=vocab_size, max_length=512, min_samples=8)
        for name in ("train", "eval", "tfrecord")
    ]
    train, evaluation, converted = summaries
    assert evaluation.num_samples == 500
    assert train.num_samples == converted.num_samples and train.fingerprint == converted.fingerprint
    shards = ShardSet.open(folder / "train", vocab_size=vocab_size, max_length=512)
    plan = BatchPlan(
        SampleOrder(1, shards.num_samples),
        shards.index,
        global_batch_size=8,
        accumulation_steps=1,
        world_size=2,
        balance="snake",
    )
    with Loader(plan, IndexReader(plan, shards, rank=1), rank=1, collate=lambda samples, _: samples) as loader:
        step = next(loader)
    assert step.global_samples == 8 and step.micro_batches[0].num_samples == 4
