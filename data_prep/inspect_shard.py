"""`prep inspect`: what a shard or a data set holds, in numbers, as a histogram of lengths, as the text of a sample."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from bert_mlperf.data.parts import MappedPart, Part, open_parts
from bert_mlperf.data.samples import Samples
from bert_mlperf.data_prep.fingerprint import (
    OFFICIAL_EVAL_INPUT_IDS_MD5,
    OFFICIAL_EVAL_SAMPLES,
    Fingerprint,
    InputIdsMd5,
)
from bert_mlperf.data_prep.wordpiece import MASK, read_vocabulary
from bert_mlperf.errors import UserError
from bert_mlperf.report.charts import BLUE, DOTS_PER_INCH, ORANGE

_BINS = 16
_BAR = 50  # characters of the longest bar
_SIZE_INCHES = (8.0, 4.5)
_NAME = 40  # characters of the longest name in a title


def inspect(path: str | Path, *, sample: int | None = None, vocab: Path | None = None, png: Path | None = None) -> None:
    """Prints what the shard or the folder of shards `path` (any layout) holds: counts, the share of random next
    segments, a fingerprint per field and a histogram of lengths; with `sample` and `vocab` (a file) also the text of
    sample number `sample`; with `png` the histogram is drawn to this new file.

    Memory does not grow with the set. Raises UserError if the data are damaged, if there is no such sample, if the
    vocabulary is missing or too small for the sample, or if `png` exists or cannot be written.
    """
    if sample is not None and vocab is None:
        raise UserError(f"sample {sample} cannot be shown as text without its vocabulary; give --vocab FILE.")
    if png is not None and png.exists():
        raise UserError(f"{png} exists already and is not overwritten; give another name for the picture.")
    tokens = read_vocabulary(vocab).tokens if vocab is not None else ()
    layout, parts = open_parts(path)
    found = _Contents(sample)
    for chunk in _chunks(parts):
        found.add(chunk)
    if sample is not None and found.sample is None:
        raise UserError(f"{path} has no sample {sample}, only {found.num_samples:,} counted from 0; give one of these.")
    print(_table(path, layout, len(parts), found))
    print(_histogram_text(found.lengths))
    if found.sample is not None:
        print(f"\nsample {sample}\n{sample_text(found.sample, tokens, where=f'sample {sample} of {path}')}")
    if png is not None:
        count = f"{found.num_samples:,} sample{'s' * (found.num_samples != 1)}"
        _draw_lengths(png, found, title=f"{_short_name(path)}: {count}, {layout}")
        print(f"\nhistogram drawn to {png}")


def _chunks(parts: list[Part]) -> Iterator[Samples]:
    for part in parts:
        if isinstance(part, MappedPart):
            part.check_digest()
        done = 0
        for chunk in part.chunks():
            longest, highest = int(chunk.lengths.max(initial=1)), int(chunk.input_ids.max(initial=0))
            highest = max(highest, int(chunk.masked_ids.max(initial=0)))
            chunk.validate(highest + 1, longest, where=str(part.path), first_sample=done)
            yield chunk
            done += chunk.num_samples


class _Contents:
    """What is known of the samples seen so far, and the sample that was asked for."""

    def __init__(self, wanted: int | None) -> None:
        self.num_samples = self.num_masked = self.num_random = 0
        self.lengths = np.zeros(1, dtype=np.int64)  # samples of each length
        self.fingerprint = Fingerprint()
        self.input_ids_md5 = InputIdsMd5()
        self.sample: Samples | None = None
        self._wanted = wanted

    def add(self, chunk: Samples) -> None:
        counts = np.bincount(chunk.lengths, minlength=len(self.lengths))
        counts[: len(self.lengths)] += self.lengths
        self.lengths = counts
        if self._wanted is not None and 0 <= self._wanted - self.num_samples < chunk.num_samples:
            self.sample = chunk.take(np.array([self._wanted - self.num_samples]))
        self.num_samples += chunk.num_samples
        self.num_masked += chunk.num_masked
        self.num_random += int(chunk.next_sentence_labels.sum(dtype=np.int64))
        self.fingerprint.add(chunk)
        if self.num_samples <= OFFICIAL_EVAL_SAMPLES:  # of larger sets nobody asks
            self.input_ids_md5.add(chunk)

    @property
    def num_tokens(self) -> int:
        return int(self.lengths @ np.arange(len(self.lengths)))


def _table(path: str | Path, layout: str, num_files: int, found: _Contents) -> str:
    n = found.num_samples
    lines = {
        "data": str(path),
        "layout": layout,
        "files": f"{num_files:,}",
        "samples": f"{n:,}",
        "tokens": f"{found.num_tokens:,}, {found.num_tokens / n:.1f} a sample, {len(found.lengths) - 1:,} at most",
        "predictions": f"{found.num_masked:,}, {found.num_masked / n:.1f} a sample",
        "next segment": f"{found.num_random / n:.1%} random, {1 - found.num_random / n:.1%} real",
    }
    lines |= {f"sha256 {name}": digest for name, digest in found.fingerprint.digests().items()}
    if n == OFFICIAL_EVAL_SAMPLES:
        md5 = found.input_ids_md5.hexdigest()
        verdict = "is" if md5 == OFFICIAL_EVAL_INPUT_IDS_MD5 else "is not"
        lines["md5 input_ids"] = f"{md5}: this {verdict} the official evaluation set"
    return "\n".join(f"{name:28s} {value}" for name, value in lines.items())


def histogram(lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """16 bins of equal width from length 1 up: edges int64 [17], bin i holds lengths edges[i] to edges[i+1] - 1, and
    the samples in each, int64 [16]. `lengths` (int64) holds the samples of each length from 0 on."""
    width = -(-(len(lengths) - 1) // _BINS) or 1
    edges = 1 + width * np.arange(_BINS + 1)
    padded = np.zeros(edges[-1], dtype=np.int64)
    padded[: len(lengths)] = lengths
    return edges, padded[1:].reshape(_BINS, width).sum(axis=1)


def _histogram_text(lengths: np.ndarray) -> str:
    edges, counts = histogram(lengths)
    rows = ["", "length in tokens      samples"]
    for first, behind, count in zip(edges, edges[1:], counts, strict=False):
        bar = "#" * -(-_BAR * count // counts.max())
        rows.append(f"{first:6,} to {behind - 1:6,} {count:13,} {bar}".rstrip())
    return "\n".join(rows)


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


def _short_name(path: str | Path) -> str:
    """The name of a file or folder, cut in the middle if the title has no room for it."""
    name = Path(path).resolve().name
    return name if len(name) <= _NAME else f"{name[: _NAME // 2 - 3]}...{name[-_NAME // 2 :]}"


def _draw_lengths(path: Path, found: _Contents, *, title: str) -> None:
    edges, counts = histogram(found.lengths)
    figure = Figure(figsize=_SIZE_INCHES, dpi=DOTS_PER_INCH, layout="constrained")
    axes = figure.subplots()
    axes.bar(edges[:-1] - 0.5, counts, width=np.diff(edges), align="edge", color=BLUE, edgecolor="white")
    mean = found.num_tokens / found.num_samples
    axes.axvline(mean, color=ORANGE, linestyle="--", label=f"mean {mean:.1f} tokens")
    axes.set_title(title, fontsize=12, parse_math=False)  # a "$" in a name is a "$"
    axes.set_xlabel("length of the sample (tokens)")
    axes.set_ylabel("samples")
    axes.set_xlim(0, edges[-1])
    axes.set_xticks(edges[::2] - 1)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    axes.legend(loc="best")
    try:
        figure.savefig(path, format="png")
    except OSError as error:
        raise UserError(f"the picture {path} cannot be written: {error.strerror}; give another name.") from None
