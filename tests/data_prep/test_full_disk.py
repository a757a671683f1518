"""A disk that fills up while a layout is written, and the file that stands between HDF5 and such a disk."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_mlperf.data.samples import Samples
from bert_mlperf.data_prep.convert import LAYOUTS
from bert_mlperf.data_prep.layouts import WRITERS
from bert_mlperf.data_prep.sturdy_file import SturdyFile
from bert_mlperf.errors import UserError
from tests.data.files import make_samples
from tests.data_prep.layout_files import final_names, refusal, write_layout

PUBLISHED = [layout for layout in LAYOUTS if layout != "shards"]


@pytest.fixture(scope="module")
def samples() -> Samples:
    return make_samples([512, 300, 60] * 200)


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """No file of this process can grow beyond `size` bytes: to write on is an error, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def write(path: Path, samples: Samples, layout: str) -> None:
    with WRITERS[LAYOUTS[layout]](path) as writer:
        for start in range(0, samples.num_samples, 100):
            writer.write(samples.take(np.arange(start, start + 100)))


@pytest.mark.parametrize("layout", PUBLISHED)
@pytest.mark.parametrize("share", [0, 0.001, 0.1, 0.4, 0.7, 0.95, 1])
def test_is_told_wherever_it_happens(
    tmp_path: Path, samples: Samples, capfd: pytest.CaptureFixture[str], layout: str, share: float
) -> None:
    """The last byte included, and without a word from HDF5 itself."""
    write(tmp_path / "whole", samples, layout)
    size = (tmp_path / "whole").stat().st_size
    with files_of_at_most(int(share * (size - 1))), pytest.raises(UserError) as caught:
        write(tmp_path / "a", samples, layout)
    assert str(caught.value) == (
        f"{tmp_path}/a cannot be written: [Errno 27] File too large; check the folder's permissions and free space."
    )
    assert [path.name for path in tmp_path.iterdir()] == ["whole"]
    assert capfd.readouterr() == ("", "")
    with files_of_at_most(size):
        write(tmp_path / "a", samples, layout)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "whole").read_bytes()


def test_of_a_conversion(tmp_path: Path, samples: Samples, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_layout(tmp_path / "in.hdf5", samples, "shards")
    with files_of_at_most(100_000):
        sentence = refusal(capsys, "convert", source, "--to=fixed", f"--out={tmp_path / 'out'}", "--workers=1")
    assert "cannot be written: [Errno 27] File too large" in sentence
    assert final_names(tmp_path / "out") == []


OPERATIONS = st.lists(
    st.tuples(st.just("write"), st.integers(0, 300), st.binary(min_size=1, max_size=60))
    | st.tuples(st.just("read"), st.integers(0, 300), st.integers(0, 60)),
    max_size=30,
)


@given(operations=OPERATIONS, limit=st.integers(0, 300))
def test_a_sturdy_file_holds_what_was_written_also_when_the_disk_is_full(
    tmp_path_factory: pytest.TempPathFactory, operations: list[tuple], limit: int
) -> None:
    path = tmp_path_factory.mktemp("sturdy") / "a"
    expected, fits = BytesIO(), True
    with files_of_at_most(limit):
        sturdy = SturdyFile(path)
        for name, at, value in operations:
            assert sturdy.seek(at) == expected.seek(at)
            if name == "write":
                assert sturdy.write(memoryview(value)) == len(value)
                expected.write(value)
                fits = fits and at + len(value) <= limit
            else:
                found = bytearray(value)
                sturdy.readinto(memoryview(found))
                assert found == expected.read(value).ljust(value, b"\0")
            assert sturdy.seek(0, os.SEEK_END) == len(expected.getvalue())
        if fits:
            sturdy.check()
            assert path.read_bytes() == expected.getvalue()
        else:
            with pytest.raises(OSError, match="File too large"):
                sturdy.check()
        sturdy.close()


def test_hdf5_goes_on_undisturbed(tmp_path: Path) -> None:
    """Even what was written after the disk was full is read back, so HDF5 never meets a structure that is broken."""
    values = np.random.default_rng(0).integers(0, 1000, (400, 100))
    with files_of_at_most(20_000):
        sturdy = SturdyFile(tmp_path / "a")
        with h5py.File(tmp_path / "a", "w", driver="fileobj", fileobj=sturdy) as file:
            for i, row in enumerate(values):
                file[f"{i}"] = row
            file.flush()
            assert all((file[f"{i}"][:] == row).all() for i, row in enumerate(values))
        sturdy.close()
    with pytest.raises(OSError, match="File too large"):
        sturdy.check()


def test_a_sturdy_file_is_new(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("mine")
    with pytest.raises(FileExistsError):
        SturdyFile(tmp_path / "a")
    with pytest.raises(UserError, match="a exists already and is not overwritten"):
        write(tmp_path / "a", make_samples([5]), "fixed")
    with pytest.raises(UserError, match=r"no/a cannot be written: .*No such file"):
        write(tmp_path / "no" / "a", make_samples([5]), "packed")
    assert (tmp_path / "a").read_text() == "mine"
