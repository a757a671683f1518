"""`prep verify`: what is there, what is wrong with it, what to do next, and the exit code."""

import errno
import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from bert_mlperf.cli import main
from bert_mlperf.data import tfrecord
from bert_mlperf.data.shard_file import read_header
from bert_mlperf.data.shards import write_shard
from bert_mlperf.data_prep import verify as verify_module
from bert_mlperf.data_prep import verify_checks, verify_rows
from bert_mlperf.data_prep.fingerprint import official_input_ids_md5
from bert_mlperf.data_prep.official import Official, OfficialFile, OfficialSet
from bert_mlperf.data_prep.verify import verify
from bert_mlperf.errors import UserError
from bert_mlperf.report.work_progress import WorkProgress
from tests.data.files import (
    VOCAB_SIZE,
    make_samples,
    write_fixed,
    write_packed,
    write_tfrecord_samples,
    write_variable,
)
from tests.data_prep.verifying import CONTENT, KINDS, WEIGHTS, Report, Verify, md5, official_file


class TestOfficialFiles:
    def test_all_right(self, inputs: Path, check: Verify) -> None:
        report = check(inputs)
        assert (report.code, report.wrong) == (0, [])
        assert report.row("vocab.txt") == ["the vocabulary", "present", "35 B, md5 right"]
        assert report.row("phase1/ckpt.data") == ["the checkpoint", "present", "11 B, md5 right"]
        assert report.row("parts/part-*-of-00003") == [
            "text",
            "present",
            "3 of 3 files, 40 B, md5 right (published for 2)",
        ]
        assert report.next == [
            f"bert-mlperf prep examples '{inputs}/parts/part-*-of-00003' --vocab {inputs}/vocab.txt --out train",
            f"bert-mlperf prep eval {inputs}/eval.txt --vocab {inputs}/vocab.txt --out eval",
        ]

    @pytest.mark.parametrize("name", [name for name in CONTENT if name != "part-00001-of-00003"])
    def test_one_wrong_size(self, inputs: Path, check: Verify, name: str) -> None:
        (path,) = inputs.rglob(name)
        path.write_bytes(CONTENT[name] + b"x")
        report = check(inputs)
        assert report.code == 1
        (problem,) = report.wrong
        size = len(CONTENT[name])
        assert problem.startswith(f"{path} has {size + 1} bytes, expected {size}; get it again: shelf of ")
        assert report.next[0] == "mend or remove what is wrong, and run prep verify again"

    @pytest.mark.parametrize("name", [name for name in CONTENT if name != "part-00001-of-00003"])
    def test_one_wrong_md5(self, inputs: Path, check: Verify, name: str) -> None:
        (path,) = inputs.rglob(name)
        changed = CONTENT[name].replace(CONTENT[name][:1], b"?", 1)
        path.write_bytes(changed)
        report = check(inputs)
        assert report.code == 1
        (problem,) = report.wrong
        assert problem.startswith(f"{path} has md5 {md5(changed)}, expected {md5(CONTENT[name])}; get it again: ")

    def test_the_row_of_a_wrong_file(self, inputs: Path, check: Verify) -> None:
        (inputs / "eval.txt").write_bytes(b"short")
        (inputs / "vocab.txt").write_bytes(CONTENT["vocab.txt"].upper())
        report = check(inputs)
        assert report.row("eval.txt") == ["the evaluation text", "wrong", "5 B, expected 29 B"]
        assert report.row("vocab.txt") == ["the vocabulary", "wrong", "md5 differs"]
        assert len(report.wrong) == 2
        assert not any("prep eval" in line for line in report.next), "no step is built on a wrong file"

    def test_missing_files_are_no_fault(self, inputs: Path, check: Verify) -> None:
        shutil.rmtree(inputs / "phase1")
        (inputs / "vocab.txt").unlink()
        (inputs / "dump.xml").unlink()
        report = check(inputs)
        assert (report.code, report.wrong) == (0, [])
        assert report.row("vocab.txt") == ["the vocabulary", "missing"]
        assert report.row("ckpt.index") == ["the checkpoint", "missing"]
        assert "not here, and not needed for the next step: dump.xml, eval_10k, part-*-of-00003" in report.text
        assert report.next[0] == "get the vocabulary (vocab.txt): shelf of vocabulary"
        assert report.next[1].endswith("--vocab vocab.txt --out train")
        assert report.next[3:] == [WEIGHTS]

    def test_half_a_checkpoint(self, inputs: Path, check: Verify) -> None:
        (inputs / "phase1" / "ckpt.data").unlink()
        report = check(inputs)
        assert report.code == 0
        assert report.row("ckpt.data") == ["the checkpoint", "missing"]
        assert report.next[-1] == WEIGHTS and "prep examples" in report.next[0], "what can be done at once stands first"

    def test_a_checkpoint_in_two_folders(self, inputs: Path, check: Verify) -> None:
        (inputs / "phase1" / "ckpt.data").rename(inputs / "ckpt.data")
        assert check(inputs).next[-1] == WEIGHTS

    def test_a_copy_of_a_wrong_file_that_is_right(self, inputs: Path, check: Verify) -> None:
        (inputs / "old").mkdir()
        (inputs / "old" / "eval.txt").write_bytes(b"short")
        report = check(inputs)
        assert report.code == 1 and len(report.wrong) == 1
        assert report.row("old/eval.txt")[1] == "wrong" and report.row("eval.txt")[1] == "present"
        assert any(f"prep eval {inputs}/eval.txt" in line for line in report.next)

    @pytest.mark.reference
    def test_the_real_vocabulary(self, reference_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        shutil.copy(reference_dir / "data" / "wiki" / "vocab.txt", tmp_path)
        assert main(["prep", "verify", str(tmp_path), "--workers", "1"]) == 0
        assert Report(0, capsys.readouterr().out).row("vocab.txt") == ["vocabulary", "present", "231,508 B, md5 right"]


class TestNumberedSets:
    def test_a_part_is_missing(self, inputs: Path, check: Verify) -> None:
        (inputs / "parts" / "part-00001-of-00003").unlink()
        report = check(inputs)
        assert report.code == 1
        assert report.wrong == [
            f"{inputs}/parts/part-*-of-00003: 1 of 3 files missing, number 1 (they count from 0); copy them."
        ]
        assert report.row("parts/part-*-of-00003") == [
            "text",
            "wrong",
            "2 of 3 files, 26 B, md5 right (published for 2), 1 fault",
        ]

    def test_many_shards_are_missing(self, tmp_path: Path, check: Verify) -> None:
        for number in (0, 3, 11):
            write_shard(tmp_path / f"part_{number:05d}_of_00012.hdf5", make_samples([9]), vocab_size=VOCAB_SIZE)
        (problem,) = check(tmp_path).wrong
        assert "9 of 12 files missing, number 1, 2, 4, 5, 6, ... (they" in problem

    def test_a_number_beyond_the_end(self, inputs: Path, check: Verify) -> None:
        """Users had 518 files of a set that should have 500."""
        (inputs / "parts" / "part-00003-of-00003").write_bytes(b"Three.\n")
        report = check(inputs)
        assert report.code == 1
        (problem,) = report.wrong
        assert problem.startswith(f"{inputs}/parts/part-00003-of-00003 is one of 1 files with a number beyond the 3")

    def test_text_that_is_not_utf8(self, inputs: Path, check: Verify) -> None:
        path = inputs / "parts" / "part-00001-of-00003"
        path.write_bytes(b"One \xff more.\n")
        report = check(inputs)
        assert report.code == 1
        assert report.wrong[0].startswith(f"the text {path} is not UTF-8: byte 4 (from 0) is 0xff")

    def test_empty_text(self, inputs: Path, check: Verify) -> None:
        path = inputs / "parts" / "part-00001-of-00003"
        path.write_bytes(b"")
        assert check(inputs).wrong == [f"the text {path} is empty (0 bytes); copy it again."]

    def test_only_five_files_of_a_set_are_named(self, tmp_path: Path, check: Verify) -> None:
        for number in range(8):
            (tmp_path / f"part-{number:05d}-of-00008").write_bytes(b"\xff")
        report = check(tmp_path)
        assert report.wrong[-1] == "and 3 more faults of the same set" and len(report.wrong) == 6
        assert report.row("part-*-of-00008") == ["text", "wrong", "8 of 8 files, 8 B, 8 faults"]


class TestSamples:
    @pytest.mark.parametrize(
        ("write", "name", "layout"),
        [
            (write_fixed, "part_{}_of_2.hdf5", "fixed-length HDF5"),
            (write_variable, "part_{}_of_2.hdf", "variable-length HDF5"),
            (write_packed, "part-{}-of-2.h5", "packed variable-length HDF5"),
            (write_tfrecord_samples, "part-{}-of-2", "TFRecord"),
            (write_tfrecord_samples, "part-{}-of-2.tfrecord", "TFRecord"),
        ],
    )
    def test_each_layout(
        self, tmp_path: Path, check: Verify, write: Callable[..., None], name: str, layout: str
    ) -> None:
        for number in (0, 1):
            write(tmp_path / name.format(number), make_samples([20, 300, 40, 512, 128][number:]))
        report = check(tmp_path)
        assert (report.code, report.wrong) == (0, [])
        assert report.row(name.format("*")) == [layout, "present", "2 of 2 files, 9 samples"]

    @pytest.mark.parametrize(
        ("field", "value", "told"),
        [
            ("masked_lm_positions", 300, "masked position 300 of sample 1 lies outside its 20 tokens"),
            ("next_sentence_labels", 2, "a next-sentence label is 2, expected 0 or 1"),
            ("segment_ids", 3, "a segment id is 3, expected 0 or 1"),
            ("input_ids", -4, "token id -4 lies outside"),
            ("masked_lm_ids", -4, "token id -4 lies outside"),
        ],
    )
    def test_samples_that_are_none(self, tmp_path: Path, check: Verify, field: str, value: int, told: str) -> None:
        """What `inspect` and `convert` refuse is not right here."""
        path = tmp_path / "part_0_of_1.hdf5"
        write_fixed(path, make_samples([30, 20]))
        with h5py.File(path, "r+") as file:
            row = (1,) if file[field].ndim == 1 else (1, 0)
            file[field][row] = value
        report = check(tmp_path)
        assert report.code == 1 and report.wrong[0].startswith(f"{path}: {told}")

    def test_a_link_to_nothing_is_a_missing_file(self, tmp_path: Path, check: Verify) -> None:
        write_fixed(tmp_path / "part_0_of_2.hdf5", make_samples([30, 20]))
        (tmp_path / "part_1_of_2.hdf5").symlink_to(tmp_path / "gone.hdf5")
        report = check(tmp_path)
        assert report.code == 1 and report.wrong == [f"{tmp_path / 'part_1_of_2.hdf5'} is missing; copy it again."]

    def test_rows_damaged_by_the_published_converter(self, tmp_path: Path, check: Verify) -> None:
        samples = make_samples([20, 127, 300, 512])
        write_variable(tmp_path / "part_0_of_2.hdf", samples)
        write_variable(tmp_path / "part_1_of_2.hdf", samples, lengths=samples.lengths.astype(np.int8))
        report = check(tmp_path)
        assert report.code == 1
        (problem,) = report.wrong
        assert problem.startswith(f"{tmp_path}/part_1_of_2.hdf: 2 of 4 rows are damaged (the first is row 2 of 44 tok")
        assert "numpy 2" in problem
        assert report.row("part_*_of_2.hdf") == ["variable-length HDF5", "wrong", "2 of 2 files, 4 samples, 1 fault"]
        assert not any("system file" in line for line in report.next)

    def test_a_truncated_tfrecord(self, tmp_path: Path, check: Verify) -> None:
        path = tmp_path / "part-1-of-2"
        for number in (0, 1):
            write_tfrecord_samples(tmp_path / f"part-{number}-of-2", make_samples([20, 30, 40]))
        path.write_bytes(path.read_bytes()[:-9])
        report = check(tmp_path)
        assert report.code == 1
        assert report.wrong[0].startswith(f"{path}: record 2 is truncated or damaged (it should end at byte")

    def test_a_record_with_a_flipped_bit(self, tmp_path: Path, check: Verify) -> None:
        path = tmp_path / "part-0-of-1"
        write_tfrecord_samples(path, make_samples([20, 30, 40]))
        lengths = [len(m) + 16 for messages in tfrecord.read_records(path, together=9) for m in messages]
        flip(path, lengths[0] + 50)
        report = check(tmp_path)
        assert report.code == 1
        assert report.wrong[0].startswith(f"{path}: record 1 is truncated or damaged (its checksum is wrong)")

    @pytest.mark.parametrize("content", [b"", b"<html>not found</html>"])
    def test_a_foreign_file_stays_with_the_records_of_its_set(
        self, tmp_path: Path, check: Verify, content: bytes
    ) -> None:
        for number in (0, 2):
            write_tfrecord_samples(tmp_path / f"part-{number}-of-3", make_samples([20]))
        (tmp_path / "part-1-of-3").write_bytes(content)
        report = check(tmp_path)
        assert report.code == 1
        (problem,) = report.wrong
        assert problem.startswith(f"{tmp_path}/part-1-of-3 begins with") and "neither HDF5 nor TFRecord" in problem
        assert report.row("part-*-of-3") == ["TFRecord", "wrong", "3 of 3 files, 2 samples, 1 fault"]

    @pytest.mark.parametrize("array", ["input_ids", "masked_ids", "next_sentence_labels"])
    def test_our_shard_with_a_flipped_bit(self, tmp_path: Path, check: Verify, array: str) -> None:
        path = tmp_path / "part_00000_of_00001.hdf5"
        write_shard(path, make_samples([20, 30, 40]), vocab_size=VOCAB_SIZE)
        header = read_header(path)
        flip(path, header.arrays[array].byte_offset)
        report = check(tmp_path)
        assert report.code == 1
        (problem,) = report.wrong
        assert problem.startswith(f"{path}: the content does not match its sha256 ({header.sha256[:12]}")

    def test_our_shard_cut_short(self, tmp_path: Path, check: Verify) -> None:
        path = tmp_path / "part_00000_of_00001.hdf5"
        write_shard(path, make_samples([20, 30, 40]), vocab_size=VOCAB_SIZE)
        path.write_bytes(path.read_bytes()[:-100])
        report = check(tmp_path)
        assert report.code == 1 and report.wrong[0].startswith(str(path))

    def test_a_set_of_two_layouts(self, tmp_path: Path, check: Verify) -> None:
        write_fixed(tmp_path / "part_0_of_2.hdf5", make_samples([20]))
        write_variable(tmp_path / "part_1_of_2.hdf5", make_samples([20]))
        report = check(tmp_path)
        assert report.code == 1
        assert report.wrong == [
            f"{tmp_path}/part_*_of_2.hdf5 mixes fixed-length HDF5 and variable-length HDF5; keep one layout in a "
            "folder."
        ]

    def test_two_sets_in_a_folder(self, tmp_path: Path, check: Verify) -> None:
        write_shard(tmp_path / "part_0_of_1.hdf5", make_samples([20]), vocab_size=VOCAB_SIZE)
        write_tfrecord_samples(tmp_path / "more.tfrecord", make_samples([20]))
        report = check(tmp_path)
        assert report.code == 1
        assert report.wrong == [
            f"{tmp_path} holds *.tfrecord and part_*_of_1.hdf5, which are read as one set since they lie in one "
            "folder; move them apart."
        ]

    def test_layouts_in_folders_of_their_own(self, tmp_path: Path, check: Verify) -> None:
        """Our own shards are the ones to train on."""
        for name, write in (("a_train_tf", write_tfrecord_samples), ("eval", write_packed)):
            (tmp_path / name).mkdir()
            write(tmp_path / name / "all.tfrecord", make_samples([20]))
        (tmp_path / "train").mkdir()
        write_shard(tmp_path / "train" / "part_0_of_1.hdf5", make_samples([20]), vocab_size=VOCAB_SIZE)
        report = check(tmp_path)
        assert (report.code, report.wrong) == (0, [])
        data = {"train": f"{tmp_path}/train", "eval": f"{tmp_path}/eval/all.tfrecord"}
        assert report.next == [
            f'in a system file: "data": {json.dumps(data)}',
            f"also here: training samples in {tmp_path}/a_train_tf/all.tfrecord",
            WEIGHTS,
        ]

    def test_published_sizes_of_records(self, tmp_path: Path, check: Verify) -> None:
        """They are compared for the names of the official set only; bytes are 900 in all, 300 of part 1."""
        for number in range(3):
            write_tfrecord_samples(tmp_path / f"part-{number:05d}-of-00003", make_samples([20]))
        sizes = [path.stat().st_size for path in sorted(tmp_path.iterdir())]
        report = check(tmp_path)
        assert report.code == 1
        assert report.wrong == [
            f"{tmp_path}/part-00001-of-00003 has {sizes[1]:,} bytes, expected 300; get it again: made.",
            f"{tmp_path}/part-*-of-00003 has {sum(sizes):,} bytes in all, expected 900 as published; make it again "
            "from the official text, or give another data set other names.",
        ]

    def test_the_official_evaluation_set(self, tmp_path: Path, check: Verify, monkeypatch: pytest.MonkeyPatch) -> None:
        samples = make_samples([5] * 10_000)
        write_shard(tmp_path / "part_0_of_1.hdf5", samples, vocab_size=VOCAB_SIZE)
        detail = check(tmp_path).row("part_*_of_1.hdf5")[2]
        assert detail == "1 of 1 files, 10,000 samples, not the official evaluation set"
        monkeypatch.setattr(verify_rows, "OFFICIAL_EVAL_INPUT_IDS_MD5", official_input_ids_md5([samples]))
        detail = check(tmp_path).row("part_*_of_1.hdf5")[2]
        assert detail == "1 of 1 files, 10,000 samples, the official evaluation set"

    def test_official_samples(self, tmp_path: Path, check: Verify) -> None:
        """A file whose size is published, but not its md5."""
        write_tfrecord_samples(tmp_path / "eval_10k", make_samples([20, 30]))
        size = (tmp_path / "eval_10k").stat().st_size
        report = check(tmp_path)
        assert report.wrong == [f"{tmp_path}/eval_10k has {size:,} bytes, expected 5; get it again: made."]
        (tmp_path / "eval_10k").write_bytes(b"short")
        report = check(tmp_path)
        assert report.code == 1 and report.wrong[0].startswith(f"{tmp_path}/eval_10k begins with b'short'")


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)


