"""Fixtures of the tests of `prep verify`."""

import shutil
from pathlib import Path

import pytest

from bert_mlperf.data_prep import verify_checks
from bert_mlperf.data_prep.convert import convert
from bert_mlperf.data_prep.evaluation import eval_examples
from bert_mlperf.data_prep.examples import ExampleOptions
from bert_mlperf.data_prep.examples_command import examples
from bert_mlperf.data_prep.gather import gather
from bert_mlperf.data_prep.official import Official, OfficialFile, OfficialSet
from bert_mlperf.data_prep.split import split
from bert_mlperf.data_prep.verify import verify
from tests.data_prep.verifying import (
    ARTICLES,
    CONTENT,
    KINDS,
    WORDS,
    Report,
    Verify,
    in_this_process,
    md5,
    official_file,
)


@pytest.fixture
def official() -> Official:
    """Small files. Of the three text parts two have a published md5, as most of the real ones have none."""
    files = [official_file(name, CONTENT[name], kind) for name, kind in KINDS.items()]
    files.append(OfficialFile("eval_10k", 5, None, "evaluation samples", "eval samples", "made", optional="made here"))
    parts = {i: CONTENT[f"part-0000{i}-of-00003"] for i in (0, 2)}
    known: dict[int, tuple[int, str | None]] = {i: (len(data), md5(data)) for i, data in parts.items()}
    text = OfficialSet("part-{:05d}-of-00003", 3, "text", None, "text", "training text", "shelf of text", known)
    records = OfficialSet(
        "part-{:05d}-of-00003", 3, "TFRecord", 900, "training samples", "samples", "made", {1: (300, None)}, "made here"
    )
    return Official(tuple(files), (text, records))


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    """A folder with all official files, right."""
    folder = tmp_path / "inputs"
    for name, data in CONTENT.items():
        path = folder / ("parts" if name.startswith("part") else "phase1" if "ckpt" in name else "") / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str], official: Official, monkeypatch: pytest.MonkeyPatch) -> Verify:
    """Runs `verify` in this process, which is faster, or with `workers`."""

    def run(folder: Path, *, workers: int | None = None) -> Report:
        with monkeypatch.context() as patched:
            if workers is None:
                patched.setattr(verify_checks, "run_tasks", in_this_process)
            code = verify(folder, workers=workers, official=official)
        return Report(code, capsys.readouterr().out)

    return run


@pytest.fixture
def steps(made_by_steps: Path, tmp_path: Path) -> Path:
    """A copy of `made_by_steps`."""
    return Path(shutil.copytree(made_by_steps, tmp_path / "work"))


@pytest.fixture(scope="module")
def made_by_steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of text steps, examples and converted examples, made with a vocabulary of our own."""
    folder = tmp_path_factory.mktemp("steps")
    for i in (0, 1):
        (folder / f"text{i}").write_text(ARTICLES)
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in WORDS))
    split([folder / "text0", folder / "text1"], out=folder / "split", num_eval_articles=4, workers=1)
    gather([folder / "split" / "train"], out=folder / "parts", num_parts=2, workers=1)
    options = ExampleOptions(dupe_factor=1, max_seq_length=64)
    vocabulary = folder / "vocab.txt"
    examples(
        [folder / "parts"], vocabulary=vocabulary, out=folder / "train", options=options, own_vocabulary=True, workers=1
    )
    text = folder / "split" / "eval.txt"
    eval_examples(text, vocabulary=vocabulary, out=folder / "test", options=options, num_samples=3, own_vocabulary=True)
    convert([folder / "train"], to="fixed", out=folder / "fixed", vocab_size=len(WORDS), workers=1)
    return folder
