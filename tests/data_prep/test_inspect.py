"""`prep inspect`: the numbers are those of the samples, the text shows what is masked, pictures and errors."""

from pathlib import Path

import numpy as np
import pytest

from bert_mlperf.cli import main
from bert_mlperf.data.parts import MappedPart
from bert_mlperf.data.samples import Samples, offsets_of
from bert_mlperf.data_prep.fingerprint import fingerprint, official_input_ids_md5
from bert_mlperf.data_prep.inspect_shard import histogram
from bert_mlperf.data_prep.sample_text import sample_text
from tests.data import files
from tests.data.files import make_samples
from tests.data_prep.layout_files import ENDINGS, refusal, write_layout

TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "sat", "on", "mat", "##tress", ".", "dog")


@pytest.fixture
def samples() -> Samples:
    return make_samples([3, 512, 128, 256, 300, 127, 129, 384, 40, 77])


@pytest.fixture
def vocabulary(tmp_path: Path) -> Path:
    path = tmp_path / "vocab.txt"
    path.write_text("".join(f"{token}\n" for token in TOKENS))
    return path


def sentences() -> Samples:
    """[CLS] the cats (MASK: sat) [SEP] on the mattress(kept piece) dog(was: .) [SEP]"""
    ids = [TOKENS.index(token) for token in "[CLS] the cat ##s [MASK] [SEP] on the mat ##tress dog [SEP]".split()]
    return Samples(
        input_ids=np.array(ids * 2, dtype=np.uint16),
        segment_ids=np.array(([0] * 6 + [1] * 6) * 2, dtype=np.uint8),
        offsets=np.array([0, 12, 24]),
        masked_positions=np.array([4, 9, 10], dtype=np.uint16),
        masked_ids=np.array([TOKENS.index(token) for token in ("sat", "##tress", ".")], dtype=np.uint16),
        masked_offsets=np.array([0, 3, 3]),
        next_sentence_labels=np.array([0, 1], dtype=np.uint8),
    )


def table_of(text: str) -> dict[str, str]:
    """The lines `name   value` before the histogram."""
    return dict(line.split("  ", 1) for line in text.split("\n\n")[0].splitlines())


def bars_of(text: str) -> list[tuple[int, int, int, int]]:
    """First length, last length, samples, characters of the bar of each line of the histogram."""
    lines = text.split("length in tokens      samples\n")[1].split("\n\n")[0].splitlines()
    words = [line.replace(",", "").split() for line in lines]
    return [(int(w[0]), int(w[2]), int(w[3]), len(w[4]) if len(w) > 4 else 0) for w in words]