class TestResultsOfSteps:
    def test_all_right(self, steps: Path, check: Verify) -> None:
        report = check(steps)
        assert (report.code, report.wrong) == (0, [])
        assert report.row("split") == ["result of split", "present", "6 files, md5 right"]
        assert report.row("parts") == ["result of gather", "present", "2 files, md5 right"]
        assert report.row("vocab.txt") == ["own vocabulary", "present", "as the manifest of the examples says"]
        assert report.row("fixed/part_*_of_00002.hdf5")[:2] == ["fixed-length HDF5", "present"]
        data = {"train": f"{steps}/train", "eval": f"{steps}/test"}
        assert report.next[0] == f'in a system file: "data": {json.dumps(data)}'

    @pytest.mark.parametrize("name", ["parts/part-00001-of-00002", "split/eval.txt", "split/eval.md5"])
    def test_a_changed_result(self, steps: Path, check: Verify, name: str) -> None:
        path = steps / name
        before = md5(path.read_bytes())
        flip(path, 3)
        report = check(steps)
        assert report.code == 1
        (problem,) = report.wrong
        folder = path.parent
        step = {"parts": "gather", "split": "split"}[folder.name]
        assert problem == (
            f"{path} has md5 {md5(path.read_bytes())}, expected {before}; copy {folder} again, or remove it and "
            f"run prep {step} again."
        )
        assert report.row(folder.name)[1] == "wrong" and report.row(folder.name)[2].endswith("files, 1 fault")

    def test_a_result_that_grew(self, steps: Path, check: Verify) -> None:
        path = steps / "parts" / "part-00000-of-00002"
        size = path.stat().st_size
        path.write_bytes(path.read_bytes() + b"more")
        assert check(steps).wrong[0].startswith(f"{path} has {size + 4:,} bytes, expected {size:,}; copy")

    @pytest.mark.parametrize("name", ["parts/part-00001-of-00002", "split/eval.txt"])
    def test_a_result_that_is_gone(self, steps: Path, check: Verify, name: str) -> None:
        (steps / name).unlink()
        report = check(steps)
        assert report.code == 1
        assert [problem.split(" is missing")[0] for problem in report.wrong] == [str(steps / name)]

    def test_a_flipped_bit_in_a_layout_without_checksum(self, steps: Path, check: Verify) -> None:
        path = steps / "fixed" / "part_00000_of_00002.hdf5"
        with h5py.File(path, "r+") as file:
            ids = file["input_ids"]
            ids[0, 1] = ids[0, 1] ^ 1
        report = check(steps)
        assert report.code == 1
        (problem,) = report.wrong
        assert problem.startswith(f"{path} has md5 ") and "remove it and run prep convert again" in problem

    def test_a_damaged_manifest(self, steps: Path, check: Verify) -> None:
        path = steps / "split" / "manifest.json"
        path.write_text(path.read_text()[:-40])
        report = check(steps)
        assert report.code == 1
        assert any(problem.startswith(f"{path} is damaged (JSONDecodeError") for problem in report.wrong)

    def test_a_manifest_that_lacks_something(self, steps: Path, check: Verify) -> None:
        path = steps / "split" / "manifest.json"
        manifest = json.loads(path.read_text())
        del manifest["outputs"]
        path.write_text(json.dumps(manifest))
        assert any(problem.startswith(f"{path} is damaged (it lacks what") for problem in check(steps).wrong)

    def test_the_manifest_of_another_program(self, steps: Path, check: Verify) -> None:
        (steps / "manifest.json").write_text('{"version": 1}')
        assert check(steps).code == 0

    def test_an_unfinished_step(self, steps: Path, check: Verify) -> None:
        (steps / "train" / "manifest.json").unlink()
        (steps / "train" / ".unfinished").mkdir()
        (steps / "train" / "part_00001_of_00002.hdf5").unlink()
        report = check(steps)
        assert report.code == 1
        assert report.wrong == [
            f"{steps}/train was not finished; run the command that writes it again, it goes on where it stopped, "
            "or remove the folder."
        ]

    def test_a_step_that_has_finished_no_file(self, steps: Path, check: Verify) -> None:
        for folder in ("done", "tmp"):
            (steps / "half" / ".unfinished" / folder).mkdir(parents=True)
        (steps / "half" / ".unfinished" / "plan.json").write_text("{}")
        assert check(steps).code == 0

    def test_another_vocabulary_than_the_one_used(self, steps: Path, check: Verify) -> None:
        (steps / "vocab.txt").write_text("sea\n")
        report = check(steps)
        assert report.code == 1 and report.row("vocab.txt")[1:] == ["wrong", "4 B, expected 35 B"]


