"""`prep verify`: what it says to do next, and own, stale and several data."""

import json
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from bert_mlperf.cli import main
from bert_mlperf.data.shards import write_shard
from bert_mlperf.data_prep.gather import gather
from bert_mlperf.data_prep.segment import segment
from bert_mlperf.data_prep.verify_next import options_for_eval, options_for_split
from tests.data.files import VOCAB_SIZE, make_samples
from tests.data_prep.verifying import ARTICLES, CONTENT, WORDS, Verify


class TestNextSteps:
    def next_of(self, folder: Path, check: Verify) -> list[str]:
        report = check(folder)
        assert report.code == 0
        return [line for line in report.next if not line.startswith(("for an official run", "also here"))]

    def test_only_a_vocabulary(self, inputs: Path, check: Verify) -> None:
        for name in ("dump.xml", "eval.txt"):
            (inputs / name).unlink()
        shutil.rmtree(inputs / "parts")
        assert self.next_of(inputs, check) == [
            "get the training text (500 parts): shelf of text",
            "get the evaluation text (eval.txt): shelf of evaluation text",
        ]

    def test_only_a_dump(self, tmp_path: Path, check: Verify) -> None:
        (tmp_path / "dump.xml").write_bytes(CONTENT["dump.xml"])
        assert self.next_of(tmp_path, check) == [
            f"extract {tmp_path}/dump.xml with WikiExtractor, then bert-mlperf prep clean 'text/*/wiki_??' --out clean",
            "get the vocabulary (vocab.txt): shelf of vocabulary",
        ]

    def test_extracted_text(self, tmp_path: Path, check: Verify) -> None:
        (tmp_path / "AA").mkdir()
        for name in ("wiki_00", "wiki_01"):
            (tmp_path / "AA" / name).write_text("<doc>\nSea\n\nDeep.\n</doc>\n")
        assert check(tmp_path).row("AA/wiki_??") == ["extracted text", "present", "2 files, not checked"]
        assert self.next_of(tmp_path, check)[:1] == [f"bert-mlperf prep clean '{tmp_path}/AA/wiki_??' --out clean"]

    @pytest.mark.parametrize(
        ("gone", "expected"),
        [
            (["train", "fixed", "test", "parts", "split"], ["get the training text", "get the evaluation text"]),
            (
                ["train", "fixed", "test", "parts"],
                ["prep gather {}/split/train --out parts", "--vocab {}/vocab.txt --out eval --num-samples 40"],
            ),
            (["train", "fixed", "test"], ["prep examples '{}/parts' --vocab", "prep eval {}/split/eval.txt"]),
            (["train", "fixed"], ["prep examples '{}/parts' --vocab {}/vocab.txt --own-vocabulary --out train"]),
            (
                ["test"],
                ["prep eval {}/split/eval.txt --vocab {}/vocab.txt --own-vocabulary --out eval --num-samples 40"],
            ),
            (["parts", "test", "split"], ["get the evaluation text (eval.txt)"]),
            ([], ["in a system file"]),
        ],
    )
    def test_after_each_step(self, steps: Path, check: Verify, gone: list[str], expected: list[str]) -> None:
        for name in gone:
            shutil.rmtree(steps / name)
        if "train" in gone and "test" in gone:  # nothing speaks of our own vocabulary then
            (steps / "vocab.txt").write_bytes(CONTENT["vocab.txt"])
        lines = self.next_of(steps, check)
        assert len(lines) == len(expected)
        for line, part in zip(lines, expected, strict=True):
            assert part.format(steps, steps) in line

    def test_after_clean_and_segment(self, steps: Path, check: Verify) -> None:
        """The manifest of the split, with the names of the steps before."""
        for name in ("train", "fixed", "test", "parts", "vocab.txt"):
            shutil.rmtree(steps / name) if (steps / name).is_dir() else (steps / name).unlink()
        path = steps / "split" / "manifest.json"
        manifest = json.loads(path.read_text())
        for stage, command in (
            ("clean", "segment {} --out segmented"),
            ("segment", "split {} --out split --eval-articles 6"),
        ):
            path.write_text(json.dumps(manifest | {"stage": stage}))
            assert self.next_of(steps, check)[:1] == [f"bert-mlperf prep {command.format(steps / 'split')}"]


class TestSmallCorpora:
    def test_the_suggested_numbers_work(self, tmp_path: Path, check: Verify, monkeypatch: pytest.MonkeyPatch) -> None:
        """From segmented text on each suggestion is run as it stands there, but for the length of samples."""
        monkeypatch.chdir(tmp_path)
        (tmp_path / "vocab.txt").write_text("".join(f"{word}\n" for word in WORDS))
        for i in (0, 1):
            (tmp_path / f"text{i}").write_text(ARTICLES)
        segment([tmp_path / "text0", tmp_path / "text1"], out=tmp_path / "segmented", workers=1)
        for step in ("split", "gather", "examples", "eval"):
            (line,) = (line for line in check(Path()).next if line.startswith(f"bert-mlperf prep {step} "))
            assert main(shlex.split(line)[1:]) == 0
        report = check(Path())
        data = {"train": f"{tmp_path}/train", "eval": f"{tmp_path}/eval"}
        assert report.code == 0 and report.next[0] == f'in a system file: "data": {json.dumps(data)}'

    @pytest.mark.parametrize(
        ("articles", "options"),
        [
            ([5000, 5000], ""),
            ([5000, 4999], "--eval-articles 499"),
            ([30, 30], "--eval-articles 3"),
            ([3, 300], "--eval-articles 6"),
            ([1], "--eval-articles 1"),
            ([7, None], ""),
            ([], ""),
        ],
    )
    def test_articles_to_withhold(self, articles: list[int | None], options: str) -> None:
        facts = [{"sentences": 3} if count is None else {"articles": count} for count in articles]
        assert options_for_split(facts) == options

    def test_samples_to_pick(self) -> None:
        assert (options_for_eval(1000), options_for_eval(999)) == ("", "--num-samples 9990")


