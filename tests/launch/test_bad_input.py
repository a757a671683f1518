"""Bad input of a launch: one sentence that says what to do, exit code 2, and the results folder as it was."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from bert_mlperf.cli import main
from bert_mlperf.config.system import load_system
from bert_mlperf.data.index import FILE_NAME, IndexedFile, SampleIndex, write_index
from bert_mlperf.data.indexing import beside, index_of
from bert_mlperf.data.shard_file import read_header
from bert_mlperf.data.shards import write_shard
from bert_mlperf.launch import prepare_inputs
from tests.config import files
from tests.launch import launching
from tests.launch.launching import SHARD, TINY_MODEL, tiny_system
from tests.train.small import small_model, uneven_samples


def old_results(folder: Path) -> Path:
    """A results folder that holds one earlier run."""
    bert = folder / "results" / "tiny" / "bert"
    (bert / "run_0").mkdir(parents=True)
    (bert / "result_0.txt").write_text(":::MLLOG of an earlier run\n")
    (bert / "run_0" / "config.json").write_text("{}\n")
    return folder / "results"


def refusal(capsys: pytest.CaptureFixture[str], folder: Path, *arguments: str) -> str:
    """The sentence with which `launch` of `folder`/tiny.json is refused; whatever lies in `folder` stays as it is."""
    before = launching.snapshot(folder)
    code = main(["launch", str(folder / "tiny.json"), "--results", str(folder / "results"), *arguments])
    output = capsys.readouterr()
    assert code == 2, output.err
    assert launching.snapshot(folder) == before
    return the_sentence(output.err)


def the_sentence(stderr: str) -> str:
    lines = [line for line in stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, stderr
    assert stderr.endswith(f"{lines[0]}\n")
    assert "Traceback" not in stderr
    return lines[0]


@pytest.mark.parametrize("with_results", [False, True])
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["run.recipe.base_learnig_rate=1"], ["unknown key", "did you mean run.recipe.base_learning_rate?"]),
        (["run.precision=8"], ["run.precision is 8 (a whole number)", 'expected "fp32", "bf16" or "fp16"']),
        (["recipe.global_batch_size=9"], ["global_batch_size is 9, expected 8 = 1 nodes x 2", "change one of them"]),
        (["target_accuracy=1.0"], ["run.target_accuracy is 1.0", "expected a number > 0 and < 1"]),
        (["target_accuracy=0"], ["run.target_accuracy is 0", "expected a number > 0 and < 1"]),
        (["eval_interval_samples=0"], ["run.eval_interval_samples is 0", "expected a whole number > 0"]),
        (["eval_interval_samples=-8"], ["run.eval_interval_samples is -8", "expected a whole number > 0"]),
        (
            ["recipe.global_batch_size=208", "micro_batch_size=104"],
            ["/train holds 200 samples", "at least one global batch of 208", "add data or lower run.recipe.global"],
        ),
        (["model.vocab_size=50"], [SHARD, "token id 60 lies outside the vocabulary", "(0 to 49)", "use the data"]),
        (
            ["model.max_position_embeddings=39"],
            [SHARD, "40 tokens", "39", "--max-seq-length 39 or choose"],
        ),
        (["cache=node", "cache_folder=/nowhere"], ["run.cache_folder /nowhere cannot be used", "give a folder"]),
        (["balance=best"], ["run.balance is", 'expected "none", "strided" or "snake"']),
        (["loader_workers=0"], ["run.loader_workers is 0", "expected a whole number"]),
        (["division=closed"], ["division closed demands bert-large in run.model, got bert-tiny-test", "set division"]),
        (
            ["number_of_nodes=2", "micro_batch_size=2", "master_port=29511"],
            ["has 2 nodes", "NODE_RANK=0..1", "got NODE_RANK=None, MASTER_ADDR=None"],
        ),
    ],
)
def test_wrong_values(
    tmp_path: Path,
    data: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    expected: list[str],
    with_results: bool,
) -> None:
    for name in ("NODE_RANK", "SLURM_NODEID", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    files.write(tmp_path, tiny_system(data), "tiny.json")
    if with_results:
        old_results(tmp_path)
    sentence = refusal(capsys, tmp_path, "--set", *arguments)
    for part in expected:
        assert part in sentence


@pytest.mark.parametrize(
    ("device", "found", "expected"),
    [("cuda", 0, "install a CUDA build of PyTorch"), ("cuda", 1, "lower it"), ("auto", 1, "lower it")],
)
def test_fewer_devices_than_ranks(
    tmp_path: Path,
    data: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    found: int,
    expected: str,
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: found)
    files.write(tmp_path, tiny_system(data), "tiny.json")
    sentence = refusal(capsys, tmp_path, "--set", f"device={device}")
    assert f"run.ranks_per_node is 2, one CUDA device each, and this node has {found}: {expected}" in sentence


def missing_file(path: Path) -> None:
    path.unlink()


def malformed_file(path: Path) -> None:
    path.write_text(path.read_text()[:-3])


@pytest.mark.parametrize(
    ("damage", "expected"), [(missing_file, "does not exist"), (malformed_file, "not valid JSON at line 1, column")]
)
def test_missing_or_malformed_system_file(
    tmp_path: Path,
    data: Path,
    capsys: pytest.CaptureFixture[str],
    damage: Callable[[Path], None],
    expected: str,
) -> None:
    path = files.write(tmp_path, tiny_system(data), "tiny.json")
    damage(path)
    sentence = refusal(capsys, tmp_path)
    assert str(path) in sentence
    assert expected in sentence


def truncated(shard: Path) -> None:
    with shard.open("r+b") as file:
        file.truncate(shard.stat().st_size // 2)


def changed(shard: Path) -> None:
    at = read_header(shard).arrays["masked_ids"].byte_end - 1
    with shard.open("r+b") as file:
        file.seek(at)
        last = file.read(1)
        file.seek(at)
        file.write(bytes([last[0] ^ 1]))


def foreign_hdf5(shard: Path) -> None:
    shard.unlink()
    with h5py.File(shard, "w") as file:
        file["weather"] = [1, 2, 3]


def without_masks(shard: Path) -> None:
    shard.unlink()
    samples = uneven_samples(200, config=small_model())
    empty = samples.masked_ids[:0]
    none = replace(samples, masked_positions=empty, masked_ids=empty, masked_offsets=samples.masked_offsets * 0)
    write_shard(shard, none, vocab_size=small_model().vocab_size)


def foreign_text(shard: Path) -> None:
    shard.write_text("not a shard\n")


def missing_of_two(shard: Path) -> None:
    shard.rename(shard.with_name("part_00001_of_00002.hdf5"))


def none_left(shard: Path) -> None:
    shard.unlink()


def of_another_vocabulary(shard: Path) -> None:
    samples = uneven_samples(200, config=TINY_MODEL, seed=1)
    for ids in (samples.input_ids, samples.masked_ids):
        ids[:] = np.minimum(ids, 57)
    shard.unlink()
    write_shard(shard, samples, vocab_size=58)


def no_folder(shard: Path) -> None:
    shutil.rmtree(shard.parent)


@pytest.mark.parametrize("which", ["train", "eval"])
@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (truncated, [SHARD, "truncated", "copy it again"]),
        (changed, [SHARD, "does not match its sha256", "copy it again"]),
        (foreign_hdf5, [SHARD, "HDF5 of an", "remove it or convert it"]),
        (without_masks, ["has no masked token in any of its samples", "prepare it anew"]),
        (foreign_text, [SHARD, "neither HDF5 nor TFRecord", "remove it"]),
        (missing_of_two, ["has 1 of 2 shards", "number 0 is missing", "copy the missing ones"]),
        (none_left, ["has no shards (it is empty)", "expected files like", "prepare the data"]),
        (of_another_vocabulary, ["with a vocabulary of", "58", "61", "make both with one vocabulary"]),
        (no_folder, ["does not exist", "give a folder of shards", "relative paths start at the folder above systems/"]),
    ],
)
def test_bad_shards(
    tmp_path: Path,
    data: Path,
    capsys: pytest.CaptureFixture[str],
    which: str,
    damage: Callable[[Path], None],
    expected: list[str],
) -> None:
    shutil.copytree(data, tmp_path / "data")
    damage(tmp_path / "data" / which / SHARD)
    files.write(tmp_path, tiny_system(tmp_path / "data"), "tiny.json")
    sentence = refusal(capsys, tmp_path)
    for part in [str(tmp_path / "data" / which), *expected]:
        assert part in sentence


def test_a_vocabulary_larger_than_that_of_the_data_is_told(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No error: vocabularies are padded on purpose."""
    for size, lines in ((61, 0), (64, 1)):
        path = files.write(tmp_path, tiny_system(data), "tiny.json")
        prepare_inputs(load_system(path, [f"model.vocab_size={size}"]))
        said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning  ")]
        expected = f"warning  run.model.vocab_size is 64, {data}/train was made with a vocabulary of 61 tokens: the ids"
        assert len(said) == lines and all(line.startswith(expected) for line in said)