class TestProgress:
    def test_every_pass_counts(self, steps: Path, inputs: Path, check: Verify, monkeypatch: pytest.MonkeyPatch) -> None:
        """What is reported is in the end what was announced, for folders without a fault."""
        steps.rename(inputs / "work")
        announced, reported = [], []

        class Watched(WorkProgress):
            def __init__(self, name: str, **options: Any) -> None:
                announced.append(options["total_bytes"])
                super().__init__(name, **options)

        def watch(tasks: Sequence[Any], *, work: Callable[..., Any], on_done: Callable[..., None], **_: Any) -> None:
            for i, task in enumerate(tasks):
                on_done(i, work(task, reported.append))

        monkeypatch.setattr(verify_checks, "WorkProgress", Watched)
        monkeypatch.setattr(verify_checks, "run_tasks", watch)
        assert check(inputs, workers=1).code == 0
        assert sum(reported) == announced[0] > sum(path.stat().st_size for path in inputs.rglob("part*"))


def with_one_more(entry: OfficialFile) -> Official:
    """The official files of these tests, with `entry` in place of those of its kind."""
    others = [official_file(name, CONTENT[name], kind) for name, kind in KINDS.items() if kind != entry.kind]
    text = OfficialSet("part-{:05d}-of-00003", 3, "text", None, "text", "training text", "shelf of text", {})
    return Official((entry, *others), (text,))


