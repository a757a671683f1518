"""How fast and in how much memory text becomes examples: `bert-mlperf bench prep`.

Each measurement is a process of its own on one core: from its start (interpreter, libraries, vocabulary) to the shard
on disk. Memory is the largest RssAnon of /proc/<pid>/status: pages of mapped files do not count. The peer in the same
run is what one would write without this program: all lines through the BERT tokenizer of the package `tokenizers`, then
the examples in Python (examples.py), on the smallest text.
"""

import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from tokenizers import BertWordPieceTokenizer

from bert_mlperf.data_prep import demo_corpus
from bert_mlperf.data_prep.examples import ExampleOptions, make_examples
from bert_mlperf.data_prep.part_examples import write_part_examples
from bert_mlperf.data_prep.wordpiece import read_vocabulary, train_vocabulary, write_vocabulary
from bert_mlperf.errors import UserError

_SOURCE = Path(__file__).with_name("examples.c")
_POLL_SECONDS = 0.005


@dataclass(frozen=True)
class Measurement:
    """One run over one text."""

    text_bytes: int
    seconds: float
    samples: int
    peak_anonymous: int  # bytes

    @property
    def megabytes_per_s(self) -> float:
        return self.text_bytes / 1e6 / self.seconds


def bench_prep(*, text: Path | None = None, vocabulary: Path | None = None, megabytes: Sequence[float]) -> None:
    """Prints a table of throughput and memory over texts of `megabytes` (10^6 bytes each, at least one).

    `text` is repeated until it is long enough; without it (and `vocabulary`) the demo corpus serves, whose few words
    make it an easy text. Raises UserError for one without the other and for bad input.
    """
    if (text is None) != (vocabulary is None):
        raise UserError("--text and --vocab belong together; give both, or none for the demo corpus.")
    if not all(0 < size < 1e6 for size in megabytes):
        raise UserError(f"--megabytes is {list(megabytes)}, expected sizes above 0 and below 1,000,000; give others.")
    with tempfile.TemporaryDirectory(prefix="bert-mlperf-bench-") as temporary:
        folder = Path(temporary)
        if text is None or vocabulary is None:
            text, vocabulary = _demo(folder)
            name = "the demo corpus"
        else:
            read_vocabulary(vocabulary)
            name = text.name
        compile_seconds = _compile_seconds(folder)
        ours = [_measure_repeated(our_examples, text, size, vocabulary, folder) for size in sorted(megabytes)]
        peer = _measure_repeated(peer_examples, text, min(megabytes), vocabulary, folder)
    _show(name, ours, peer, compile_seconds)


def _show(name: str, ours: list[Measurement], peer: Measurement, compile_seconds: float) -> None:
    console = Console(highlight=False)
    table = Table(title="text to examples, one core")
    for heading in ("text MB", "samples", "seconds", "MB/s", "MB/s with compiling", "memory MB"):
        table.add_column(heading, justify="right")
    for row in ours:
        table.add_row(
            f"{row.text_bytes / 1e6:.1f}",
            f"{row.samples:,}",
            f"{row.seconds:.2f}",
            f"{row.megabytes_per_s:.2f}",
            f"{row.text_bytes / 1e6 / (row.seconds + compile_seconds):.2f}",
            f"{row.peak_anonymous / 1e6:.0f}",
        )
    console.print(table)
    console.print(
        f"{name}, repeated, on {_cpu()}\n"
        f"peer: BertWordPieceTokenizer of tokenizers, then examples.py, {peer.text_bytes / 1e6:.1f} MB: "
        f"{peer.megabytes_per_s:.2f} MB/s, {peer.peak_anonymous / 1e6:.0f} MB; ours on the same text is "
        f"{ours[0].megabytes_per_s / peer.megabytes_per_s:.1f} times as fast.\n"
        f"examples.c compiles in {compile_seconds:.2f} s, once, at installation."
    )


def our_examples(text: Path, vocabulary: Path, folder: Path) -> int:
    facts = write_part_examples(text, folder / "shard.hdf5", vocabulary=vocabulary, options=ExampleOptions())
    return int(facts["samples"])


