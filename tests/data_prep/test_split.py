import hashlib
import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_mlperf.data_prep.clean import clean
from bert_mlperf.data_prep.gather import gather
from bert_mlperf.data_prep.segment import segment
from bert_mlperf.data_prep.split import count_articles, draw, share, split, split_file
from bert_mlperf.data_prep.stage import Job
from bert_mlperf.data_prep.texts import articles_of
from bert_mlperf.errors import UserError


def run(text: str, folder: Path, *, count: int, seed: int = 1, reference_faults: bool = False) -> tuple[str, str, dict]:
    """The training file, the withheld file and the facts of one file."""
    (folder / "text").write_text(text, encoding="utf-8", newline="")
    arguments = {
        "count": count, "seed": seed, "reference_faults": reference_faults, "raw_bytes": 5, "sized_by": "raw",
    }  # fmt: skip
    job = Job((folder / "text",), ("train", "withheld"), arguments)
    facts = split_file(job, (folder / "train", folder / "withheld"), lambda amount: None)
    train, withheld = ((folder / name).read_bytes().decode() for name in ("train", "withheld"))
    return train, withheld, facts


def md5(article: str) -> str:
    return hashlib.md5(article.encode()).hexdigest()


def test_each_file_gives_its_share_as_in_the_reference() -> None:
    assert [share(10, index=i, num_files=4) for i in range(4)] == [2, 3, 2, 3]
    shares = [share(10_000, index=i, num_files=13_881) for i in range(13_881)]
    assert sum(shares) == 10_000 and set(shares) == {0, 1}


def test_draws_are_those_of_the_seeded_generator_and_a_blank_one_is_drawn_again() -> None:
    rng = random.Random(3)
    stream = [int(rng.random() * 6) for _ in range(40)]
    order = list(dict.fromkeys(stream))
    blank = [i == order[1] for i in range(6)]
    assert draw(blank, count=3, seed=3, reference_faults=True) == order[:3]
    assert draw(blank, count=3, seed=3, reference_faults=False) == [order[0], order[2], order[3]]


TEXT = "\nA1.\nA2.\n\nB.\n\n\nC.\n\n\n\nD.\n\n"  # articles: "\nA1.\nA2.", "B.", "\nC.", "", "D.", ""


def test_articles_are_numbered_as_in_the_reference_and_written_with_one_empty_line_between(tmp_path: Path) -> None:
    train, withheld, facts = run(TEXT, tmp_path, count=2, seed=1)
    assert draw([False] * 6, count=3, seed=1, reference_faults=True) == [0, 5, 4]
    assert (facts["articles"], facts["blank"], facts["withheld"]) == (6, 2, [0, 4])  # 5 is blank
    assert withheld == "A1.\nA2.\n\nD.\n"
    assert train == "B.\n\nC.\n"
    assert facts["md5"] == [md5("A1.\nA2."), md5("D.")]
    assert (facts["raw_bytes"], facts["sized_by"]) == (5, "raw")


def test_the_faults_of_the_reference_on_request(tmp_path: Path) -> None:
    train, withheld, facts = run(TEXT, tmp_path, count=3, seed=1, reference_faults=True)
    assert facts["withheld"] == [0, 4, 5]
    assert withheld == "\nA1.\nA2.\n\nD.\n\n\n\n"
    assert train == "B.\n\n\nC.\n\n\n\n"
    assert facts["md5"] == [md5("\nA1.\nA2."), md5("D."), md5("")]


def test_only_line_feeds_separate_articles(tmp_path: Path) -> None:
    train, _, facts = run("A.\r\n\r\nB.\x85\x85C.\n \nD.\n", tmp_path, count=0)
    assert facts["articles"] == 1 and train == "A.\r\n\r\nB.\x85\x85C.\n \nD.\n"


