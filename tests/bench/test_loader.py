"""`bench loader`: it runs in every mode, its figures mean what they say, and bad options are refused."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from bert_mlperf.bench import loader, loader_rank
from bert_mlperf.bench.loader import Settings, bench_loader, cells, make_shards
from bert_mlperf.cli import main
from bert_mlperf.data.dali import dali_missing
from bert_mlperf.data.shards import ShardSet
from bert_mlperf.errors import UserError


def test_a_small_run(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "measure_plan", lambda folder, millions: {"grown": 1.0, "milliseconds": 2.0})
    bench_loader(Settings(ranks=2, micro_batch=8, samples=200, seconds=0.1, out=tmp_path))
    out = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in out.splitlines() if "│" in line]
    ways = [("torch", "index"), ("torch", "exchange"), ("dali", "index"), ("dali", "exchange")]
    assert [tuple(row[:2]) for row in rows[:-3]] == ways[: 4 if dali_missing() is None else 2]
    assert all(float(row[3].replace(",", "")) > 100 for row in rows[:-3])
    assert [row[0] for row in rows[-3:]] == ["none", "strided", "snake"]
    assert rows[-1][1] == "+0.16%"
    assert (tmp_path / "balance.png").read_bytes()[:4] == b"\x89PNG"


def test_the_worst_rank_is_shown() -> None:
    ranks = [
        {"first": 0.5, "rate": 100.0, "cpu_rate": 300.0, "memory": 10.0, "grown": 2.0, "waited": 0.5, "late": 0.0},
        {"first": 0.1, "rate": 200.0, "cpu_rate": 250.0, "memory": 20.0, "grown": 1.0, "waited": 0.1, "late": 0.3},
    ]
    assert cells(ranks) == ["0.50", "100", "250", "20", "+2.0 MB", "50.00%, 0.3 s late"]


def test_a_paced_consumer_counts_what_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten draws in one second; each makes it wait 30 ms."""
    now = [100.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    source = SimpleNamespace(wait_seconds=5.0)

    def steps():
        while True:
            now[0] += 0.03
            source.wait_seconds += 0.03
            yield None

    monkeypatch.setattr(loader_rank, "time", SimpleNamespace(perf_counter=lambda: now[0], sleep=sleep))
    waited, late = loader_rank.paced(source, steps(), interval=0.1, seconds=1.0)
    assert waited == pytest.approx(0.3) and late == pytest.approx(0.0)
    waited, late = loader_rank.paced(source, steps(), interval=0.02, seconds=1.0)
    assert waited == pytest.approx(1.0) and late == pytest.approx(0.5)


def test_made_samples_have_the_lengths_of_the_distribution(tmp_path: Path) -> None:
    shards = ShardSet.open(make_shards(tmp_path), vocab_size=30_522, max_length=512)
    assert shards.num_samples == 20_000 and len(shards.index.files) == 8
    assert shards.index.lengths.mean() == pytest.approx(256, rel=0.03)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--ranks", "0"], "got --ranks 0, --micro-batch 48 and --workers 1, expected 1 to 16 ranks"),
        (["--samples", "5"], "got --samples 5 and --seconds 60, expected 48 to 1,000,000,000 samples"),
        (["--seconds", "nan"], "got --samples 100000 and --seconds nan, expected"),
        (["--data", "nowhere"], "the data path nowhere does not exist"),
    ],
)
def test_bad_options(
    arguments: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "loader", *arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"--out is .*file/x, where no folder can be made"):
        bench_loader(Settings(out=tmp_path / "file" / "x"))
