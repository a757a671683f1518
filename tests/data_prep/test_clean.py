"""Every expected line below is what GNU grep and sed gave for the reference's chain of rules."""

import json
from pathlib import Path

import pytest

from bert_mlperf.data_prep.clean import clean, clean_file, clean_line, clean_text
from bert_mlperf.data_prep.stage import Job
from bert_mlperf.errors import UserError

LINES = [
    ("a [[Category:Towns]] b", None),
    ("a [[category:Towns]] b", "a category:Towns b"),
    ("[[Category:A [x]]]", ""),
    ("[[town]] and [[Rome]]", "town and Rome"),
    ("[[File:x.png|thumb|[[a]] b [[c]]]]", ""),
    ("[[Rome|city]] [[a|b|c]]", "city "),
    ("[[x [[y]] z]]", "x y z"),
    ("[[a|b [[c|d]] e]]", "b d e"),
    ("[[:File:a|b.png|c]] [[file:x|y|z]]", " "),
    ("[[Media:a|b|c.ogg]] [[media:x]]", " media:x"),
    ("[[Image:a|b|c.png]]t", "t"),
    ("a [b] [c|d] [[e|f|g]]", "a b [c|d] "),
    ("[https://x.y site]", "https://x.y site"),
    ("[[[a]]]", "a"),
    ("]] a [[", "]] a [["),
    ("alt=text malt=x", "text mx"),
    ("a[[]]lt=b", "b"),
    ("end</d[[a|b|c]]oc>here", "end\rhere"),
    ("<chem>H2O</chem> x", ">H2O x"),
    ("<chem a<b</chem>", "<chem a<b"),
    ("<ins>new</ins> text", ">new text"),
    ("a<, ref name</ref>b", "ab"),
    ("a<includeonly>x</includeonly>b<includeonly>c<b>d</includeonly>e", "abc<b>de"),
    ("a<includeonly>b<br>c</includeonly>", "abc"),
    ('<graph>{"a":1}</graph>x', "x"),
    ("<graph>{<br>}</graph>", ""),
    ("<section begin=a/>b<section end=a/>c", "c"),
    ("<section a\\b/>c", "<section a\\b/>c"),
    ("<meta x>y/>z", "z"),
    ("<hr a/>b/>c", "c"),
    ("<gallery mode=x>a</gallery>", "a"),
    ("a<ref>b</ref>c<ref name=d/>e<ref f", "ace<ref f"),
    ("<reference x>y", "y"),
    ("<http://a.b>c", "c"),
    ("<Ref>a</Ref>b", "a</Ref>b"),
    ("<mapframe a=b/>c<mapframe a=b>c</mapframe>d", "ccd"),
    ("<mapframe a/b/>c", "c"),
    ("<poem>a</poem><poem style=x>b</poem>", "ab"),
    ("<math>x^2</math>", "x^2"),
    ("<div class=a>b</div>c</div style>d", "bcd"),
    ("<sup>2</sup><br></br><BR></BR><Br></Br><bR>", "2<bR>"),
    ("<s<br>up>a</sup>", "<sup>a"),  # <sup> has had its turn when <br> goes
    ("<del>a</del><nowiki>b</nowiki><NOWIKI>c</NOWIKI><onlyinclude>d</onlyinclude>", "abcd"),
    ("<small>a</small><noinclude>b</noinclude><gallery>c</gallery></references>", "abc"),
    ("<chem>a<br>b</chem>", "ab"),
    ("   ", "   "),
    ("a < b > c & d", "a < b > c & d"),
    ("[[a\xa0b]] \u4e2d[[\xf6|\xe9]]", "a\xa0b \u4e2d\xe9"),
]
HEADER = '<doc id="12" url="https://en.wikipedia.org/wiki?curid=12" title="Anarchism">'


@pytest.mark.parametrize(("line", "expected"), LINES)
def test_a_line_loses_its_markup_as_under_grep_and_sed(line: str, expected: str | None) -> None:
    assert clean_line(line) == expected


def test_the_frame_of_an_article_becomes_one_empty_line() -> None:
    text = (
        f"{HEADER}\nTitle\n\nFirst.\n\n  \nSecond.\n\n</doc>\n{HEADER}\n</doc>\nNot lost.\n{HEADER}\n{HEADER}\nLast.\n"
    )
    assert clean_text(text) == "\nFirst.\n  \nSecond.\n\nNot lost.\n\nLast.\n"  # what follows a header is the title


