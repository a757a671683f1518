"""One sample of a data set as text: what stands there, and what is to be predicted."""

import shutil
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bert_mlperf.data.parts import MappedPart, Part
from bert_mlperf.data.samples import Samples
from bert_mlperf.data_prep.made_with import made_with
from bert_mlperf.data_prep.stage import md5_of
from bert_mlperf.data_prep.wordpiece import MASK, read_vocabulary
from bert_mlperf.errors import UserError

PIPE_WIDTH = 100  # characters of a line


def print_sample(path: str | Path, parts: Sequence[Part], number: int, vocabulary: Path) -> None:
    """Prints sample `number` of the files `parts` of `path`, wrapped to the width of the terminal. Reads the file that
    holds it at most, of a shard of ours only the sample.

    Raises UserError if there is no such sample, if the file is damaged, or for another vocabulary than its own.
    """
    tokens = read_vocabulary(vocabulary).tokens
    part, place = _part_of(path, parts, number)
    _check_vocabulary(part.path, vocabulary, size=len(tokens))
    text = sample_text(_sample(part, place), tokens, where=f"sample {number} of {path}")
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else PIPE_WIDTH
    print(f"sample {number}")
    for line in text.splitlines():
        print(textwrap.fill(line, width, subsequent_indent="   ", break_long_words=False, break_on_hyphens=False))


def sample_text(sample: Samples, tokens: tuple[str, ...], *, where: str) -> str:
    """The one sample as text, segment by segment. Word pieces are joined; a prediction shows what stands there and what
    is to be predicted. UserError, naming `where`, if `tokens` (by id) does not reach to its ids."""
    highest = max(int(sample.input_ids.max()), int(sample.masked_ids.max(initial=0)))
    if highest >= len(tokens):
        raise UserError(
            f"{where} has token id {highest}, but the vocabulary only {len(tokens):,} tokens; give the vocabulary of "
            "these data."
        )
    originals = dict(zip(sample.masked_positions.tolist(), sample.masked_ids.tolist(), strict=True))
    segments = [""] * 2
    for place, (token, segment) in enumerate(zip(sample.input_ids.tolist(), sample.segment_ids.tolist(), strict=True)):
        shown = tokens[token]
        if place in originals:
            original = tokens[originals[place]]
            shown += "(kept)" if originals[place] == token else f"->{original}"
        joined = shown.startswith("##") and place not in originals and place - 1 not in originals
        segments[segment] += shown.removeprefix("##") if joined else f" {shown}"
    label = ("0, B is the real next segment", "1, B is a random segment")[int(sample.next_sentence_labels[0])]
    return "\n".join(
        [
            f"A:{segments[0]}",
            f"B:{segments[1]}",
            f"label: {label}",
            f"({MASK}->word: masked, word is to be predicted; shown->word: replaced by a random token; word(kept): to "
            "be predicted, but left as it is; ##: piece of a word)",
        ]
    )


def _part_of(path: str | Path, parts: Sequence[Part], number: int) -> tuple[Part, int]:
    """The file that holds sample `number`, and its place there."""
    first = 0
    for part in parts:
        count = part.count_samples()
        if 0 <= number - first < count:
            return part, number - first
        first += count
    raise UserError(f"{path} has no sample {number}, only {first:,} counted from 0; give one of these.")


def _sample(part: Part, place: int) -> Samples:
    if isinstance(part, MappedPart):
        samples, first = part.samples(), 0
        samples.check_structure(where=str(part.path))
    else:
        first = 0
        for samples in part.chunks():
            if place < first + samples.num_samples:
                break
            first += samples.num_samples
    sample = samples.take(np.array([place - first]))
    highest = max(int(ids.max(initial=0)) for ids in (sample.input_ids, sample.masked_ids))
    longest = int(sample.lengths.max(initial=1))
    sample.validate(highest + 1, longest, where=str(part.path), first_sample=place)
    return sample


def _check_vocabulary(path: Path, vocabulary: Path, *, size: int) -> None:
    made = made_with(path)
    if made.size not in (None, size):
        raise UserError(
            f"{path} was made with a vocabulary of {made.size:,} tokens, {vocabulary} has {size:,}; give the "
            "vocabulary of these data as --vocab."
        )
    if made.md5 is not None and made.md5 != (md5 := md5_of(vocabulary)):
        raise UserError(
            f"{path} was made with a vocabulary of md5 {made.md5}, {vocabulary} has {md5}; give the vocabulary "
            "of these data as --vocab."
        )
