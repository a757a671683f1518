from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_mlperf.data_prep.gather import block_bytes, equal_parts, gather, pack
from bert_mlperf.errors import UserError
from tests.data_prep.commands import write_manifest

MIB = 1024 * 1024


def write_files(folder: Path, contents: Sequence[bytes], raw_bytes: Sequence[int] | None = None) -> Path:
    """Files wiki_00 and so on, with the manifest of the stage that wrote them if `raw_bytes` are given."""
    folder.mkdir()
    outputs = []
    for i, content in enumerate(contents):
        (folder / f"wiki_{i:02d}").write_bytes(content)
        facts = {"raw_bytes": raw_bytes[i], "sized_by": "raw"} if raw_bytes else {}
        outputs.append({"name": f"wiki_{i:02d}", "bytes": len(content), "md5": "", "facts": facts})
    if raw_bytes:
        write_manifest(folder, outputs)
    return folder


def parts_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.name != "manifest.json"}


def test_a_part_begins_where_the_block_would_overflow() -> None:
    assert pack([4, 6, 1, 9, 10, 1], block_size=10) == [[0, 1], [2, 3], [4], [5]]
    assert pack([11, 1, 30, 1], block_size=10) == [[0], [1], [2], [3]]  # the reference crashes at the first
    assert block_bytes(26.92) == 26.92 * MIB


@given(sizes=st.lists(st.integers(0, 50), min_size=1, max_size=40), data=st.data())
def test_equal_parts_hold_every_file_once_in_order(sizes: list[int], data: st.DataObject) -> None:
    num_parts = data.draw(st.integers(1, len(sizes)))
    parts = equal_parts(sizes, num_parts=num_parts)
    assert len(parts) == num_parts and all(parts)
    assert [i for part in parts for i in part] == list(range(len(sizes)))


def test_equal_parts_are_cut_at_the_nearest_border() -> None:
    assert equal_parts([10] * 10, num_parts=5) == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    assert equal_parts([30, 10, 10, 10, 20, 20], num_parts=3) == [[0], [1, 2, 3], [4, 5]]
    assert equal_parts([100, 1, 1], num_parts=3) == [[0], [1], [2]]
    with pytest.raises(UserError, match="2 files cannot be gathered into 3 parts"):
        equal_parts([1, 1], num_parts=3)
    with pytest.raises(UserError, match="into 0 parts"):
        equal_parts([1, 1], num_parts=0)


CONTENTS = [b"\nA.\n\nB.\n", b"C.\n\n\n\nD.\n\n\n", b"E.\n\n", b"F.\n"]


def test_one_empty_line_stands_between_articles_at_borders_too(tmp_path: Path) -> None:
    folder = write_files(tmp_path / "text", CONTENTS, [3 * MIB, 3 * MIB, 4 * MIB, 2 * MIB])
    manifest = gather([folder], out=tmp_path / "out", block_size=10, workers=1)
    assert parts_of(tmp_path / "out") == {
        "part-00000-of-00002": b"A.\n\nB.\n\nC.\n\nD.\n\nE.\n",
        "part-00001-of-00002": b"F.\n",
    }
    assert [entry["facts"] for entry in manifest["outputs"]] == [
        {"files": 3, "raw_bytes": 10 * MIB, "sized_by": "raw"},
        {"files": 1, "raw_bytes": 2 * MIB, "sized_by": "raw"},
    ]


def test_the_faults_of_the_reference_on_request(tmp_path: Path) -> None:
    folder = write_files(tmp_path / "text", [*CONTENTS, b"G", b"\n"], [3 * MIB, 3 * MIB, 4 * MIB, 2 * MIB, 1, 1])
    gather([folder], out=tmp_path / "out", block_size=10, reference_faults=True, workers=1)
    assert parts_of(tmp_path / "out") == {
        "part-00000-of-00500": b"\nA.\n\nB.\nC.\n\n\n\nD.\n\nE.\n",  # B and C have become one article
        "part-00001-of-00500": b"F.\nG\n",
    }


def test_the_size_of_the_text_stands_in_where_the_raw_one_is_unknown(tmp_path: Path) -> None:
    folder = write_files(tmp_path / "text", [b"a" * 600 + b"\n"] * 3)
    manifest = gather([folder], out=tmp_path / "out", block_size=1202 / MIB, workers=1)
    assert [entry["facts"] for entry in manifest["outputs"]] == [
        {"files": 2, "raw_bytes": 1202, "sized_by": "text"},
        {"files": 1, "raw_bytes": 601, "sized_by": "text"},
    ]


@pytest.mark.parametrize("reference_faults", [False, True])
def test_cr_and_crlf_become_lf_and_a_byte_order_mark_goes(tmp_path: Path, reference_faults: bool) -> None:
    folder = write_files(tmp_path / "text", [b"\xef\xbb\xbfA.\r\nB.\rC.\n", b"\xef\xbb\xbfD \xef\xbb\xbf.\n"])
    gather([folder], out=tmp_path / "out", reference_faults=reference_faults, workers=1)
    (content,) = parts_of(tmp_path / "out").values()
    assert content == b"A.\nB.\nC.\n" + (b"" if reference_faults else b"\n") + b"D \xef\xbb\xbf.\n"


def test_the_number_of_parts_can_be_given(tmp_path: Path) -> None:
    folder = write_files(tmp_path / "text", [b"A.\n", b"B.\n", b"C.\n", b"D.\n"])
    gather([folder], out=tmp_path / "out", num_parts=2, workers=1)
    assert parts_of(tmp_path / "out") == {
        "part-00000-of-00002": b"A.\n\nB.\n",
        "part-00001-of-00002": b"C.\n\nD.\n",
    }


def test_what_cannot_be_gathered_is_refused(tmp_path: Path) -> None:
    folder = write_files(tmp_path / "text", [b"A.\n", b"B\xe9.\n"])
    with pytest.raises(UserError, match=r"wiki_01 is not UTF-8: byte 1 \(from 0\) is 0xe9"):
        gather([folder], out=tmp_path / "out", workers=1)
    assert not list((tmp_path / "out").glob("part*"))
    for size in (0, -1, float("nan"), float("inf")):
        with pytest.raises(UserError, match="a block of"):
            gather([folder], out=tmp_path / "other", block_size=size)
    with pytest.raises(UserError, match="packs by block size alone"):
        gather([folder], out=tmp_path / "other", num_parts=2, reference_faults=True)
