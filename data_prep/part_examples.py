"""One part of text to one shard of masked examples, in little memory whatever the size of the part.

    text ── part_text.py ─▶ token ids (spilled) ── examples.c ─▶ examples (spilled) ── final order ─▶ shard

Everything large lies in nameless files beside the target and is mapped; in memory are the words seen, offsets of
sentences, and offsets and places of examples (about 30 bytes each). The examples are those of `examples.make_examples`.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from bert_mlperf.data.shard_file import ShardWriter
from bert_mlperf.data_prep.examples import ExampleOptions
from bert_mlperf.data_prep.native import ExampleMaker, FlatExamples, FlatText, Gatherer
from bert_mlperf.data_prep.part_text import encode_text
from bert_mlperf.data_prep.spill import Spill
from bert_mlperf.data_prep.wordpiece import Vocabulary, read_vocabulary
from bert_mlperf.data_prep.words import Words
from bert_mlperf.errors import UserError

Progress = Callable[[int], None]
Select = Callable[[int], np.ndarray]
_SAMPLES_AT_ONCE = 4096
_READ, _MADE = 0.4, 0.8  # shares of the time after which a part is read and its examples are made


def write_part_examples(
    text: Path,
    target: Path,
    *,
    vocabulary: Path,
    options: ExampleOptions,
    select: Select | None = None,
    allow_long_lines: bool = False,
    progress: Progress = lambda _: None,
) -> dict[str, Any]:
    """Writes the examples of the text file `text` (one sentence a line) to the new shard `target`.

    `select` gets the number of examples N and gives the places (integers, each in [0, N)) in the final order that are
    written, in this order; without it all are. progress(n) hears of n more bytes of `text` that are dealt with. Returns
    counts (documents, sentences and tokens_of_text of the text; samples, tokens, masked and max_length of the shard)
    and the sha256 of the samples. Raises UserError for bad input (see `part_text.encode_text`) and full disks.
    """
    words_of = read_vocabulary(vocabulary)
    report = _Report(text, progress)
    with _writing_to(target.parent), ExitStack() as open_spills:
        flat = _encoded(text, target.parent, words_of, open_spills, report, allow_long_lines=allow_long_lines)
        maker = ExampleMaker(flat, vocabulary=words_of, options=options)
        examples = _spilled(maker, target.parent, words_of, open_spills, report)
        order = maker.final_order(examples.num_examples)
        if select is not None:
            order = order[select(len(order))]
        facts = _write(examples, order, target, vocab_size=words_of.size, report=report)
    report.reached(1.0)
    return {
        "documents": flat.num_documents,
        "sentences": len(flat.sentence_offsets) - 1,
        "tokens_of_text": len(flat.tokens),
        **facts,
    }


def count_examples(
    text: Path,
    folder: Path,
    *,
    vocabulary: Path,
    options: ExampleOptions,
    allow_long_lines: bool = False,
    progress: Progress = lambda _: None,
) -> int:
    """How many examples `write_part_examples` makes of `text`; `folder` takes the token ids meanwhile."""
    words_of = read_vocabulary(vocabulary)
    report = _Report(text, progress)
    with _writing_to(folder), ExitStack() as open_spills:
        flat = _encoded(text, folder, words_of, open_spills, report, allow_long_lines=allow_long_lines)
        maker = ExampleMaker(flat, vocabulary=words_of, options=options)
        number = sum(block.num_examples for block in maker)
    report.reached(1.0)
    return number


class _Report:
    """Turns shares of the work on a file into bytes of the file; they add up to its size."""

    def __init__(self, text: Path, progress: Progress) -> None:
        self._bytes = text.stat().st_size if text.exists() else 0
        self._reported = 0
        self._progress = progress

    def read(self, num_bytes: int) -> None:
        self.reached(self._reported / max(self._bytes, 1) + _READ * num_bytes / max(self._bytes, 1))

    def reached(self, share: float) -> None:
        reached = int(min(share, 1.0) * self._bytes)
        self._progress(reached - self._reported)
        self._reported = reached


def _encoded(
    text: Path,
    folder: Path,
    vocabulary: Vocabulary,
    open_spills: ExitStack,
    report: _Report,
    *,
    allow_long_lines: bool,
) -> FlatText:
    tokens = open_spills.enter_context(Spill(folder, np.dtype(np.int32)))
    words = Words(vocabulary.ids)
    return encode_text(text, words=words, tokens=tokens, allow_long_lines=allow_long_lines, on_bytes=report.read)


def _spilled(
    maker: ExampleMaker, folder: Path, vocabulary: Vocabulary, open_spills: ExitStack, report: _Report
) -> FlatExamples:
    """All examples in the order of making, mapped."""
    spills: dict[str, Spill] = {}
    for block in maker:
        for name in FlatExamples.__dataclass_fields__:
            values = getattr(block, name)
            if name not in spills:
                spills[name] = open_spills.enter_context(Spill(folder, values.dtype))
            spills[name].write(values)
        report.reached(_READ + (_MADE - _READ) * maker.fraction_done)
    return FlatExamples(**{name: spill.mapped() for name, spill in spills.items()})


def _write(
    examples: FlatExamples, order: np.ndarray, target: Path, *, vocab_size: int, report: _Report
) -> dict[str, Any]:
    """The examples `order` as the shard `target`."""
    lengths, masked_counts = examples.lengths[order], examples.masked_counts[order]
    counts = {
        "num_samples": len(order),
        "num_tokens": int(lengths.sum(dtype=np.int64)),
        "num_masked": int(masked_counts.sum(dtype=np.int64)),
        "max_length": int(lengths.max(initial=0)),
    }
    gatherer = Gatherer(examples)
    with ShardWriter(target, vocab_size=vocab_size, **counts) as writer:
        for first in range(0, len(order), _SAMPLES_AT_ONCE):
            writer.write(gatherer.take(order[first : first + _SAMPLES_AT_ONCE]))
            report.reached(_MADE + (1 - _MADE) * first / len(order))
    names = {"num_samples": "samples", "num_tokens": "tokens", "num_masked": "masked", "max_length": "max_length"}
    return {names[key]: value for key, value in counts.items()} | {"sha256": writer.sha256}


@contextmanager
def _writing_to(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        free = shutil.disk_usage(folder).free if folder.is_dir() else 0
        raise UserError(
            f"the folder {folder} cannot take the examples: {error.strerror or error} ({free / 1e6:,.0f} MB are free); "
            "make room there, check quota and permissions, or give another folder."
        ) from error
