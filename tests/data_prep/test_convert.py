"""`prep convert`: the samples stay what they are, whatever layout they go through."""

from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_mlperf.cli import main
from bert_mlperf.data import tfrecord
from bert_mlperf.data.parts import open_part
from bert_mlperf.data.samples import Samples, offsets_of
from bert_mlperf.data.shard_file import read_header
from bert_mlperf.data_prep.convert import LAYOUTS, convert
from bert_mlperf.data_prep.fingerprint import fingerprint
from bert_mlperf.data_prep.layouts import WRITERS
from bert_mlperf.data_prep.tfrecord_writer import frames
from tests.data import files
from tests.data.files import VOCAB_SIZE, assert_equal, make_samples
from tests.data_prep.layout_files import (
    ENDINGS,
    HDF5_TYPES,
    final_names,
    hdf5_content,
    plain,
    read,
    read_file,
    write_layout,
    write_sorted_tfrecord,
)

LENGTHS = [3, 512, 128, 256, 300, 127, 129, 384, 40, 77]
PUBLISHED = ["tfrecord", "fixed", "variable", "packed"]


@pytest.fixture
def samples() -> Samples:
    return make_samples(LENGTHS)


def name_of(layout: str, i: int) -> str:
    return f"part-{i:05d}-of-00002.tfrecord" if layout == "tfrecord" else f"part_{i:05d}_of_00002.hdf5"


def two_parts(folder: Path, layout: str, samples: Samples) -> Path:
    folder.mkdir()
    for i, half in enumerate((samples.take(np.arange(5)), samples.take(np.arange(5, 10)))):
        write_layout(folder / name_of(layout, i), half, layout)
    return folder


@pytest.mark.parametrize("layout", PUBLISHED)
def test_there_and_back(tmp_path: Path, samples: Samples, layout: str) -> None:
    """Files written without our writers, to our shards and back: every field, type and number of the file is there."""
    folder = two_parts(tmp_path / "published", layout, samples)
    manifest = convert([folder], to="shards", out=tmp_path / "ours", workers=1, vocab_size=VOCAB_SIZE)
    assert [entry["name"] for entry in manifest["outputs"]] == [name_of("shards", i) for i in range(2)]
    assert manifest["outputs"][0]["facts"]["num_samples"] == 5
    assert_equal(read(tmp_path / "ours"), samples)
    header = read_header(tmp_path / "ours" / name_of("shards", 0))
    assert (header.vocab_size, header.max_length) == (VOCAB_SIZE, 512)

    convert([tmp_path / "ours"], to=layout, out=tmp_path / "back", workers=1)
    assert final_names(tmp_path / "back") == ["manifest.json", name_of(layout, 0), name_of(layout, 1)]
    for i in range(2):
        before, after = folder / name_of(layout, i), tmp_path / "back" / name_of(layout, i)
        if layout == "tfrecord":  # checksums bit by bit in the file before
            assert after.read_bytes() == before.read_bytes()
        elif layout == "packed":  # in other rows
            assert sorted(plain(read_file(after))) == sorted(plain(read_file(before)))
        else:
            assert hdf5_content(after) == hdf5_content(before)


@pytest.mark.parametrize("layout", HDF5_TYPES)
def test_types_are_those_of_the_published_files(tmp_path: Path, samples: Samples, layout: str) -> None:
    with WRITERS[LAYOUTS[layout]](tmp_path / "a.hdf5") as writer:
        writer.write(samples)
    content = hdf5_content(tmp_path / "a.hdf5")
    assert {name: dtype for name, (dtype, _, _) in content.items()} == HDF5_TYPES[layout]
    ragged = {name for name, (_, is_ragged, _) in content.items() if is_ragged}
    expected = {"fixed": set(), "variable": set(content) - {"next_sentence_labels"}, "packed": set(content)}
    assert ragged == expected[layout]
    with h5py.File(tmp_path / "a.hdf5") as file:
        assert all(file[name].compression is None for name in file) and not file.attrs