class TestFolders:
    def test_no_such_folder(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["prep", "verify", str(tmp_path / "none")]) == 2
        assert capsys.readouterr().err == (
            f"error: {tmp_path}/none is not a folder; give the folder that holds the inputs or the prepared data.\n"
        )

    def test_a_file(self, inputs: Path, check: Verify) -> None:
        with pytest.raises(UserError, match=r"vocab\.txt is not a folder"):
            check(inputs / "vocab.txt")

    @pytest.mark.parametrize("names", [(), ("notes.md", ".vocab.txt", "manifest.json")])
    def test_nothing_known(self, tmp_path: Path, capsys: pytest.CaptureFixture[str], names: tuple[str, ...]) -> None:
        for name in names:
            (tmp_path / name).write_text("{}")
        assert main(["prep", "verify", str(tmp_path)]) == 2
        captured = capsys.readouterr()
        assert captured.err.startswith(f"error: {tmp_path} holds nothing that is known here") and not captured.out

    @pytest.mark.parametrize("workers", ["0", "-3"])
    def test_no_workers(self, inputs: Path, capsys: pytest.CaptureFixture[str], workers: str) -> None:
        assert main(["prep", "verify", str(inputs), "--workers", workers]) == 2
        assert f"--workers is {workers}, expected at least 1" in capsys.readouterr().err

    def test_exit_code_of_the_command(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        write_tfrecord_samples(tmp_path / "train.tfrecord", make_samples([20]))
        assert main(["prep", "verify", str(tmp_path), "--workers", "1"]) == 0
        (tmp_path / "vocab.txt").write_text("short\n")
        assert main(["prep", "verify", str(tmp_path), "--workers", "1"]) == 1
        assert "vocab.txt has 6 bytes, expected 231,508" in capsys.readouterr().out

    def test_the_same_for_any_number_of_workers(self, steps: Path, inputs: Path, check: Verify) -> None:
        write_tfrecord_samples(inputs / "part-0-of-2", make_samples([20]))
        (inputs / "eval.txt").write_bytes(b"short")
        flip(steps / "split" / "eval.txt", 0)
        steps.rename(inputs / "work")
        reports = [check(inputs, workers=workers) for workers in (None, 1, 2)]
        assert reports[0].code == 1 and len(reports[0].wrong) == 3
        assert reports[0].text == reports[1].text == reports[2].text
        assert reports[0].code == reports[1].code == reports[2].code

    def test_links_to_folders_are_followed_once(self, inputs: Path, tmp_path: Path, check: Verify) -> None:
        (tmp_path / "links").mkdir()
        (tmp_path / "links" / "data").symlink_to(inputs)
        (inputs / "back").symlink_to(tmp_path / "links")
        report = check(tmp_path / "links")
        assert report.code == 0
        assert report.row("data/vocab.txt")[1] == "present" and report.text.count("vocab.txt   ") == 1

    def test_names_with_a_dot_are_left_out(self, inputs: Path, check: Verify) -> None:
        (inputs / ".cache").mkdir()
        (inputs / ".cache" / "vocab.txt").write_bytes(b"short")
        assert check(inputs).code == 0

    def test_a_file_that_cannot_be_read(self, inputs: Path, check: Verify) -> None:
        """/proc/self/mem is a regular file that nobody can read from its begin, root neither."""
        path = inputs / "parts" / "part-00001-of-00003"
        path.unlink()
        path.symlink_to("/proc/self/mem")
        report = check(inputs)
        assert report.code == 1
        assert report.wrong == [f"the text {path} cannot be read: Input/output error; give a UTF-8 text file."]

    def test_an_official_file_that_cannot_be_read(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "secret").symlink_to("/proc/self/mem")
        entry = OfficialFile("secret", 0, "0" * 32, "vocabulary", "secret", "shelf")
        assert verify(tmp_path, workers=1, official=with_one_more(entry)) == 1
        assert Report(1, capsys.readouterr().out).wrong == [
            f"{tmp_path}/secret cannot be read: Input/output error; check its permissions or get it again: shelf, or "
            "add --own-vocabulary to prep examples and prep eval if it is your own."
        ]

    def test_a_folder_that_cannot_be_read(self, inputs: Path, check: Verify, monkeypatch: pytest.MonkeyPatch) -> None:
        """As root may read every folder, the system call is what refuses."""
        scandir = os.scandir

        def refuse(path: Any) -> Any:
            if str(path).endswith("parts"):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            return scandir(path)

        monkeypatch.setattr(os, "scandir", refuse)
        with pytest.raises(UserError, match=r"inputs/parts cannot be read: Permission denied; check its permissions"):
            check(inputs)


class TestPage:
    """On a terminal and in a pipe."""

    def test_no_name_is_broken_on_a_narrow_terminal(
        self, inputs: Path, check: Verify, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (inputs / "vocab.txt").unlink()
        (inputs / "eval.txt").unlink()
        monkeypatch.setattr(verify_module, "PIPE_WIDTH", 40)
        lines = [line.rstrip() for line in check(inputs).text.splitlines()]
        assert "parts/part-*-of-00003" in lines and "phase1/ckpt.index" in lines
        at = lines.index("parts/part-*-of-00003")
        assert lines[at + 1 : at + 3] == [
            "        text, present, 3 of 3 files, 40",
            "        B, md5 right (published for 2)",
        ]
        assert max(len(line) for line in lines[: at + 3]) <= 40
        assert any(line.startswith("not here, and not needed for the next") for line in lines)

    def test_missing_is_either_asked_for_or_not_needed(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """With the official list, where two checkpoints have the same names."""
        write_tfrecord_samples(tmp_path / "train.tfrecord", make_samples([20]))
        assert main(["prep", "verify", str(tmp_path), "--workers", "1"]) == 0
        text = capsys.readouterr().out
        (line,) = (line for line in text.splitlines() if line.startswith("not here, and not needed"))
        assert "model.ckpt-28252.index" in text and "model.ckpt-28252.index" not in line
        assert "bert_config.json" in line

    def test_a_row_is_a_line_in_a_pipe(self, inputs: Path, check: Verify) -> None:
        deep = inputs / "a_rather_long_name_of_a_folder" / "with_another_long_one_below_it"
        deep.mkdir(parents=True)
        write_variable(deep / "part_00000_of_00001.hdf5", make_samples([20]))
        assert check(inputs).row(f"{deep.relative_to(inputs)}/part_*_of_00001.hdf5")[1] == "present"

    def test_no_colours_in_a_pipe(self, inputs: Path, check: Verify) -> None:
        (inputs / "eval.txt").write_bytes(b"short")
        assert "\x1b" not in check(inputs).text
