"""`prep inspect`: what a shard or a data set holds, in numbers, as a histogram of lengths, as the text of a sample."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from bert_mlperf.data.parts import Part, open_parts
from bert_mlperf.data.samples import Samples
from bert_mlperf.data_prep.fingerprint import (
    OFFICIAL_EVAL_INPUT_IDS_MD5,
    OFFICIAL_EVAL_SAMPLES,
    Fingerprint,
    InputIdsMd5,
)
from bert_mlperf.data_prep.reading import tracked_chunks
from bert_mlperf.data_prep.sample_text import print_sample
from bert_mlperf.data_prep.stage import number_of
from bert_mlperf.errors import UserError
from bert_mlperf.report.charts import BLUE, DOTS_PER_INCH, ORANGE
from bert_mlperf.report.work_progress import WorkProgress

_BINS = 16
_BAR = 50  # characters of the longest bar
_SIZE_INCHES = (8.0, 4.5)
_NAME = 40  # characters of the longest name in a title


def inspect(path: str | Path, *, sample: int | None = None, vocab: Path | None = None, png: Path | None = None) -> None:
    """Prints what the shard or the folder of shards `path` (any layout) holds: counts, the share of random next
    segments, a fingerprint per field and a histogram of lengths; with `png` the histogram is drawn to this new file.
    With `sample` and `vocab` (a file) only the text of sample number `sample`, unless there is `png`, too.

    Memory does not grow with the set. Raises UserError if the data are damaged, if there is no such sample, if the
    vocabulary is missing or another one than that of the data, or if `png` exists or cannot be written.
    """
    if png is not None:
        _check_picture(png)
    if sample is not None and vocab is None:
        raise UserError(f"sample {sample} cannot be shown as text without its vocabulary; give --vocab FILE.")
    layout, parts = open_parts(path)
    if sample is not None and vocab is not None:
        print_sample(path, parts, sample, vocab)
        if png is None:
            return
    found = _Contents()
    for chunk in _chunks(parts):
        found.add(chunk)
    print(_table(path, layout, len(parts), found))
    print(_histogram_text(found.lengths))
    if png is not None:
        count = number_of(found.num_samples, "sample")
        _draw_lengths(png, found, title=f"{_short_name(path)}: {count}, {layout}")
        print(f"\nhistogram drawn to {png}")


def _check_picture(path: Path) -> None:
    """UserError, before anything is read, if no picture can be drawn to `path`."""
    if path.suffix.lower() != ".png":
        raise UserError(f"the picture {path} does not end in .png, the one format that is drawn; give such a name.")
    if path.exists():
        raise UserError(f"{path} exists already and is not overwritten; give another name for the picture.")
    if not path.parent.is_dir():
        raise UserError(f"the picture {path} cannot be written: there is no folder {path.parent}; make it first.")


def _chunks(parts: list[Part]) -> Iterator[Samples]:
    """All samples, checked, with a bar."""
    total = sum(part.path.stat().st_size for part in parts)
    with WorkProgress("inspect", total_bytes=total, total_files=len(parts)) as progress:
        read = 0

        def count(amount: int) -> None:
            nonlocal read
            read += amount
            progress.bytes_done(read)

        for part in parts:
            yield from tracked_chunks(part, count)
            progress.file_done()


class _Contents:
    """What is known of the samples seen so far."""

    def __init__(self) -> None:
        self.num_samples = self.num_masked = self.num_random = 0
        self.lengths = np.zeros(1, dtype=np.int64)  # samples of each length
        self.fingerprint = Fingerprint()
        self.input_ids_md5 = InputIdsMd5()

    def add(self, chunk: Samples) -> None:
        counts = np.bincount(chunk.lengths, minlength=len(self.lengths))
        counts[: len(self.lengths)] += self.lengths
        self.lengths = counts
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