def test_port_that_is_taken(tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        files.write(tmp_path, tiny_system(data, master_port=port), "tiny.json")
        sentence = refusal(capsys, tmp_path)
    assert f"port {port} (run.master_port) cannot be used" in sentence
    assert "Address already in use" in sentence
    assert "set another port" in sentence


@pytest.mark.parametrize("content", [None, "not a checkpoint\n"])
def test_checkpoint_that_is_none(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str], content: str | None
) -> None:
    checkpoint = tmp_path / "weights.pt"
    if content is not None:
        checkpoint.write_text(content)
    files.write(tmp_path, tiny_system(data), "tiny.json")
    sentence = refusal(capsys, tmp_path, "--set", f"data.checkpoint={checkpoint}")
    assert str(checkpoint) in sentence
    assert "does not exist" in sentence or "expected a TF1 checkpoint" in sentence


def test_options_that_contradict_or_overwrite(tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files.write(tmp_path, tiny_system(data), "tiny.json")
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "weights.pt").write_bytes(b"weights of an earlier run")
    assert "--runs is 0, expected 1 or more" in refusal(capsys, tmp_path, "--runs", "0")
    assert "leave out one of them" in refusal(capsys, tmp_path, "--runs", "2", "--save", str(tmp_path / "new"))
    assert "exists already and is not overwritten" in refusal(capsys, tmp_path, "--save", str(kept))
    assert "(--save) cannot be written" in refusal(capsys, tmp_path, "--save", str(tmp_path / "tiny.json"))
    for step in ("5", "-1"):
        assert f"--trace is {step}, expected a step from 0 to 4" in refusal(capsys, tmp_path, "--trace", step)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (["run.shard_group=3"], "run.shard_group is 3 ranks, which does not divide the 2 ranks; give one of 1, 2"),
        (["run.reduction=flat", "run.shard_group=1"], "run.reduction is flat, which shards over all 2 ranks"),
        (["run.reduction=hierarchical"], "but there is 1 node, expected at least 2"),
        (["run.bucket_mib=0"], "run.bucket_mib"),
        (["run.wire=int8"], "run.wire"),
    ],
)
def test_sharding_that_cannot_be(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str], settings: list[str], expected: str
) -> None:
    files.write(tmp_path, tiny_system(data), "tiny.json")
    assert expected in refusal(capsys, tmp_path, "--set", *settings)