def test_a_line_that_loses_its_text_stays_as_an_empty_line_and_a_dropped_one_does_not() -> None:
    assert clean_text("a\n<ref>x</ref>\nb\n[[Category:x]]\nc\n") == "a\n\nb\nc\n"


def test_only_line_feeds_end_a_line_of_the_output() -> None:
    assert clean_text("a\x0b\x0c\x1c\x85\u2028b<br>\n") == "a\x0b\x0c\x1c\x85\u2028b\n"


def test_a_last_line_of_one_character_is_lost_only_with_the_faults_of_the_reference() -> None:
    assert clean_text("ab\nc") == "ab\nc\n"
    assert clean_text("ab\nc", reference_faults=True) == "ab\n"
    assert clean_text("ab\ncd", reference_faults=True) == clean_text("ab\ncd") == "ab\ncd\n"


def run(content: bytes, tmp_path: Path) -> bytes:
    source, target = tmp_path / "wiki_00", tmp_path / "out"
    source.write_bytes(content)
    done: list[int] = []
    facts = clean_file(Job((source,), ("wiki_00",), {"reference_faults": False}), (target,), done.append)
    counts = {"articles": 1, "without_text": 0}
    assert facts == {"raw_bytes": len(content), "sized_by": "raw", **counts} and sum(done) == len(content)
    return target.read_bytes()


def test_cr_and_crlf_end_lines_of_the_extractor(tmp_path: Path) -> None:
    content = f"{HEADER}\r\nTitle\r\n\r\nA.\rB.\r\n</doc>\r\n".encode()
    assert run(content, tmp_path) == b"\nA.\nB.\n"


def test_articles_without_text_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    article, empty = f"{HEADER}\nTitle\n\nA.\n\nB.\n</doc>\n", f"{HEADER}\nTitle\n\n</doc>\n"
    for i, text in enumerate([empty + article + empty + empty, article, empty]):
        (tmp_path / f"wiki_{i:02d}").write_text(text)
    manifest = clean([tmp_path / "wiki_*"], out=tmp_path / "out", workers=1)
    counts = [(output["facts"]["articles"], output["facts"]["without_text"]) for output in manifest["outputs"]]
    assert counts == [(4, 3), (1, 0), (1, 1)]
    assert "clean    6 articles, 4 of them without text\n" in capsys.readouterr().err


def test_text_without_articles_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"wiki_00 is not the output of a wiki extractor.*'<doc'"):
        run(b"Plain text.\n", tmp_path)


def test_bytes_that_are_not_utf8_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"wiki_00 is not UTF-8: byte 85 \(from 0\) is 0xff"):
        run(f"{HEADER}\nTitle\n".encode() + b"ab\xff", tmp_path)
    with pytest.raises(UserError, match=r"byte 5 .*is 0xed"):  # half of a surrogate pair
        run(b"<doc \xed\xa0\x80", tmp_path)


def test_the_same_bytes_whatever_the_workers_zone_and_locale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["text/AA/wiki_00", "text/AB/wiki_00"]
    for i, name in enumerate(names):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(f"{HEADER}\nTitle {i}\n\nA [[b]] \xe9 {i}.\n</doc>\n", encoding="utf-8")
    manifests = []
    for workers, zone, locale in ((1, "UTC", "C"), (2, "Asia/Tokyo", "C.UTF-8")):
        monkeypatch.setenv("TZ", zone)
        monkeypatch.setenv("LC_ALL", locale)
        out = tmp_path / f"out{workers}"
        clean([tmp_path / "text"], out=out, extracted_with="wikiextractor 3162bb6", workers=workers)
        manifests.append((out / "manifest.json").read_bytes())
        assert (out / "AB/wiki_00").read_text(encoding="utf-8") == "\nA b \xe9 1.\n"
    assert manifests[0] == manifests[1]
    manifest = json.loads(manifests[0])
    assert manifest["options"]["extracted_with"] == "wikiextractor 3162bb6"
    assert [entry["name"] for entry in manifest["outputs"]] == ["AA/wiki_00", "AB/wiki_00"]
    assert manifest["outputs"][0]["facts"]["raw_bytes"] == (tmp_path / names[0]).stat().st_size