@pytest.mark.parametrize("reference_faults", [False, True])
def test_a_file_with_too_few_articles_is_named_and_nothing_is_written(tmp_path: Path, reference_faults: bool) -> None:
    enough = 6 if reference_faults else 4
    assert len(run(TEXT, tmp_path, count=enough, reference_faults=reference_faults)[2]["withheld"]) == enough
    for name in ("train", "withheld"):
        (tmp_path / name).unlink()
    with pytest.raises(UserError, match=rf"text has {enough} articles, expected at least the {enough + 1} "):
        run(TEXT, tmp_path, count=enough + 1, reference_faults=reference_faults)
    assert not (tmp_path / "train").exists() and not (tmp_path / "withheld").exists()


@pytest.mark.parametrize("reference_faults", [False, True])
def test_files_with_too_few_articles_are_found_before_anything_is_written(
    tmp_path: Path, reference_faults: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of three files the last one is short; the number that is named works, and one more than its share does not."""
    folder = write_files(tmp_path / "text", ["A.\n\nB.\n\n \n\n\nC.\n\nD.\n"] * 2 + ["A.\n\n\n\n \nB."])
    most = 9 if reference_faults else 6
    with pytest.raises(UserError, match=rf"wiki_02 has {most // 3} articles, .* --eval-articles {most} at most, or"):
        split([folder], out=tmp_path / "out", num_eval_articles=most + 3, reference_faults=reference_faults)
    assert not (tmp_path / "out").exists()
    split([folder], out=tmp_path / "out", num_eval_articles=most, reference_faults=reference_faults, workers=1)
    assert f"split    {most} of 10 articles withheld, in {tmp_path}/out/eval.txt" in capsys.readouterr().err


@given(text=st.text(alphabet="a \n\r\x85", max_size=40), most=st.integers(0, 5))
def test_articles_are_counted_as_they_are_split(tmp_path_factory: pytest.TempPathFactory, text: str, most: int) -> None:
    path = tmp_path_factory.mktemp("count") / "text"
    path.write_text(text, encoding="utf-8", newline="")
    articles = articles_of(text)
    with_text = sum(bool(article.strip()) for article in articles)
    assert count_articles(path, reference_faults=True) == len(articles)
    assert count_articles(path, reference_faults=False) == with_text
    assert count_articles(path, reference_faults=False, most=most) == min(most, with_text)


def test_bytes_that_are_not_utf8_and_a_negative_number_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"A.\n\nB\xc3\n")
    with pytest.raises(UserError, match=r"text is not UTF-8: byte 5 \(from 0\) is 0xc3"):
        split([tmp_path / "text"], out=tmp_path / "out", num_eval_articles=0, workers=1)
    with pytest.raises(UserError, match="-1 evaluation articles"):
        split([tmp_path / "text"], out=tmp_path / "other", num_eval_articles=-1)


LINE = st.sampled_from(["A.", "B b.", "\xe9", " ", "\r", ""])


@given(lines=st.lists(LINE, max_size=30), seed=st.integers(0, 99), data=st.data())
def test_training_and_evaluation_text_are_the_input_exactly(
    tmp_path_factory: pytest.TempPathFactory, lines: Sequence[str], seed: int, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("split")
    text = "".join(f"{i}{line}\n" if line.strip() else f"{line}\n" for i, line in enumerate(lines))
    expected = [article.strip("\n") for article in text.split("\n\n") if article.strip()]
    count = data.draw(st.integers(0, len(expected)))
    train, withheld, facts = run(text, folder, count=count, seed=seed)
    found = {True: [], False: []}
    for name, content in ((False, train), (True, withheld)):
        if content:
            assert content[-1] == "\n" and content[0] != "\n" and "\n\n\n" not in content
            found[name] = content[:-1].split("\n\n")
    assert len(found[True]) == count == len(set(facts["withheld"]))
    assert all(article.strip() for article in found[True])
    numbers = [i for i, article in enumerate(text.split("\n\n")) if article.strip()]
    merged = [found[number in facts["withheld"]].pop(0) for number in numbers]
    assert merged == expected and not found[True] and not found[False]


def write_files(folder: Path, texts: Sequence[str]) -> Path:
    folder.mkdir()
    for i, text in enumerate(texts):
        (folder / f"wiki_{i:02d}").write_text(text, encoding="utf-8", newline="")
    return folder


@pytest.mark.parametrize("reference_faults", [False, True])
def test_eval_files_hold_the_withheld_articles_of_all_files_in_order(tmp_path: Path, reference_faults: bool) -> None:
    texts = [f"A{i}.\n\nB{i}.\n\nC{i}.\n\n" for i in range(3)]
    folder = write_files(tmp_path / "text", texts)
    manifest = split(
        [folder], out=tmp_path / "out", num_eval_articles=5, reference_faults=reference_faults, seed=3, workers=1
    )
    facts = [entry["facts"] for entry in manifest["outputs"][::2]]
    assert [of_file["withheld"] for of_file in facts] == [[0], [1, 2], [1, 2]]  # of four, the last one blank
    articles = [articles_of(text)[i] for text, of_file in zip(texts, facts, strict=True) for i in of_file["withheld"]]
    content = (tmp_path / "out/eval.txt").read_text()
    if reference_faults:
        assert content == "".join(f"{article}\n\n" for article in articles)
    else:
        assert content == "\n\n".join(articles) + "\n" and all(articles)
    assert (tmp_path / "out/eval.md5").read_text() == "".join(f"{md5(article)}\n" for article in articles)
    assert manifest["summary"]["eval_articles"] == 5
    assert manifest["summary"]["eval.txt"]["md5"] == md5(content)
    assert sorted(path.name for path in (tmp_path / "out/train").iterdir()) == ["wiki_00", "wiki_01", "wiki_02"]


@pytest.fixture(scope="module")
def chains(reference_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """The folders of both modes with the reference's four raw files sent through all four stages."""
    folders = {}
    for faults in (False, True):
        out = folders[faults] = tmp_path_factory.mktemp("chain")
        clean([reference_dir / "data/wiki/wiki_0?"], out=out / "clean", reference_faults=faults, workers=1)
        segment([out / "clean"], out=out / "segment", reference_faults=faults, workers=1)
        split([out / "segment"], out=out / "split", num_eval_articles=40, reference_faults=faults, workers=1)
        gather([out / "split/train"], out=out / "parts", reference_faults=faults, workers=1)
    return folders


@pytest.mark.reference
def test_the_whole_chain_gives_the_text_of_the_reference(chains: dict[bool, Path], reference_dir: Path) -> None:
    for ours, theirs in (
        ("parts/part-00000-of-00500", "part-00000-of-00500"),
        ("split/eval.txt", "eval.txt"),
    ):
        assert (chains[True] / ours).read_bytes() == (reference_dir / "data/wiki" / theirs).read_bytes()


@pytest.mark.reference
def test_without_the_faults_the_articles_are_the_same_and_only_empty_lines_differ(chains: dict[bool, Path]) -> None:
    """No blank article is drawn here; the first of a file begins with an empty line in the reference."""
    facts = {}
    for faults, folder in chains.items():
        outputs = json.loads((folder / "split/manifest.json").read_text())["outputs"][::2]
        facts[faults] = [entry["facts"] for entry in outputs]
    differ = []
    for ours, theirs in zip(facts[False], facts[True], strict=True):
        assert {key: ours[key] for key in ours if key != "md5"} == {key: theirs[key] for key in theirs if key != "md5"}
        pairs = zip(ours["withheld"], ours["md5"], theirs["md5"], strict=True)
        differ.append([number for number, a, b in pairs if a != b])
    assert differ == [[0], [], [], [0]]
    for ours, theirs, fewer in (
        ("split/eval.txt", "split/eval.txt", 3),
        ("parts/part-00000-of-00001", "parts/part-00000-of-00500", 8),
    ):
        text, reference = (chains[False] / ours).read_text(), (chains[True] / theirs).read_text()
        articles = [article.strip("\n") for article in articles_of(reference) if article.strip()]
        assert text == "\n\n".join(articles) + "\n"
        assert len(reference) - len(text) == fewer  # line feeds