class TestOwnFiles:
    """Files that are named like official ones."""

    @pytest.fixture
    def own(self, tmp_path: Path) -> Path:
        (tmp_path / "part-00000-of-00001").write_text("The sea.\n")
        (tmp_path / "vocab.txt").write_text("".join(f"{word}\n" for word in WORDS))
        (tmp_path / "eval.txt").write_text("A fish.\n\nIt swims.\n")
        return tmp_path

    def test_beside_own_text(self, own: Path, check: Verify) -> None:
        report = check(own)
        assert (report.code, report.wrong) == (0, [])
        assert report.row("vocab.txt") == ["own vocabulary", "present", "not the official one: add --own-vocabulary"]
        assert report.row("eval.txt") == ["own evaluation text", "present", "not the official one"]
        assert "not here, and not needed for the next step: dump.xml, eval_10k, part-*-of-00003\n" in report.text
        vocabulary = f"--vocab {own}/vocab.txt --own-vocabulary"
        assert report.next[:2] == [
            f"bert-mlperf prep examples '{own}/part-*-of-00001' {vocabulary} --out train",
            f"bert-mlperf prep eval {own}/eval.txt {vocabulary} --out eval --num-samples 20",
        ]

    def test_that_are_no_vocabulary(self, own: Path, check: Verify) -> None:
        (own / "vocab.txt").write_text("sea\n")
        (problem,) = check(own).wrong
        assert problem == (
            f"{own}/vocab.txt has 4 bytes, expected 35; get it again: shelf of vocabulary, or add --own-vocabulary to "
            "prep examples and prep eval if it is your own."
        )

    def test_beside_official_text(self, own: Path, inputs: Path, check: Verify) -> None:
        for name in ("vocab.txt", "eval.txt"):
            shutil.copy(own / name, inputs / name)
        report = check(inputs)
        assert report.code == 1 and len(report.wrong) == 2
        assert report.wrong[0].endswith("or give it another name if it is your own.")


class TestStaleInputs:
    def test_a_text_that_changed_after_a_step(self, steps: Path, check: Verify) -> None:
        path = steps / "text0"
        path.write_text(path.read_text().replace("Fish", "Eel", 1))
        report = check(steps)
        assert report.code == 1
        assert report.wrong == [
            f"{path} has changed since {steps}/split was made from it; put the old file back, or remove {steps}/split "
            "and run prep split and the steps behind it again."
        ]
        assert report.row("split") == ["result of split", "wrong", "6 files, 1 fault"]

    def test_a_step_that_was_run_again(self, steps: Path, check: Verify) -> None:
        """Its folder is right by itself; what was made from the one before is not."""
        shutil.rmtree(steps / "parts")
        texts = [steps / "split" / "train" / f"text{i}" for i in (1, 0)]
        (steps / "other").mkdir()
        for i, text in enumerate(texts):
            shutil.copy(text, steps / "other" / f"text{i}")
        (steps / "other" / "text0").write_text(ARTICLES)
        gather([steps / "other"], out=steps / "parts", num_parts=2, workers=1)
        report = check(steps)
        assert (
            report.code == 1
            and len(report.wrong) == 2
            and f"since {steps}/train was" in report.wrong[1] + (report.wrong[0])
        )

    def test_inputs_that_are_gone_or_elsewhere(self, steps: Path, check: Verify) -> None:
        (steps / "text0").unlink()
        (steps / "text1").unlink()
        assert check(steps).code == 0
        (steps / "split" / "train" / "more").write_text("Not an input.\n")
        assert check(steps).code == 0
        assert check(steps / "train").code == 0


class TestDataOfASystemFile:
    def write_sets(self, folder: Path, names: Sequence[str]) -> None:
        for i, name in enumerate(names):
            (folder / name).mkdir()
            samples = make_samples([20] * (1 + i))
            write_shard(folder / name / "part_0_of_1.hdf5", samples, vocab_size=VOCAB_SIZE)

    def test_folders_named_train_and_eval_stand_first(
        self, tmp_path: Path, check: Verify, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.write_sets(tmp_path, ["train", "eval", "back_fixed", "sub", "old_eval"])
        monkeypatch.chdir(tmp_path)
        assert check(Path()).next[:2] == [
            f'in a system file: "data": {{"train": "{tmp_path}/train", "eval": "{tmp_path}/eval"}}',
            "also here: training samples in sub, back_fixed; evaluation samples in old_eval",
        ]

    def test_else_the_largest(self, tmp_path: Path, check: Verify) -> None:
        self.write_sets(tmp_path, ["small", "large", "x_eval", "y_eval"])
        data = {"train": f"{tmp_path}/large", "eval": f"{tmp_path}/y_eval"}
        assert check(tmp_path).next[0] == f'in a system file: "data": {json.dumps(data)}'