@pytest.mark.parametrize("layout", PUBLISHED)
def test_the_size_of_the_vocabulary_comes_back(
    tmp_path: Path, samples: Samples, layout: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It stands in a shard, and in the manifest beside other layouts; without both it is told that one is assumed."""
    source = write_layout(tmp_path / "part_0_of_1.hdf5", samples, "shards", vocab_size=8000)
    convert([source], to=layout, out=tmp_path / "there", workers=1)
    assert "assumed" not in capsys.readouterr().err
    for source in (tmp_path / "there", next((tmp_path / "there").glob("part*"))):
        out = tmp_path / f"back from {source.name}"
        convert([source], to="shards", out=out, workers=1)
        assert read_header(out / "part_0_of_1.hdf5").vocab_size == 8000
    (tmp_path / "there" / "manifest.json").unlink()
    convert([tmp_path / "there"], to="shards", out=tmp_path / "unknown", workers=1)
    assert "does not tell its vocabulary, 30,522 tokens are assumed" in capsys.readouterr().err
    assert read_header(tmp_path / "unknown" / "part_0_of_1.hdf5").vocab_size == 30522


@st.composite
def any_samples(draw: st.DrawFn) -> Samples:
    """Samples that all layouts can hold: odd ids, ids 0 inside, segments in any order, predictions none to 76."""
    lengths = draw(st.lists(st.integers(1, 12) | st.sampled_from([127, 128, 255, 256, 511, 512]), max_size=8))
    lengths.append(draw(st.integers(1, 512)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    largest = draw(st.sampled_from([2, 127, 128, 16383, 16384, 30521]))
    separator = int(rng.integers(1, largest + 1))
    ids = rng.integers(0, largest + 1, sum(lengths))
    offsets = offsets_of(np.array(lengths))
    ids[offsets[1:] - 1] = separator
    counts = [int(rng.integers(0, min(76, n - 1) + 1)) for n in lengths]
    positions = [np.sort(rng.permutation(np.arange(1, n))[:k]) for n, k in zip(lengths, counts, strict=True)]
    return Samples(
        input_ids=ids.astype(np.uint16),
        segment_ids=rng.integers(0, 2, len(ids)).astype(np.uint8),
        offsets=offsets,
        masked_positions=np.concatenate(positions).astype(np.uint16),
        masked_ids=rng.integers(0, largest + 1, sum(counts)).astype(np.uint16),
        masked_offsets=offsets_of(np.array(counts)),
        next_sentence_labels=rng.integers(0, 2, len(lengths)).astype(np.uint8),
    )


@settings(max_examples=10, deadline=None)
@given(samples=any_samples(), rows=st.integers(2, 9))
def test_samples_survive_every_pair_of_layouts(
    tmp_path_factory: pytest.TempPathFactory, samples: Samples, rows: int
) -> None:
    folder = tmp_path_factory.mktemp("pairs")
    expected = sorted(plain(samples))
    for first in ENDINGS:
        source = folder / first
        if first == "shards":
            write_layout(source, samples, first, vocab_size=30522)
        else:
            with WRITERS[LAYOUTS[first]](source) as writer:
                writer.write(samples)
        for second in PUBLISHED:
            with WRITERS[LAYOUTS[second]](folder / f"{first}-{second}") as writer:
                for chunk in open_part(source, LAYOUTS[first]).chunks(rows):
                    writer.write(chunk)
            found = read_file(folder / f"{first}-{second}", rows=rows)
            if "packed" in (first, second):
                assert sorted(plain(found)) == expected
            else:
                assert_equal(found, samples)


class TestNames:
    def test_numbers_stay_and_other_names_lose_their_ending(self, tmp_path: Path, samples: Samples) -> None:
        inputs = {
            "part-00003-of-00500": "part_00003_of_00500.hdf5",
            "part-00004-of-00500.tfrecord": "part_00004_of_00500.hdf5",
            "eval.10k.tfrecords": "eval.10k.hdf5",
            "eval_10k": "eval_10k.hdf5",
        }
        for name in inputs:
            write_layout(tmp_path / name, samples, "tfrecord")
        convert([tmp_path / name for name in inputs], to="shards", out=tmp_path / "out", workers=1)
        assert final_names(tmp_path / "out") == ["eval.10k.hdf5", "eval_10k.hdf5", "manifest.json"] + [
            "part_00003_of_00500.hdf5",
            "part_00004_of_00500.hdf5",
        ]
        convert([str(tmp_path / "out" / "*.hdf5")], to="tfrecord", out=tmp_path / "back", workers=1)
        assert final_names(tmp_path / "back") == ["eval.10k.tfrecord", "eval_10k.tfrecord", "manifest.json"] + [
            "part-00003-of-00500.tfrecord",
            "part-00004-of-00500.tfrecord",
        ]

    def test_a_file_that_is_named_twice_is_one_file(self, tmp_path: Path, samples: Samples) -> None:
        folder = two_parts(tmp_path / "in", "fixed", samples)
        (folder / "manifest.json").write_text("{}")  # of the step that made them; no input
        given = [folder, str(folder / "*"), folder / name_of("fixed", 1)]
        convert(given, to="shards", out=tmp_path / "out", workers=1)
        assert_equal(read(tmp_path / "out"), samples)


class TestFieldsThatMayLack:
    @pytest.mark.parametrize("left_out", [("input_mask",), ("masked_lm_weights",), ("input_mask", "masked_lm_weights")])
    def test_of_a_tfrecord(self, tmp_path: Path, samples: Samples, left_out: tuple[str, ...]) -> None:
        write_sorted_tfrecord(tmp_path / "a.tfrecord", samples, left_out=left_out)
        convert([tmp_path / "a.tfrecord"], to="variable", out=tmp_path / "out", workers=1)
        assert_equal(read(tmp_path / "out"), samples)

    def test_the_mask_of_a_fixed_file(self, tmp_path: Path, samples: Samples) -> None:
        write_layout(tmp_path / "a.hdf5", samples, "fixed")
        with h5py.File(tmp_path / "a.hdf5", "r+") as file:
            del file["input_mask"]
        convert([tmp_path / "a.hdf5"], to="tfrecord", out=tmp_path / "out", workers=1)
        write_sorted_tfrecord(tmp_path / "expected", samples)
        assert (tmp_path / "out" / "a.tfrecord").read_bytes() == (tmp_path / "expected").read_bytes()


class TestRuns:
    def test_same_bytes_for_any_number_of_workers_and_a_second_run_changes_nothing(
        self, tmp_path: Path, samples: Samples, capsys: pytest.CaptureFixture[str]
    ) -> None:
        folder = two_parts(tmp_path / "in", "tfrecord", samples)
        for to in ("shards", "fixed", "variable", "packed"):
            outs = [tmp_path / f"{to}{workers}" for workers in (1, 2)]
            for workers, out in enumerate(outs, start=1):
                assert main(["prep", "convert", str(folder), "--to", to, f"--out={out}", f"--workers={workers}"]) == 0
            names = final_names(outs[0])
            assert len(names) == 3 and final_names(outs[1]) == names
            for name in names:
                assert (outs[0] / name).read_bytes() == (outs[1] / name).read_bytes()
        before = {path.name: path.stat() for path in outs[0].iterdir()}
        capsys.readouterr()
        assert main(["prep", "convert", str(folder), "--to", "packed", f"--out={outs[0]}"]) == 0
        assert "holds this already, nothing to do" in capsys.readouterr().err
        assert {path.name: path.stat().st_mtime_ns for path in outs[0].iterdir()} == {
            name: stat.st_mtime_ns for name, stat in before.items()
        }

    def test_after_a_damaged_file_the_finished_ones_are_kept(
        self, tmp_path: Path, samples: Samples, capsys: pytest.CaptureFixture[str]
    ) -> None:
        folder = two_parts(tmp_path / "in", "fixed", samples)
        bad = folder / name_of("fixed", 1)
        with h5py.File(bad, "r+") as file:
            file["input_mask"][2, 1] = 0
        with pytest.raises(ValueError, match="input_mask of row 2 is not a run of ones"):
            convert([folder], to="shards", out=tmp_path / "out", workers=1)
        assert final_names(tmp_path / "out") == [name_of("shards", 0)]
        assert not list((tmp_path / "out" / ".unfinished" / "tmp").iterdir())
        with h5py.File(bad, "r+") as file:
            file["input_mask"][2, 1] = 1
        capsys.readouterr()
        convert([folder], to="shards", out=tmp_path / "out", workers=1)
        assert "1 of 2 files done already" in capsys.readouterr().err
        assert_equal(read(tmp_path / "out"), samples)


REFERENCE_TFRECORDS = ("part0_first200.tfrecord", "eval_pick100.tfrecord", "tricky.tfrecord")
REFERENCE_HDF5 = {"fixed": "part0_fixed_first500.hdf5", "variable": "part0_varlength_first2500.hdf5"}


@pytest.fixture(scope="module")
def reference_files(reference_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A folder with the published files, and one with our shards of them."""
    folder = tmp_path_factory.mktemp("reference")
    (folder / "published").mkdir()
    for name in (*REFERENCE_TFRECORDS, *REFERENCE_HDF5.values()):
        where = "tricky" if name == "tricky.tfrecord" else "dataprep"
        (folder / "published" / name).symlink_to(reference_dir / "golden" / where / name)
    convert([str(folder / "published" / "*")], to="shards", out=folder / "ours", workers=1)
    return folder / "published", folder / "ours"


@pytest.mark.reference
class TestAgainstTheReference:
    @pytest.mark.parametrize(
        ("count", "names"),
        [
            (200, ("part0_first200", "part0_fixed_first500")),
            (500, ("part0_fixed_first500", "part0_varlength_first2500")),
        ],
    )
    def test_first_samples_are_the_same_in_all_layouts(
        self, reference_files: tuple[Path, Path], count: int, names: tuple[str, str]
    ) -> None:
        _, ours = reference_files
        first, second = (fingerprint([read_file(ours / f"{name}.hdf5").take(np.arange(count))]) for name in names)
        assert first == second

    @pytest.mark.parametrize("layout", REFERENCE_HDF5)
    def test_hdf5_back_has_the_same_content(
        self, reference_files: tuple[Path, Path], tmp_path: Path, layout: str
    ) -> None:
        (published, ours), name = reference_files, REFERENCE_HDF5[layout]
        convert([ours / name], to=layout, out=tmp_path / "back", workers=1)
        assert hdf5_content(tmp_path / "back" / name) == hdf5_content(published / name)

    def test_tfrecord_back_has_the_same_bytes_but_for_the_order_of_features(
        self, reference_files: tuple[Path, Path], tmp_path: Path
    ) -> None:
        """TensorFlow writes the features of an example in the order of a hash map, another one in every process. Put
        in that order, our records are those of the file, byte for byte, checksums included."""
        published, ours = reference_files
        inputs = [ours / f"{Path(name).stem}.hdf5" for name in REFERENCE_TFRECORDS]
        convert(inputs, to="tfrecord", out=tmp_path / "back", workers=1)
        for name in REFERENCE_TFRECORDS:
            (expected, *_), found = records(published / name), records(tmp_path / "back" / name)
            order = list(features_of(expected))
            reordered = [b"".join(files.field(1, features_of(message)[key]) for key in order) for message in found]
            assert frames([files.field(1, entries) for entries in reordered]) == (published / name).read_bytes()

    def test_packed_and_taken_apart_the_samples_are_the_same(
        self, reference_files: tuple[Path, Path], tmp_path: Path
    ) -> None:
        ours = reference_files[1] / REFERENCE_HDF5["variable"]
        manifest = convert([ours], to="packed", out=tmp_path / "packed", workers=1)
        facts = manifest["outputs"][0]["facts"]
        assert facts["num_samples"] == 2500 and 1.2 < 2500 / facts["num_rows"] < 1.25
        convert([tmp_path / "packed"], to="shards", out=tmp_path / "back", workers=1)
        assert sorted(plain(read(tmp_path / "back"))) == sorted(plain(read_file(ours)))


def records(path: Path) -> list[bytes]:
    return [message for block in tfrecord.read_records(path, together=100) for message in block]


def features_of(message: bytes) -> dict[bytes, bytes]:
    """The entries of an Example by name, as they lie in the message."""
    (entries,) = payloads(message)
    return {payloads(entry)[0]: entry for entry in payloads(entries)}


def payloads(message: bytes) -> list[bytes]:
    """The fields of a message that has only fields with a length."""
    found, at = [], 0
    while at < len(message):
        length, shift, at = 0, 0, at + 1
        while message[at] >= 0x80:
            length, shift, at = length | (message[at] & 0x7F) << shift, shift + 7, at + 1
        length, at = length | message[at] << shift, at + 1
        found.append(message[at : at + length])
        at += length
    return found
