"""Conversion works in chunks: ten times the samples need hardly more memory."""

import tracemalloc
from functools import partialmethod
from pathlib import Path

import numpy as np
import pytest

from bert_mlperf.data.parts import MappedPart, PublishedPart
from bert_mlperf.data_prep.convert import LAYOUTS, _convert_file
from bert_mlperf.data_prep.stage import Job
from tests.data.files import VOCAB_SIZE, make_samples
from tests.data_prep.layout_files import write_layout

ROWS = 64  # of a chunk, so that a thousand samples are many chunks


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards small and large, in `LAYOUTS` each; the large one has ten times the samples, most of 512 tokens."""
    folder = tmp_path_factory.mktemp("memory")
    samples = make_samples([512, 512, 512, 60] * (ROWS // 2))
    write_layout(folder / "small-shards", samples, "shards")
    write_layout(folder / "large-shards", samples.take(np.tile(np.arange(2 * ROWS), 10)), "shards")
    for size in ("small", "large"):
        for layout in ("tfrecord", "fixed", "variable", "packed"):
            convert(folder / f"{size}-shards", folder / f"{size}-{layout}", "shards", layout)
    return folder


def convert(source: Path, target: Path, layout: str, to: str) -> None:
    job = Job((source,), (target.name,), {"layout": LAYOUTS[layout], "to": to, "vocab_size": VOCAB_SIZE})
    _convert_file(job, (target,), lambda _: None)


@pytest.mark.parametrize(
    ("layout", "to"),
    [("shards", to) for to in ("tfrecord", "fixed", "variable", "packed")]
    + [(layout, "shards") for layout in ("tfrecord", "fixed", "variable", "packed")],
)
def test_ten_times_the_samples_need_hardly_more_memory(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str, to: str
) -> None:
    for kind in (MappedPart, PublishedPart):
        monkeypatch.setattr(kind, "chunks", partialmethod(kind.chunks, rows=ROWS))
    monkeypatch.setattr("bert_mlperf.data_prep.layouts.ROWS", ROWS)
    monkeypatch.setattr("bert_mlperf.data.ragged._PROBE", ROWS)
    peaks = {}
    for size in ("small", "large"):
        tracemalloc.start()
        convert(sources / f"{size}-{layout}", tmp_path / size, layout, to)
        peaks[size] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    whole = (sources / "large-shards").stat().st_size
    assert whole > 1_500_000 and peaks["large"] - peaks["small"] < whole / 4