def peer_examples(text: Path, vocabulary: Path, folder: Path) -> int:
    words = read_vocabulary(vocabulary)
    tokenizer = BertWordPieceTokenizer(str(vocabulary), lowercase=True)
    documents = []
    for document in text.read_text(encoding="utf-8").split("\n\n"):
        encoded = tokenizer.encode_batch(document.split("\n"), add_special_tokens=False)
        documents.append([line.ids for line in encoded if line.ids])
    return make_examples(list(filter(None, documents)), vocabulary=words, options=ExampleOptions()).num_samples


def _measure_repeated(
    work: Callable[[Path, Path, Path], int], text: Path, megabytes: float, vocabulary: Path, folder: Path
) -> Measurement:
    """`measure` of `text`, repeated. What is wrong with the copy is wrong with the text."""
    copy = repeated(text, megabytes, folder)
    try:
        return measure(work, copy, vocabulary, folder)
    except UserError as error:
        raise UserError(str(error).replace(str(copy), str(text))) from None


def measure(work: Callable[[Path, Path, Path], int], text: Path, vocabulary: Path, folder: Path) -> Measurement:
    """`work` in a process of its own on one core."""
    scratch = folder / "scratch"
    scratch.mkdir()
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_in_child, args=(there, work, text, vocabulary, scratch), daemon=True)
    start, peak = time.perf_counter(), 0
    process.start()
    there.close()
    while not here.poll(_POLL_SECONDS):
        peak = max(peak, _anonymous_bytes(process.pid))
    try:
        kind, value = here.recv()
    except EOFError:
        raise UserError("the measured process was killed; make memory free and run the command again.") from None
    seconds = time.perf_counter() - start
    process.join()
    shutil.rmtree(scratch)
    if kind == "bad input":
        raise UserError(value)
    print(f"bench    {work.__name__:13s} {text.stat().st_size / 1e6:.1f} MB: {seconds:.1f} s", file=sys.stderr)
    return Measurement(text.stat().st_size, seconds, value, peak)


def _in_child(
    connection: Any, work: Callable[[Path, Path, Path], int], text: Path, vocabulary: Path, folder: Path
) -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        connection.send(("done", work(text, vocabulary, folder)))
    except UserError as error:
        connection.send(("bad input", str(error)))


def _anonymous_bytes(pid: int | None) -> int:
    try:
        with open(f"/proc/{pid}/status", encoding="ascii") as file:
            return next((int(line.split()[1]) << 10 for line in file if line.startswith("RssAnon")), 0)
    except OSError:
        return 0


def _compile_seconds(folder: Path) -> float:
    """Seconds that a C compiler takes for examples.c."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise UserError("no C compiler (cc, gcc) is found, so its time cannot be measured; install one.")
    start = time.perf_counter()
    target = str(folder / "examples.so")
    subprocess.run([compiler, "-O2", "-std=c99", "-shared", "-fPIC", str(_SOURCE), "-o", target], check=True)
    return time.perf_counter() - start


def repeated(text: Path, megabytes: float, folder: Path) -> Path:
    """`text` again and again until it has about `megabytes`."""
    path = folder / f"{megabytes}.txt"
    if not path.exists():
        try:
            data = text.read_bytes().rstrip(b"\n") + b"\n\n"
        except OSError as error:
            raise UserError(f"the text {text} cannot be read: {error.strerror}; give a UTF-8 text file.") from error
        with open(path, "wb") as file:
            for _ in range(max(1, round(megabytes * 1e6 / len(data)))):
                file.write(data)
    return path


def _cpu() -> str:
    """The name of the processor, as the kernel gives it."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "an unnamed CPU")


def _demo(folder: Path) -> tuple[Path, Path]:
    train, _ = demo_corpus.demo_texts()
    text, vocabulary = folder / "demo.txt", folder / "vocab.txt"
    text.write_text("\n\n".join("\n".join(document) for document in train) + "\n", encoding="utf-8")
    write_vocabulary(
        vocabulary,
        train_vocabulary([line for document in train for line in document], max_size=demo_corpus.VOCAB_SIZE),
    )
    return text, vocabulary
