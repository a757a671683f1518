"""What `prep convert` refuses: one sentence, exit code 2, and nothing under a final name."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from bert_mlperf.cli import main
from bert_mlperf.data.samples import Samples, concatenate, offsets_of
from tests.data import files
from tests.data.files import make_samples
from tests.data_prep.layout_files import ENDINGS, final_names, refusal, write_layout

Refuse = Callable[..., str]


@pytest.fixture
def samples() -> Samples:
    return make_samples([3, 512, 128, 256, 300, 127, 129, 384, 40, 77])


@pytest.fixture
def refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Refuse:
    """Converts the inputs in vain and returns the sentence; nothing is left that looks like a result."""

    def convert(*inputs: object, to: str = "shards", vocab_size: int | None = None) -> str:
        out = tmp_path / "out"
        size = [] if vocab_size is None else [f"--vocab-size={vocab_size}"]
        sentence = refusal(capsys, "convert", *inputs, "--to", to, f"--out={out}", *size)
        assert final_names(out) == []
        return sentence

    return convert


def one_sample(*, length: int = 9, num_masked: int = 1, **changes: np.ndarray) -> Samples:
    """[CLS] ... [SEP], with the first `num_masked` tokens behind [CLS] to be predicted."""
    good = make_samples([length])
    places = np.arange(1, num_masked + 1)
    offsets = offsets_of(np.array([num_masked]))
    return replace(good, **({"masked_positions": places, "masked_ids": places, "masked_offsets": offsets} | changes))


def ids_ending_in(last: int, *, first: int = files.CLS) -> np.ndarray:
    return np.array([first, 5, 5, 5, 5, 5, 5, 5, last])


LARGE = {"input_ids": ids_ending_in(files.SEP, first=32768)}
LARGE_MASKED = {"masked_ids": np.array([40000])}
AT_0 = {"masked_positions": np.array([0])}


class TestSamplesThatALayoutCannotHold:
    @pytest.mark.parametrize(
        ("to", "bad", "reason"),
        [
            ("fixed", one_sample(**LARGE), "has a token id above 32,767; fixed-length HDF5 cannot hold it, choose"),
            ("variable", one_sample(**LARGE_MASKED), "has a token id above 32,767; variable-length HDF5 cannot hold"),
            ("packed", one_sample(**LARGE), "has a token id above 32,767; packed variable-length HDF5 cannot hold"),
            ("tfrecord", one_sample(length=90, num_masked=77), "has more than 76 predictions; TFRecord cannot hold it"),
            ("packed", one_sample(length=90, num_masked=77), "has more than 76 predictions; packed variable-length"),
            ("fixed", one_sample(length=513), "has more than 512 tokens; fixed-length HDF5 cannot hold it"),
            ("variable", one_sample(**AT_0), "predicts position 0, which means padding there; variable-length HDF5"),
            (
                "variable",
                one_sample(input_ids=ids_ending_in(7)),
                "ends in token id 0 or in another one than the",
            ),
            (
                "variable",
                one_sample(input_ids=ids_ending_in(0)),
                "the samples before (3); variable-length HDF5 cannot",
            ),
        ],
    )
    def test_are_refused(self, tmp_path: Path, refused: Refuse, to: str, bad: Samples, reason: str) -> None:
        good = make_samples([9, 20])
        write_layout(tmp_path / "in.hdf5", concatenate([good, bad]), "shards", vocab_size=60_000)
        sentence = refused(tmp_path / "in.hdf5", to=to, vocab_size=60_000)
        assert sentence.startswith(f"{tmp_path}/in.hdf5: sample 2 ") and reason in sentence

    def test_ours_and_tfrecord_hold_large_ids_and_predictions_of_the_first_token(self, tmp_path: Path) -> None:
        samples = concatenate([one_sample(**LARGE), one_sample(**AT_0), one_sample(**LARGE_MASKED)])
        write_layout(tmp_path / "in.hdf5", samples, "shards", vocab_size=100_000)
        sizes = ["--vocab-size", "100000"]
        for source, to in (("in.hdf5", "tfrecord"), ("tfrecord", "shards")):
            assert main(["prep", "convert", f"{tmp_path / source}", "--to", to, f"--out={tmp_path / to}", *sizes]) == 0
        assert (tmp_path / "shards" / "in.hdf5").read_bytes() == (tmp_path / "in.hdf5").read_bytes()


class TestDamagedInput:
    def test_truncated_tfrecord(self, tmp_path: Path, samples: Samples, refused: Refuse) -> None:
        path = write_layout(tmp_path / "a.tfrecord", samples, "tfrecord")
        path.write_bytes(path.read_bytes()[:-100])
        assert f"{path}: record 9 is truncated or damaged (it should end at byte " in refused(path)

    def test_record_whose_checksum_is_wrong(self, tmp_path: Path, samples: Samples, refused: Refuse) -> None:
        path = write_layout(tmp_path / "a.tfrecord", samples, "tfrecord")
        content = bytearray(path.read_bytes())
        content[int(0.55 * len(content))] ^= 1
        path.write_bytes(content)
        assert f"{path}: record 5 is truncated or damaged (its checksum is wrong)" in refused(path)

    @pytest.mark.parametrize("name", ["input_ids", "masked_lm_ids"])
    def test_whole_numbers_are_expected_in_a_tfrecord(
        self, tmp_path: Path, samples: Samples, refused: Refuse, name: str
    ) -> None:
        arrays = files.padded(samples)
        arrays[name] = arrays[name].astype(np.float32)
        files.write_tfrecord(tmp_path / "a", [{key: values[i] for key, values in arrays.items()} for i in range(10)])
        assert f"({name} of records 0 onwards: they are fractions, expected whole" in refused(tmp_path / "a")

    @pytest.mark.parametrize("layout", ["fixed", "variable", "packed"])
    def test_hdf5_without_a_field(self, tmp_path: Path, samples: Samples, refused: Refuse, layout: str) -> None:
        path = write_layout(tmp_path / "a.hdf5", samples, layout)
        with h5py.File(path, "r+") as file:
            del file["masked_lm_positions"]
        assert refused(path).startswith(f"{path} has no masked_lm_positions, only ")

    def test_variable_file_of_the_converter_under_numpy_2(
        self, tmp_path: Path, samples: Samples, refused: Refuse
    ) -> None:
        path = tmp_path / "a.hdf5"
        files.write_variable(path, samples, lengths=samples.lengths.astype(np.int8))
        sentence = refused(path)
        assert f"{path}: 5 of 10 rows are damaged (the first is row 1 of 0 tokens)" in sentence
        assert sentence.endswith("convert the files again from the fixed-length ones (bert-mlperf prep convert).")

    def test_shard_whose_content_changed(self, tmp_path: Path, samples: Samples, refused: Refuse) -> None:
        path = write_layout(tmp_path / "a.hdf5", samples, "shards")
        content = path.read_bytes()
        at = content.index(samples.input_ids[3:40].tobytes())
        path.write_bytes(content[:at] + b"\x07" + content[at + 1 :])
        assert f"{path}: the content does not match its sha256" in refused(path, to="fixed")

    @pytest.mark.parametrize("layout", ENDINGS)
    def test_hdf5_or_tfrecord_cut_anywhere(
        self, tmp_path: Path, samples: Samples, refused: Refuse, layout: str
    ) -> None:
        path = write_layout(tmp_path / "a", samples, layout)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 3])
        assert refused(path, to="fixed" if layout == "shards" else "shards").startswith(f"{path}")

    @pytest.mark.parametrize("layout", ["fixed", "variable", "packed"])
    def test_without_samples(self, tmp_path: Path, refused: Refuse, layout: str) -> None:
        none = make_samples([5]).take(np.array([], int))
        path = write_layout(tmp_path / "a.hdf5", none, layout)
        assert refused(path) == f"{path} holds no samples; remove it from the folder or make it anew."

    def test_a_group_in_place_of_a_field(self, tmp_path: Path, samples: Samples, refused: Refuse) -> None:
        path = write_layout(tmp_path / "a.hdf5", samples, "fixed")
        with h5py.File(path, "r+") as file:
            del file["input_ids"]
            file.create_group("input_ids")
        assert refused(path).startswith(f"{path} is truncated or damaged (")


class TestOtherInput:
    def test_a_pattern_without_a_match(self, tmp_path: Path, refused: Refuse) -> None:
        assert refused(f"{tmp_path}/nothing/*.hdf5").startswith(f"no file matches '{tmp_path}/nothing/*.hdf5'; give")

    def test_an_empty_folder(self, tmp_path: Path, refused: Refuse) -> None:
        (tmp_path / "in").mkdir()
        assert f"the folder {tmp_path}/in has no shards (it is empty); expected" in refused(tmp_path / "in")

    def test_an_incomplete_set(self, tmp_path: Path, samples: Samples, refused: Refuse) -> None:
        (tmp_path / "in").mkdir()
        write_layout(tmp_path / "in" / "part-00001-of-00003", samples, "tfrecord")
        assert "has 1 of 3 shards, number 0 is missing" in refused(tmp_path / "in")

    def test_an_empty_file(self, tmp_path: Path, refused: Refuse) -> None:
        (tmp_path / "a.tfrecord").touch()
        assert f"the input {tmp_path}/a.tfrecord is empty (0 bytes)" in refused(tmp_path / "a.tfrecord")

    def test_a_text_file(self, tmp_path: Path, refused: Refuse) -> None:
        (tmp_path / "a.txt").write_text("Some text that is no shard.\n")
        assert "it is neither HDF5 nor TFRecord" in refused(tmp_path / "a.txt")

    def test_two_inputs_with_one_name(self, tmp_path: Path, samples: Samples, refused: Refuse) -> None:
        for folder in ("a", "b"):
            (tmp_path / folder).mkdir()
            write_layout(tmp_path / folder / "part-00000-of-00001", samples, "tfrecord")
        sentence = refused(tmp_path / "a", tmp_path / "b")
        assert "would both become part_00000_of_00001.hdf5; convert them to different folders" in sentence

    @pytest.mark.parametrize("layout", ENDINGS)
    def test_a_file_that_has_the_layout(self, tmp_path: Path, samples: Samples, refused: Refuse, layout: str) -> None:
        path = write_layout(tmp_path / "a", samples, layout)
        assert "already, nothing is to be converted; leave it out or copy it." in refused(path, to=layout)

    def test_a_vocabulary_that_is_too_small(self, tmp_path: Path, samples: Samples, refused: Refuse) -> None:
        path = write_layout(tmp_path / "a", samples, "tfrecord")
        highest = max(samples.input_ids.max(), samples.masked_ids.max())
        sentence = refused(path, to="fixed", vocab_size=int(highest))
        assert sentence.startswith(f"{path} holds token id {highest}, expected ids of a vocabulary of {highest} tokens")
        assert sentence.endswith("as --vocab-size.")

    @pytest.mark.parametrize("size", [0, -1, 1 << 70])
    def test_a_size_that_no_vocabulary_has(self, tmp_path: Path, samples: Samples, refused: Refuse, size: int) -> None:
        path = tmp_path / "a.hdf5"
        files.write_fixed(path, samples)
        assert refused(path, vocab_size=size).startswith(f"--vocab-size is {size}, expected 1 to 2147483648; give")

    def test_another_vocabulary_than_the_shard_says(self, tmp_path: Path, samples: Samples, refused: Refuse) -> None:
        path = write_layout(tmp_path / "a.hdf5", samples, "shards", vocab_size=8000)
        sentence = refused(path, to="fixed", vocab_size=30522)
        assert sentence == (f"{path} was made with a vocabulary of 8,000 tokens, --vocab-size is 30,522; leave it out.")
        other = write_layout(tmp_path / "b.hdf5", samples, "shards", vocab_size=9000)
        assert f"8,000 tokens and {other} with one of 9,000; convert them" in refused(path, other, to="fixed")


class TestOutput:
    def test_a_folder_that_holds_other_things(
        self, tmp_path: Path, samples: Samples, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = write_layout(tmp_path / "a.hdf5", samples, "fixed")
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "a.hdf5").write_text("mine")
        sentence = refusal(capsys, "convert", path, "--to=shards", f"--out={tmp_path / 'out'}")
        assert sentence == f"{tmp_path}/out exists and holds other files, nothing in it is touched; give another --out."
        assert [item.read_text() for item in (tmp_path / "out").iterdir()] == ["mine"]

    def test_a_finished_result_of_another_request(
        self, tmp_path: Path, samples: Samples, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = write_layout(tmp_path / "a.hdf5", samples, "fixed")
        out = tmp_path / "out"
        assert main(["prep", "convert", str(path), "--to=shards", f"--out={out}"]) == 0
        before = {item.name: item.read_bytes() for item in out.iterdir()}
        sentence = refusal(capsys, "convert", path, "--to=variable", f"--out={out}")
        assert sentence.startswith(
            f"{out} holds the result of another request (--to shards, not --to variable); remove"
        )
        assert {item.name: item.read_bytes() for item in out.iterdir()} == before

    @pytest.mark.parametrize("below", ["", "/below"])
    def test_a_file_in_place_of_the_folder(
        self, tmp_path: Path, samples: Samples, capsys: pytest.CaptureFixture[str], below: str
    ) -> None:
        path = write_layout(tmp_path / "a.hdf5", samples, "fixed")
        (tmp_path / "out").write_text("mine")
        sentence = refusal(capsys, "convert", path, "--to=shards", f"--out={tmp_path / 'out'}{below}")
        assert sentence.startswith(f"{tmp_path}/out{below} ")
        assert (tmp_path / "out").read_text() == "mine"

    def test_the_folder_of_the_input(
        self, tmp_path: Path, samples: Samples, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "in").mkdir()
        write_layout(tmp_path / "in" / "a.hdf5", samples, "fixed")
        sentence = refusal(capsys, "convert", tmp_path / "in", "--to=shards", f"--out={tmp_path / 'in'}")
        assert sentence.startswith(f"{tmp_path}/in exists and holds other files")
        assert final_names(tmp_path / "in") == ["a.hdf5"]

    def test_an_unknown_layout_is_told_by_the_parser(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit) as stopped:
            main(["prep", "convert", "a.hdf5", "--to", "csv", "--out", "out"])
        assert stopped.value.code == 2
        assert "invalid choice: 'csv'" in capsys.readouterr().err


MANIFEST_OPTIONS = {"to": "packed", "vocab_size": 30522, "vocabulary_md5": None}


def test_manifest_says_what_was_done(tmp_path: Path, samples: Samples) -> None:
    path = write_layout(tmp_path / "a.hdf5", samples, "fixed")
    assert main(["prep", "convert", str(path), "--to=packed", f"--out={tmp_path / 'out'}"]) == 0
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert (manifest["stage"], manifest["options"]) == ("convert", MANIFEST_OPTIONS)
    facts = manifest["outputs"][0]["facts"]
    assert facts["num_samples"] == 10 and facts["num_tokens"] == samples.num_tokens and 4 <= facts["num_rows"] < 10
