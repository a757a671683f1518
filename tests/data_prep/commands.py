"""A small corpus, and `bert-mlperf prep ...` as a user runs it."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from bert_mlperf.cli import main
from bert_mlperf.data_prep.demo_corpus import generate_corpus
from bert_mlperf.data_prep.wordpiece import train_vocabulary, write_vocabulary

PROGRAM = (sys.executable, "-m", "bert_mlperf")
SMALL = ("--own-vocabulary", "--max-seq-length", "64", "--max-predictions", "10", "--dupe-factor", "2")


def write_corpus(folder: Path, *, files: int, articles: int) -> Path:
    """Extracted text of `articles` articles in each of `files` files AA/wiki_00 and so on, and vocab.txt."""
    documents = generate_corpus(seed=5, num_documents=files * articles)
    for i in range(files):
        path = folder / "text" / ("AA", "AB")[2 * i // files] / f"wiki_{i:02d}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(map(extracted, documents[i * articles : (i + 1) * articles])))
    write_words(folder / "vocab.txt", documents)
    return folder


def extracted(document: list[str]) -> str:
    """One article as the extractor writes it: a title, and two paragraphs."""
    half = len(document) // 2
    paragraphs = " ".join(document[:half]), " ".join(document[half:])
    return '<doc id="1" url="https://a.example/1" title="A title">\nA title\n\n{}\n{}\n\n</doc>\n'.format(*paragraphs)


def write_parts(folder: Path, *, parts: int, documents: int, repeat: int = 1) -> Path:
    """Prepared text parts/part-0000<i>-of-0000<n> of `documents` documents each, `repeat` times, and vocab.txt."""
    corpus = generate_corpus(seed=6, num_documents=parts * documents)
    (folder / "parts").mkdir(parents=True)
    for i in range(parts):
        text = "\n".join(
            "".join(f"{line}\n" for line in lines) for lines in corpus[i * documents : (i + 1) * documents]
        )
        (folder / "parts" / f"part-{i:05d}-of-{parts:05d}").write_text("\n".join([text] * repeat))
    write_words(folder / "vocab.txt", corpus)
    return folder


def write_words(path: Path, documents: list[list[str]]) -> None:
    write_vocabulary(path, train_vocabulary([line for lines in documents[:200] for line in lines], max_size=600))


def write_manifest(folder: Path, outputs: list[dict[str, Any]]) -> None:
    """The manifest of a step that wrote `outputs` to `folder`."""
    manifest = {"format": "bert-mlperf-prep", "stage": "clean", "versions": {}, "options": {}, "request": ""}
    inputs = [{"name": "text", "bytes": 1, "md5": ""}]
    whole = manifest | {"inputs_in": ".", "inputs": inputs, "outputs": outputs, "summary": {}}
    (folder / "manifest.json").write_text(json.dumps(whole))


def environment(**variables: str) -> Mapping[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1"} | variables


def prep(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs `bert-mlperf prep ARGUMENTS` in `folder` to its end."""
    return subprocess.run(
        [*PROGRAM, "prep", *arguments], cwd=folder, env=environment(**variables), capture_output=True, text=True
    )


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Starts `bert-mlperf prep ARGUMENTS` in `folder`, in a process group of its own."""
    return subprocess.Popen(
        [*PROGRAM, "prep", *arguments],
        cwd=folder,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def refused(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one sentence with which `prep ARGUMENTS` ends with exit code 2."""
    capfd.readouterr()
    try:
        code = main(["prep", *arguments])
    except SystemExit as stop:
        code = stop.code
    lines = capfd.readouterr().err.splitlines()
    assert code == 2, lines
    return complaint(lines)


def complaint(lines: list[str]) -> str:
    """The last line, which must be the only one that is not progress: a full sentence that says what to do."""
    *before, last = lines
    steps = r"(clean|segment|split|gather|examples|count|eval) +(about )?\S+ "
    assert all(re.match(steps, line) for line in before), lines
    assert last.startswith("error: ") and re.search(r"\.$|--help$", last), lines
    return last.removeprefix("error: ")


def files_of(folder: Path) -> dict[str, bytes]:
    """What lies in `folder` under final names."""
    return {name: content for name, content in everything_in(folder).items() if not name.startswith(".unfinished/")}


def everything_in(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def children_of(pid: int) -> list[int]:
    """Processes that `pid` started and that run."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = path.read_text().rsplit(")", 1)[1].split()[:2]
        except OSError:
            continue
        if int(parent) == pid and state != "Z":
            found.append(int(path.parent.name))
    return found


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
