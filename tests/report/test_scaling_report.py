"""The scaling report: rows, files, pictures and page, of ordinary systems and of odd ones."""

import csv
import io
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from PIL import Image

from bert_mlperf.cli import main
from bert_mlperf.report import scaling_page, scaling_pictures, scaling_rows
from bert_mlperf.report.scaling import Series, scaling
from bert_mlperf.report.score import score
from bert_mlperf.report.systems import find_systems
from tests.mlperf import submission


def series_of(folder: Path) -> list[Series]:
    return scaling([score(system) for system in find_systems([folder])])


@pytest.fixture(autouse=True)
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures of a quarter of the size: they are drawn in a third of the time."""
    monkeypatch.setattr(scaling_pictures, "DOTS_PER_INCH", 55)


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    """One node, and four that take a third of the time for an interval and two intervals more."""
    top = submission.write(tmp_path / "Somebody", system="one")
    return submission.write(top, system="four", nodes=4, interval_ms=20_000, evaluations=19)


class Page(HTMLParser):
    """What of a page matters here: tags that are open, links, names, images."""

    VOID = ("meta", "img", "source", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.sources: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag not in self.VOID:
            self.open.append(tag)
        self.links += [values["href"] or ""] if "href" in values else []
        self.ids += [values["id"] or ""] if "id" in values else []
        self.sources += [value or "" for name, value in attrs if name in ("src", "srcset")]
        assert tag != "img" or values["alt"]
        assert tag != "script"

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_rows_csv_and_json_say_the_same(pair: Path, tmp_path: Path) -> None:
    series = series_of(pair)
    one, four = scaling_rows.rows(series)
    assert (one["steady_efficiency"], four["ideal"], four["global_batch"]) == (1.0, 4.0, 448)
    assert four["steady_efficiency"] == pytest.approx(0.75, rel=1e-3)
    assert four["speed_part"] * four["convergence_part"] == pytest.approx(four["time_speedup"])
    table, content = scaling_rows.write_files(series, tmp_path)
    with table.open() as file:
        read = list(csv.DictReader(file))
    assert [row["system"] for row in read] == ["one", "four"]
    assert float(read[1]["total_efficiency"]) == four["total_efficiency"]
    system = json.loads(content.read_text())["series"][0]["systems"][1]
    assert system["steady"] == four["steady"]
    run = system["sources"][3]
    lines = Path(run["path"]).read_text().splitlines()
    for key in ("run_start", "run_stop", "train_samples", "seed"):
        assert f'"key": "{key}"' in lines[run[f"{key}_line"] - 1]
    assert '"epoch_num": 150080}' in lines[run["first_evaluation_line"] - 1]
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["scaling.csv", "scaling.json"]


def test_a_sentence_for_those_who_read_one(pair: Path) -> None:
    (series,) = series_of(pair)
    assert scaling_rows.headline(series) == (
        "Somebody, A100-SXM: 75.0% of the throughput per accelerator of 8 is kept at 32; the time to train falls 2.68 "
        "times instead of 4: 3.00 from speed x 0.895 from convergence (global batch 448 to 448)."
    )


def test_pictures_in_light_and_dark(pair: Path, tmp_path: Path) -> None:
    series = series_of(pair)
    light = scaling_pictures.Charts(series, dark=False).draw()
    dark = scaling_pictures.Charts(series, dark=True).draw()
    assert list(light) == list(dark) == ["efficiency", "split", "throughput", "time", "samples", "runs"]
    for content, corner in ((light["time"], 250), (dark["time"], 40)):
        image = Image.open(io.BytesIO(content)).convert("L")
        assert image.size[0] == 462 and abs(image.getpixel((0, 0)) - corner) < 30
    paths = scaling_pictures.draw_charts(series, tmp_path)
    assert {path.name for path in paths} == {f"{name}.png" for name in light}


def test_the_page_is_whole_and_every_link_leads_somewhere(pair: Path) -> None:
    text = scaling_page.page(series_of(pair), title="A & B")
    page = Page(text)
    assert page.open == [] and "A & B" in page.text
    assert len(page.links) == 2 * len(scaling_rows.COLUMNS)
    assert {link.removeprefix("#") for link in page.links} == set(page.ids)
    assert len(page.sources) == 12 and all(source.startswith("data:image/png;base64,") for source in page.sources)
    assert "http" not in text and "url(" not in text
    assert str(pair.parent) not in page.text  # places are told from the common folder


def test_names_are_text_and_nothing_else(tmp_path: Path) -> None:
    top = submission.write(tmp_path / "Somebody", system="<b>&amp;\"'x")
    path = next((top / "systems").iterdir())
    path.write_text(path.read_text().replace('"Somebody"', '"<script>alert(1)</script>\\u001b[31m"'))
    for log in top.glob("results/*/bert/*"):
        log.write_text(log.read_text().replace('"seed", "value": ', '"seed", "value": "<i>", "x": '))
    page = Page(scaling_page.page(series_of(top), title="t"))
    assert "<script>alert(1)</script>" in page.text and "<b>&amp;\"'x" in page.text and "\x1b" not in page.text


def test_systems_that_say_little(tmp_path: Path) -> None:
    """No run converged, one run, no evaluation, a batch that differs: numbers are missing, nothing stumbles."""
    top = submission.write(tmp_path / "Somebody", system="failed")
    for log in top.glob("results/failed/bert/*"):
        log.write_text(log.read_text().replace('"success"', '"aborted"'))
    submission.write(top, system="single", runs=1, nodes=2)
    submission.write(top, system="mixed", nodes=2)
    log = top / "results/mixed/bert/result_3.txt"
    log.write_text(re.sub(r'(global_batch_size", "value": )\d+', r"\g<1>1536", log.read_text()))
    submission.write(top, system="mute", nodes=4)
    for log in top.glob("results/mute/bert/*"):
        kept = [
            line for line in log.read_text().splitlines(True) if not re.search("eval_acc|train_sam|run_start", line)
        ]
        log.write_text("".join(kept))
    series = series_of(tmp_path)
    values = {row["system"]: row for row in scaling_rows.rows(series)}
    assert values["failed"]["score_s"] is None and values["mute"]["steady"] is None
    assert values["single"]["interval_low_s"] is None
    notes = "\n".join(scaling_rows.footnotes(series))
    assert "single: 1 run(s) are no MLPerf result, which has 10; the time of fewer than three is" in notes
    assert "Somebody failed: 10 run(s) did not converge" in notes and "there is no time to train" in notes
    sizes = ", ".join(f"{size:,}" for size in sorted((1536, submission.BATCH)))
    assert f"mixed: its runs have different global batches ({sizes})" in notes
    assert scaling_rows.headline(series[0]).endswith("one of the two has no time to train.")
    assert Page(scaling_page.page(series, title="t")).open == []
    assert not any(math.isinf(v) for row in values.values() for v in row.values() if isinstance(v, float))


def test_no_nodes_are_no_system(pair: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = pair / "systems/four.json"
    path.write_text(re.sub(r'("number_of_nodes": )"?4"?', r"\g<1>0", path.read_text()))
    assert main(["report", str(pair)]) == 2
    assert "number_of_nodes and accelerators_per_node are needed" in capsys.readouterr().err


def test_many_submitters_and_one_system(tmp_path: Path) -> None:
    for number in range(9):
        top = submission.write(tmp_path / f"S{number}", system="s" * 90, nodes=2**number, runs=3)
        path = next((top / "systems").iterdir())
        path.write_text(path.read_text().replace('"Somebody"', f'"Submitter {number}"'))
    series = series_of(tmp_path)
    assert len(series) == 9
    assert list(scaling_pictures.Charts(series, dark=False).draw()) == ["throughput", "time", "samples", "runs"]
    assert "scaling takes a second" in scaling_rows.headline(series[0])


def test_the_command(pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "report"
    assert main(["report", str(pair), "--out", str(out)]) == 0
    text = capsys.readouterr().out
    assert re.search(r"efficiency, steady \(%\) +100\.0% +75\.0%", text)
    assert sorted(path.name for path in out.iterdir()) == [
        "efficiency.png", "report.html", "runs.png", "samples.png", "scaling.csv", "scaling.json", "split.png",
        "throughput.png", "time.png",
    ]  # fmt: skip
    assert main(["report", str(pair), "--baseline", "four"]) == 0
    assert re.search(r"efficiency, steady \(%\) +133\.3% +100\.0%", capsys.readouterr().out)
    for arguments, words in (
        ([str(pair), "--baseline", "two"], "no system of this name"),
        ([str(pair), "--out", str(out / "report.html")], "is a file; give a folder"),
        ([str(tmp_path / "gone")], "does not exist"),
    ):
        assert main(["report", *arguments]) == 2
        error = capsys.readouterr().err
        assert words in error and error.count("\n") == 1