def test_file_where_the_results_folder_should_be(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files.write(tmp_path, tiny_system(data), "tiny.json")
    (tmp_path / "results").write_text("in the way\n")
    sentence = refusal(capsys, tmp_path)
    assert f"{tmp_path / 'results'}/tiny/bert (--results) cannot be written (Not a directory)" in sentence
    assert "give another with --results" in sentence


AS_NOBODY = """
import os, sys
# nobody may not be able to read the installation
import bert_mlperf.launch, bert_mlperf.launch_data, bert_mlperf.train.setup
from bert_mlperf.cli import main
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
sys.exit(main(sys.argv[1:]))
"""


def test_read_only_results_folder(data: Path) -> None:
    """Root may write everywhere, so the launcher runs as nobody, in a folder that nobody can reach."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(data, folder / "data")
        files.write(folder, tiny_system(folder / "data"), "tiny.json")
        results = old_results(folder)
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        before = launching.snapshot(folder)
        done = subprocess.run(
            [sys.executable, "-c", AS_NOBODY, "launch", "tiny.json", "--results", str(results)],
            capture_output=True,
            text=True,
            cwd=folder,
            env=launching.clean_environment(),
            timeout=launching.PATIENCE_S,
        )
        after = launching.snapshot(folder)
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o755)
    assert done.returncode == 2, done.stderr
    assert f"{results}/tiny/bert (--results) cannot be written (Permission denied)" in the_sentence(done.stderr)
    assert after == before


def test_real_command_line(tmp_path: Path, data: Path) -> None:
    """As a process of its own: the exit code, and nothing but the sentence after what was found to be right."""
    wrong = tiny_system(data) | {"number_of_nodes": "3"}
    launched = launching.Launched(tmp_path, wrong)
    assert launched.end() == 2
    sentence = the_sentence(launched.output)
    assert "run.recipe.global_batch_size is 8, expected 24 = 3 nodes x 2 ranks_per_node x 4" in sentence
    assert launched.output == f"{sentence}\n"
    assert launched.stdout.read_text() == ""
    assert not (tmp_path / "results").exists()


def test_run_and_time_passes_arguments_and_exit_code_on(tmp_path: Path) -> None:
    """In a copy of the scripts, beside which there is no .venv, with a python3 that can import the package."""
    root = Path(__file__).resolve().parents[2]
    for name in ("run_and_time.sh", "setup_env.sh"):
        shutil.copy(root / name, tmp_path / name)
    (tmp_path / "bin").mkdir()
    python3 = tmp_path / "bin" / "python3"
    python3.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python3.chmod(0o755)
    done = subprocess.run(
        [tmp_path / "run_and_time.sh", "systems/none.json", "--runs", "2"],
        capture_output=True,
        text=True,
        env=launching.clean_environment() | {"PATH": f"{python3.parent}:{os.environ['PATH']}"},
        timeout=launching.PATIENCE_S,
    )
    assert done.returncode == 2
    assert done.stderr == (
        f"error: System file systems/none.json does not exist (relative paths start at {tmp_path}).\n"
    )
    assert not (tmp_path / ".venv").exists()


def test_model_of_the_tests_is_the_one_of_the_data(data: Path) -> None:
    """Else the tests above would pass for the wrong reason."""
    assert TINY_MODEL.vocab_size == 61
    assert TINY_MODEL.max_position_embeddings == 40


def test_dali_that_is_missing_is_refused_if_it_is_asked_for(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bert_mlperf.train.loading.dali_missing", lambda: "DALI is not installed")
    files.write(tmp_path, tiny_system(data), "tiny.json")
    sentence = refusal(capsys, tmp_path, "--set", "loader=dali")
    assert "run.loader is dali, but DALI is not installed; install the extra dali-cuda12" in sentence


def test_an_index_of_other_shards_is_refused(tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(data, tmp_path / "data")
    train = tmp_path / "data" / "train"
    counts = np.ones(200, np.uint16)
    write_index(train / FILE_NAME, SampleIndex((IndexedFile(SHARD, 200, "0" * 64),), counts, counts))
    files.write(tmp_path, tiny_system(tmp_path / "data"), "tiny.json")
    sentence = refusal(capsys, tmp_path)
    assert f"{train / FILE_NAME} does not belong to the samples of {train}" in sentence and "remove it" in sentence
    sentence = refusal(capsys, tmp_path, "--set", "read=exchange")
    assert f"{train / SHARD} is another file than the one that" in sentence and "or remove the index" in sentence


def test_shards_that_the_index_lists_and_that_are_elsewhere(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(data, tmp_path / "data")
    train = tmp_path / "data" / "train"
    shutil.copy(train / SHARD, train / "part_more.hdf5")
    index_of(train)
    (train / "part_more.hdf5").unlink()
    files.write(tmp_path, tiny_system(tmp_path / "data"), "tiny.json")
    sentence = refusal(capsys, tmp_path)
    assert f"{train / 'part_more.hdf5'}, which" in sentence and "(1 of 2 shards are missing)" in sentence
    assert "set run.read=exchange and run.cache=none if every node holds the shards of its ranks" in sentence
    sentence = refusal(capsys, tmp_path, "--set", "read=exchange", "cache=node")
    assert "run.read=exchange and run.cache=none" in sentence
    sentence = refusal(capsys, tmp_path, "--set", "read=exchange")  # both ranks are of this node
    assert "a rank of this node is to read, is not there" in sentence


def test_an_index_beside_a_single_file_is_compared_with_it(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(data, tmp_path / "data")
    shard = tmp_path / "data" / "train" / SHARD
    counts = np.ones(200, np.uint16)
    write_index(beside(shard), SampleIndex((IndexedFile(SHARD, 200, "0" * 64),), counts, counts))
    system = tiny_system(tmp_path / "data")
    system["run"]["data"]["train"] = str(shard)
    files.write(tmp_path, system, "tiny.json")
    for read in ("index", "exchange"):
        sentence = refusal(capsys, tmp_path, "--set", f"read={read}")
        assert f"{beside(shard)} does not belong to the samples of {shard}" in sentence
