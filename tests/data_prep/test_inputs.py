import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from bert_mlperf.data_prep.inputs import find_sources
from bert_mlperf.errors import UserError


@pytest.fixture
def text(tmp_path: Path) -> Path:
    for name in ("AB/wiki_00", "AA/wiki_01", "AA/wiki_00", "manifest.json", ".hidden/x", "AA/.y"):
        path = tmp_path / "text" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x\n")
    return tmp_path / "text"


def test_order_and_names(text: Path) -> None:
    names = ["AA/wiki_00", "AA/wiki_01", "AB/wiki_00"]
    for patterns in (
        [text],
        [f"{text}/*/wiki_??"],
        [text / "AB", text / "AA"],
        [text / "AB" / "wiki_00", f"{text}/AA/*", text / "AA" / "wiki_01"],
        [os.path.relpath(text), text],  # named twice, in two ways
    ):
        sources = find_sources(patterns)
        assert [source.name for source in sources] == names
        assert [source.path.absolute() for source in sources] == [text / name for name in names]


def test_one_file(text: Path) -> None:
    (source,) = find_sources([text / "AA" / "wiki_00"])
    assert source.name == "wiki_00"


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("<text/*/wiki_??", "no file matches '<text/"),
        ("nothing", "no file matches 'nothing'"),
        ("text/A?", "also matches text/A., which is no file"),
        ("text/.hidden/", None),
        ("empty", "the input folder empty holds no files"),
        ("none", r"the input .*/none is empty \(0 bytes\)"),
    ],
)
def test_bad_patterns(text: Path, monkeypatch: pytest.MonkeyPatch, pattern: str, message: str | None) -> None:
    monkeypatch.chdir(text.parent)
    Path("empty").mkdir()
    Path("none").touch()
    if message is None:
        assert [source.name for source in find_sources([pattern])] == ["x"]  # hidden, but named
        return
    with pytest.raises(UserError, match=message):
        find_sources(["text/AA", pattern])


def test_a_folder_that_cannot_be_read_is_named(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scandir = os.scandir

    def refuse(path: str) -> Iterator[os.DirEntry[str]]:
        if str(path).endswith("AB"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(UserError, match=r"input folder .*AB cannot be read: Permission denied; check its permissions"):
        find_sources([text])
