import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bert_mlperf.data_prep.inputs import find_sources, read_manifest
from bert_mlperf.data_prep.request import Job, source_names
from bert_mlperf.data_prep.texts import raw_sizes
from bert_mlperf.errors import UserError
from tests.data_prep.commands import write_manifest


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


@pytest.mark.parametrize("pattern", ["link/../f.txt", "link/../f.*", "./link/.././f.txt", "{}/link/../f.txt"])
def test_a_way_through_a_link_leads_where_the_kernel_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    (tmp_path / "real" / "sub").mkdir(parents=True)
    (tmp_path / "f.txt").write_text("wrong")
    (tmp_path / "real" / "f.txt").write_text("right")
    (tmp_path / "link").symlink_to(tmp_path / "real" / "sub")
    monkeypatch.chdir(tmp_path)
    (source,) = find_sources([pattern.format(tmp_path), "real/f.txt"])  # the same file, named twice
    assert source.path.read_text() == "right" and source.name == "f.txt"
    first, second = find_sources([pattern.format(tmp_path), "f.txt"])
    assert sorted([first.name, second.name]) == ["f.txt", "real/f.txt"]
    right = next(source for source in (first, second) if source.name == "real/f.txt")
    assert right.path.read_text() == "right"
    assert [sizes["raw_bytes"] for sizes in raw_sizes([right.path])] == [5]
    jobs = [Job((source.path,), (source.name,), {}) for source in (first, second)]
    assert source_names(jobs) == [(first.name,), (second.name,)]


def test_a_link_keeps_its_name(text: Path) -> None:
    (text.parent / "links").mkdir()
    (text.parent / "links" / "wiki_07").symlink_to(text / "AA" / "wiki_00")
    (text.parent / "folder").symlink_to(text / "AB")
    assert [source.name for source in find_sources([text.parent / "links", text.parent / "folder" / "wiki_00"])] == [
        "folder/wiki_00",
        "links/wiki_07",
    ]


def test_a_manifest_that_is_no_file_is_none(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "manifest.json")
    (tmp_path / "a").write_text("x\n")
    assert read_manifest(tmp_path) is None
    assert [source.name for source in find_sources([tmp_path / "a"])] == ["a"]


@pytest.mark.parametrize("change", [{"request": None}, {"inputs": []}, {"outputs": [{}]}, {"options": 3}])
def test_a_damaged_manifest_is_named(tmp_path: Path, change: dict[str, Any]) -> None:
    write_manifest(tmp_path, [{"name": "a", "bytes": 1, "md5": "", "facts": {}}])
    path = tmp_path / "manifest.json"
    assert read_manifest(tmp_path) is not None
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UserError, match=r"manifest.json is damaged .* repeat that step"):
        read_manifest(tmp_path)


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
