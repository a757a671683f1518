"""Text to token ids in blocks: the same documents as reading the file at once, whatever the blocks."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bert_mlperf.data_prep import part_text
from bert_mlperf.data_prep.native import FlatText
from bert_mlperf.data_prep.part_text import encode_text
from bert_mlperf.data_prep.spill import Spill
from bert_mlperf.data_prep.wordpiece import encode_documents
from bert_mlperf.data_prep.words import Words
from bert_mlperf.errors import UserError
from tests.data_prep.plain_text import ODD_LINES, make_vocabulary, odd_text, read_documents

VOCABULARY = make_vocabulary("the", "cafe", "mask", "\u6771")


def encode(path: Path, *, allow_long_lines: bool = True) -> list[list[list[int]]]:
    with Spill(path.parent, np.dtype(np.int32)) as spill:
        heard: list[int] = []
        flat = encode_text(
            path,
            words=Words(VOCABULARY.ids),
            tokens=spill,
            allow_long_lines=allow_long_lines,
            on_bytes=heard.append,
        )
        assert sum(heard) == path.stat().st_size
        return nested(flat)


def nested(flat: FlatText) -> list[list[list[int]]]:
    sentences = [flat.tokens[begin:end].tolist() for begin, end in pairwise(flat.sentence_offsets.tolist())]
    return [sentences[begin:end] for begin, end in pairwise(flat.document_offsets.tolist())]


PIECES = st.sampled_from(
    ["a", "the", "Caf\u00e9", ".", "\u6771", " ", "\n", "\n\n", "\r", "\r\n", "\t", "\x00", "\x1c", "\x85", "\u2028"]
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pieces=st.lists(st.one_of(PIECES, st.sampled_from(ODD_LINES)), min_size=1), block=st.integers(1, 50))
def test_documents_are_those_of_the_whole_file(
    pieces: list[str], block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part_text, "_BLOCK_BYTES", block)
    path = tmp_path / "text"
    path.write_bytes("".join(["a.\n", *pieces]).encode())
    expected = encode_documents(read_documents(path.read_bytes()), VOCABULARY)
    assert encode(path) == expected


def test_words_forgotten_and_met_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "text"
    path.write_bytes(odd_text(60))
    expected = encode_documents(read_documents(path.read_bytes()), VOCABULARY)
    assert encode(path) == expected
    monkeypatch.setattr(part_text, "_BLOCK_BYTES", 512)
    monkeypatch.setattr(part_text, "_MOST_DISTINCT_WORDS", 300)  # of 2,000 or so
    assert encode(path) == expected


@pytest.mark.parametrize(
    ("data", "offset", "byte"),
    [
        (b"good.\nb\xffd.\n", 7, 0xFF),
        (b"a\r\r\rb\n" * 400 + b"x\xe2\x82 y\n", 2401, 0xE2),  # offsets count the CRs that are deleted
        (b"only the end \xc3", 13, 0xC3),
        (b"\xed\xa0\x80 is a surrogate\n", 0, 0xED),
    ],
)
@pytest.mark.parametrize("block", [3, 1 << 20])
def test_not_utf8(
    data: bytes, offset: int, byte: int, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part_text, "_BLOCK_BYTES", block)
    path = tmp_path / "text"
    path.write_bytes(data)
    with pytest.raises(UserError, match=rf"text {path} is not UTF-8: byte {offset:,} \(from 0\) is 0x{byte:02x}"):
        encode(path)


def test_raw_and_unsegmented_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text('fine.\n<doc id="1" url="" title="x">\nx\n')
    with pytest.raises(UserError, match=rf"{path} is raw extractor output \(at byte 6 a line begins with"):
        encode(path)
    path.write_text("the <doc is text here.\n")
    assert len(encode(path)) == 1
    path.write_text(("the " * 81 + "\n") * 50)
    with pytest.raises(UserError, match=f"lines of the text {path} have 81 words on average, expected sentences"):
        encode(path, allow_long_lines=False)
    assert len(encode(path)[0]) == 50
    path.write_text(("the " * 300 + "\n") + "the a\n" * 50)  # one long line is no paragraph text
    assert len(encode(path, allow_long_lines=False)[0]) == 51


@pytest.mark.parametrize("data", [b"", b"\n\n \n", "\u200b\n\x00\r\n".encode()])
def test_text_without_tokens(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(data)
    with pytest.raises(UserError, match=f"text {path} holds no token; expected one sentence a line"):
        encode(path)
    with pytest.raises(UserError, match=f"text {tmp_path} cannot be read: Is a directory"):
        encode(tmp_path)


@pytest.mark.parametrize("allow", [True, False])
def test_a_line_without_end_is_refused_before_it_is_read_whole(
    allow: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part_text, "_BLOCK_BYTES", 10)
    monkeypatch.setattr(part_text, "_MOST_LINE_BYTES", 100)
    path = tmp_path / "text"
    path.write_bytes(b"fine.\n" + b"the cat " * 1000)
    with pytest.raises(UserError, match=f"line of the text {path} that begins at byte 6 has more than 100 bytes"):
        encode(path, allow_long_lines=allow)
    path.write_bytes(b"the cat sat. " * 7 + b"\n" + b"a\n" * 100)
    assert len(encode(path)[0]) == 101