@pytest.mark.parametrize("layout", ENDINGS)
def test_numbers_of_a_folder_in_each_layout(
    tmp_path: Path, samples: Samples, capsys: pytest.CaptureFixture[str], layout: str
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for i, half in enumerate((samples.take(np.arange(4)), samples.take(np.arange(4, 10)))):
        write_layout(folder / f"part-{i}-of-2", half, layout)
    assert main(["prep", "inspect", str(folder)]) == 0
    text = capsys.readouterr().out
    table = {name: value.strip() for name, value in table_of(text).items()}
    random = int(samples.next_sentence_labels.sum())
    assert table["data"] == str(folder) and table["files"] == "2" and table["samples"] == "10"
    assert table["tokens"] == f"1,956, {1956 / 10:.1f} a sample, 512 at most"
    assert table["predictions"] == f"{samples.num_masked:,}, {samples.num_masked / 10:.1f} a sample"
    assert table["next segment"] == f"{random}0.0% random, {10 - random}0.0% real"
    expected = {f"sha256 {name}": digest for name, digest in fingerprint([samples]).items()}
    assert {name: value for name, value in table.items() if name.startswith("sha256")} == expected
    bars = bars_of(text)
    assert [(first, last) for first, last, _, _ in bars] == [(1 + 32 * i, 32 + 32 * i) for i in range(16)]
    for first, last, count, bar in bars:
        assert count == ((samples.lengths >= first) & (samples.lengths <= last)).sum()
        assert bar == -(-50 * count // 2)
    assert "md5" not in text


@pytest.mark.parametrize("longest", [1, 2, 15, 16, 17, 128, 511, 512, 513])
def test_every_sample_is_in_the_bin_of_its_length(longest: int) -> None:
    counts = np.random.default_rng(0).integers(0, 5, longest + 1)
    counts[0], counts[-1] = 0, 1
    edges, found = histogram(counts)
    assert len(edges) == 17 and edges[0] == 1 and len(set(np.diff(edges))) == 1 and edges[-1] > longest
    lengths = np.repeat(np.arange(longest + 1), counts)
    assert found.tolist() == np.histogram(lengths, bins=edges)[0].tolist() and found.sum() == counts.sum()


class TestText:
    def test_shows_what_stands_there_and_what_is_to_be_predicted(self) -> None:
        lines = sample_text(sentences().take(np.array([0])), TOKENS, where="sample 0").splitlines()
        assert lines[:3] == [
            "A: [CLS] the cats [MASK]->sat [SEP]",
            "B: on the mat ##tress(kept) dog->. [SEP]",
            "label: 0, B is the real next segment",
        ]

    def test_of_the_sample_that_was_asked_for(
        self, tmp_path: Path, vocabulary: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = write_layout(tmp_path / "a.hdf5", sentences(), "fixed")
        assert main(["prep", "inspect", str(path), "--sample=1", f"--vocab={vocabulary}"]) == 0
        text = capsys.readouterr().out
        assert "sample 1\nA: [CLS] the cats [MASK] [SEP]\nB: on the mattress dog [SEP]\nlabel: 1, B is a ran" in text
        assert "sha256" not in text

    def test_number_counts_through_all_files(
        self, tmp_path: Path, vocabulary: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for i in range(2):
            write_layout(tmp_path / f"part-{i}-of-2", sentences(), "tfrecord")
        assert main(["prep", "inspect", str(tmp_path), "--sample=2", f"--vocab={vocabulary}"]) == 0
        assert "A: [CLS] the cats [MASK]->sat [SEP]" in capsys.readouterr().out

    @pytest.mark.parametrize("layout", ENDINGS)
    def test_every_sample_of_every_layout(
        self, tmp_path: Path, samples: Samples, capsys: pytest.CaptureFixture[str], layout: str
    ) -> None:
        """Each of two files of five is the one that was asked for, its tokens in their order, in lines of a width."""
        (tmp_path / "vocab.txt").write_text("\n".join([*TOKENS[:5], *(f"word{i}" for i in range(95))]) + "\n")
        (tmp_path / "in").mkdir()
        for i, half in enumerate((samples.take(np.arange(5)), samples.take(np.arange(5, 10)))):
            write_layout(tmp_path / "in" / f"part-{i}-of-2", half, layout)
        tokens = (tmp_path / "vocab.txt").read_text().split()
        for i in (0, 4, 5, 9):
            options = [f"--sample={i}", f"--vocab={tmp_path / 'vocab.txt'}"]
            assert main(["prep", "inspect", str(tmp_path / "in"), *options]) == 0
            output = capsys.readouterr()
            expected = sample_text(samples.take(np.array([i])), tuple(tokens), where="")
            assert output.out.split() == f"sample {i} {expected}".split()
            assert max(map(len, output.out.splitlines())) <= 100 and not output.err

    def test_reads_only_what_it_needs(
        self, tmp_path: Path, vocabulary: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = write_layout(tmp_path / "a.hdf5", sentences(), "shards", vocab_size=len(TOKENS))
        monkeypatch.setattr(MappedPart, "check_digest", None)
        monkeypatch.setattr(MappedPart, "chunks", None)
        assert main(["prep", "inspect", str(path), "--sample=1", f"--vocab={vocabulary}"]) == 0
        assert "A: [CLS] the cats [MASK] [SEP]" in capsys.readouterr().out


class TestOfficialSet:
    @pytest.fixture
    def ten(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, samples: Samples) -> Path:
        """Ten samples where the official set has ten."""
        monkeypatch.setattr("bert_mlperf.data_prep.inspect_shard.OFFICIAL_EVAL_SAMPLES", 10)
        return write_layout(tmp_path / "a.hdf5", samples, "variable")

    def test_is_known_by_its_published_checksum(
        self, ten: Path, samples: Samples, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        md5 = official_input_ids_md5([samples])
        monkeypatch.setattr("bert_mlperf.data_prep.inspect_shard.OFFICIAL_EVAL_INPUT_IDS_MD5", md5)
        assert main(["prep", "inspect", str(ten)]) == 0
        assert f"{md5}: this is the official evaluation set" in capsys.readouterr().out

    def test_of_as_many_other_samples(self, ten: Path, samples: Samples, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["prep", "inspect", str(ten)]) == 0
        assert (
            f"{official_input_ids_md5([samples])}: this is not the official evaluation set" in capsys.readouterr().out
        )


class TestPicture:
    def test_is_drawn(self, tmp_path: Path, samples: Samples, capsys: pytest.CaptureFixture[str]) -> None:
        path = write_layout(tmp_path / ("$a_{name$" + "_that_does_not_end" * 10), samples, "shards")
        assert main(["prep", "inspect", str(path), f"--png={tmp_path / 'lengths.PNG'}"]) == 0
        assert (tmp_path / "lengths.PNG").read_bytes().startswith(b"\x89PNG")
        assert capsys.readouterr().out.endswith(f"\nhistogram drawn to {tmp_path / 'lengths.PNG'}\n")

    def test_is_not_drawn_over_a_file(
        self, tmp_path: Path, samples: Samples, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = write_layout(tmp_path / "a.hdf5", samples, "shards")
        (tmp_path / "mine.png").write_text("mine")
        sentence = refusal(capsys, "inspect", path, f"--png={tmp_path / 'mine.png'}")
        assert sentence == f"{tmp_path}/mine.png exists already and is not overwritten; give another name for the " + (
            "picture."
        )
        assert (tmp_path / "mine.png").read_text() == "mine"

    def test_in_a_folder_that_does_not_exist(
        self, tmp_path: Path, samples: Samples, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = write_layout(tmp_path / "a.hdf5", samples, "shards")
        sentence = refusal(capsys, "inspect", path, f"--png={tmp_path / 'no' / 'a.png'}")
        assert sentence.startswith(
            f"the picture {tmp_path}/no/a.png cannot be written: there is no folder {tmp_path}/no"
        )

    @pytest.mark.parametrize("name", ["a.jpg", "a", "a.png.pdf"])
    def test_of_another_format(
        self, tmp_path: Path, samples: Samples, capsys: pytest.CaptureFixture[str], name: str
    ) -> None:
        path = write_layout(tmp_path / "a.hdf5", samples, "shards")
        path.write_bytes(path.read_bytes()[:-9])  # it is not even looked at
        sentence = refusal(capsys, "inspect", path, f"--png={tmp_path / name}")
        assert sentence.startswith(f"the picture {tmp_path}/{name} does not end in .png")


class TestRefusals:
    @pytest.mark.parametrize("number", [2, -1, 1000])
    def test_a_sample_that_is_not_there(
        self, tmp_path: Path, vocabulary: Path, capsys: pytest.CaptureFixture[str], number: int
    ) -> None:
        path = write_layout(tmp_path / "a.hdf5", sentences(), "shards", vocab_size=len(TOKENS))
        sentence = refusal(capsys, "inspect", path, f"--sample={number}", f"--vocab={vocabulary}")
        assert sentence == f"{path} has no sample {number}, only 2 counted from 0; give one of these."

    def test_a_sample_without_vocabulary(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = write_layout(tmp_path / "a.hdf5", sentences(), "shards")
        sentence = refusal(capsys, "inspect", path, "--sample=0")
        assert sentence == "sample 0 cannot be shown as text without its vocabulary; give --vocab FILE."

    def test_a_vocabulary_that_is_missing(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = write_layout(tmp_path / "a.hdf5", sentences(), "shards")
        sentence = refusal(capsys, "inspect", path, "--sample=0", f"--vocab={tmp_path / 'none.txt'}")
        assert sentence.startswith(f"the vocabulary {tmp_path}/none.txt cannot be read")

    def test_a_vocabulary_of_other_data(
        self, tmp_path: Path, samples: Samples, vocabulary: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = write_layout(tmp_path / "a.hdf5", samples, "fixed")
        sentence = refusal(capsys, "inspect", path, "--sample=1", f"--vocab={vocabulary}")
        assert sentence.startswith(f"sample 1 of {path} has token id 99, but the vocabulary only 14 tokens; give the")
        path = write_layout(tmp_path / "b.hdf5", samples, "shards", vocab_size=100)
        sentence = refusal(capsys, "inspect", path, "--sample=1", f"--vocab={vocabulary}")
        assert sentence.startswith(f"{path} was made with a vocabulary of 100 tokens, {vocabulary} has 14; give the")

    def test_a_vocabulary_of_the_same_size(
        self, tmp_path: Path, vocabulary: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Only the manifest knows better."""
        (tmp_path / "text").write_text("The cats sat.\nOn the mat.\n")
        arguments = ("--vocab", str(vocabulary), "--own-vocabulary", "--out", str(tmp_path / "out"))
        assert main(["prep", "examples", str(tmp_path / "text"), *arguments]) == 0
        show = ("inspect", str(tmp_path / "out"), "--sample=0", f"--vocab={vocabulary}")
        assert main(["prep", *show]) == 0
        vocabulary.write_text(vocabulary.read_text().replace("dog", "cow"))
        assert "out/part_00000_of_00001.hdf5 was made with a vocabulary of md5 " in refusal(capsys, *show)

    def test_data_that_are_missing(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert f"the data path {tmp_path}/none does not exist" in refusal(capsys, "inspect", tmp_path / "none")

    def test_damaged_data(self, tmp_path: Path, samples: Samples, capsys: pytest.CaptureFixture[str]) -> None:
        path = write_layout(tmp_path / "a", samples, "tfrecord")
        path.write_bytes(path.read_bytes()[:-1])
        assert f"{path}: record 9 is truncated or damaged" in refusal(capsys, "inspect", path)

    def test_damaged_variable_file(self, tmp_path: Path, samples: Samples, capsys: pytest.CaptureFixture[str]) -> None:
        files.write_variable(tmp_path / "a.hdf5", samples, lengths=samples.lengths.astype(np.int8))
        sentence = refusal(capsys, "inspect", tmp_path / "a.hdf5")
        assert "5 of 10 rows are damaged (the first is row 1 of 0 tokens)" in sentence

    def test_a_shard_whose_content_changed(
        self, tmp_path: Path, samples: Samples, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = write_layout(tmp_path / "a.hdf5", samples, "shards")
        content = path.read_bytes()
        at = content.index(samples.input_ids[3:40].tobytes())
        path.write_bytes(content[:at] + b"\x07" + content[at + 1 :])
        assert f"{path}: the content does not match its sha256" in refusal(capsys, "inspect", path)

    def test_a_segment_id_that_is_none(
        self, tmp_path: Path, samples: Samples, capsys: pytest.CaptureFixture[str]
    ) -> None:
        samples.segment_ids[7] = 2
        path = write_layout(tmp_path / "a", samples, "tfrecord")
        assert f"{path}: a segment id is 2, expected 0 or 1" in refusal(capsys, "inspect", path)


def test_samples_without_predictions(tmp_path: Path, vocabulary: Path, capsys: pytest.CaptureFixture[str]) -> None:
    second = sentences().take(np.array([1]))
    assert second.masked_offsets.tolist() == offsets_of(np.array([0])).tolist()
    path = write_layout(tmp_path / "a.hdf5", second, "shards", vocab_size=len(TOKENS))
    assert main(["prep", "inspect", str(path), "--sample=0", f"--vocab={vocabulary}"]) == 0
    assert "B: on the mattress dog [SEP]" in capsys.readouterr().out
    assert main(["prep", "inspect", str(path)]) == 0
    assert "predictions                  0, 0.0 a sample" in capsys.readouterr().out
