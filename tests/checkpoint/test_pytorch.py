"""The published PyTorch layout, {'model': state_dict}: its variants, its mistakes, and other files."""

import os
import pickle
from pathlib import Path

import pytest
import torch

from bert_mlperf.checkpoint.store import check_checkpoint, load_weights
from tests.checkpoint.checkpoints import (
    DECODER,
    Reader,
    assert_same_bits,
    both_readers,
    random_weights,
    refusal,
    state_dict,
    write_published,
)
from tests.train.small import small_model

CONFIG = small_model()  # 61 words
PADDED = 64
WEIGHTS = random_weights(CONFIG)
POOLER = "bert.pooler.dense.weight"


class RunsCode:
    """Unpickled carelessly, it makes a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize("activation", ["dense", "dense_act"])
@pytest.mark.parametrize("prefix", ["", "module."])
@pytest.mark.parametrize("padded_vocabulary", [None, PADDED])
@pytest.mark.parametrize("decoder", [True, False], ids=["with decoder", "without decoder"])
def test_every_variant_loads_to_the_bit(tmp_path: Path, activation, prefix, padded_vocabulary, decoder):
    state = state_dict(
        CONFIG, WEIGHTS, activation=activation, prefix=prefix, padded_vocabulary=padded_vocabulary, decoder=decoder
    )
    state[f"{prefix}bert.embeddings.position_ids"] = torch.arange(CONFIG.max_position_embeddings)[None]
    path = write_published(tmp_path, state)
    check_checkpoint(path, CONFIG)
    assert_same_bits(load_weights(path, CONFIG), CONFIG, WEIGHTS)


def test_files_of_torch_before_1_6_load(tmp_path: Path):
    path = write_published(tmp_path, state_dict(CONFIG, WEIGHTS), _use_new_zipfile_serialization=False)
    check_checkpoint(path, CONFIG)
    assert_same_bits(load_weights(path, CONFIG), CONFIG, WEIGHTS)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_loads_as_fp32(tmp_path: Path, dtype: torch.dtype):
    state = {name: tensor.to(dtype) for name, tensor in state_dict(CONFIG, WEIGHTS).items()}
    expected = {name: tensor.to(dtype).float() for name, tensor in WEIGHTS.items()}
    assert_same_bits(load_weights(write_published(tmp_path, state), CONFIG), CONFIG, expected)


@both_readers
@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [
        (POOLER, None, "lacks bert/pooler/dense/kernel: it has 45 of the 46 tensors"),
        ("bert.pooler.dense_act.weight", (16, 16), "twice: as bert.pooler.dense.weight and as bert.pooler.dense_act"),
        ("module.bert.pooler.dense.bias", (16,), "twice: as bert.pooler.dense.bias and as module.bert.pooler.dense"),
        (POOLER, (16, 8), "bert.pooler.dense.weight has shape [8, 16] in TF layout"),
        (POOLER, (16, 16, 1), "bert.pooler.dense.weight has shape [16, 16, 1]"),
        ("bert.embeddings.word_embeddings.weight", (72, 16), "word_embeddings.weight has shape [72, 16]"),
        ("cls.predictions.bias", (60,), "cls.predictions.bias has shape [60]"),
        ("bert.embeddings.position_embeddings.weight", (64, 16), "position_embeddings.weight has shape [64, 16]"),
        ("bert.encoder.layer.2.output.dense.bias", (16,), "holds bert.encoder.layer.2.output.dense.bias, which is no"),
        ("bert.stem.weight", (3, 3, 3, 3), "holds bert.stem.weight, which is no tensor of bert-small-test"),
    ],
)
def test_wrong_tensors_are_named(tmp_path: Path, read: Reader, name: str, shape: tuple[int, ...] | None, words: str):
    state = state_dict(CONFIG, WEIGHTS, decoder=False)
    if shape is None:
        del state[name]
    else:
        state[name] = torch.ones(shape)
    assert words in refusal(read, write_published(tmp_path, state), CONFIG)


@both_readers
@pytest.mark.parametrize("prefix", ["", "module."])
def test_a_decoder_that_is_not_tied_is_refused(tmp_path: Path, read: Reader, prefix: str):
    state = state_dict(CONFIG, WEIGHTS, prefix=prefix)
    state[prefix + DECODER][5, 7] += 1e-6
    sentence = refusal(read, write_published(tmp_path, state), CONFIG)
    assert f"{DECODER} differs from the word embeddings" in sentence


@both_readers
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (lambda state: {"state_dict": state}, "holds dict without 'model'"),
        (lambda state: state, "holds dict without 'model'"),
        (lambda state: [state], "holds list without 'model'"),
        (lambda state: {"model": list(state.values())}, "holds no dictionary of tensors by name"),
        (lambda state: {"model": state | {POOLER: [1.0]}}, "holds no dictionary of tensors by name"),
        (lambda state: {"model": dict(enumerate(state.values()))}, "holds no dictionary of tensors by name"),
    ],
    ids=["other key", "bare state_dict", "list", "list of tensors", "no tensor", "numbers as names"],
)
def test_other_contents_are_refused(tmp_path: Path, read: Reader, content, words: str):
    path = tmp_path / "other.pt"
    torch.save(content(state_dict(CONFIG, WEIGHTS)), path)
    assert words in refusal(read, path, CONFIG)


@both_readers
@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
@pytest.mark.parametrize("kept", [0, 3, 500, -1])
def test_a_truncated_file_is_refused(tmp_path: Path, read: Reader, legacy: bool, kept: int):
    path = write_published(tmp_path, state_dict(CONFIG, WEIGHTS), _use_new_zipfile_serialization=not legacy)
    path.write_bytes(path.read_bytes()[:kept])
    assert "expected a TF1 checkpoint, {'model': state_dict}" in refusal(read, path, CONFIG)


@both_readers
@pytest.mark.parametrize("content", [b"hello\n", bytes(range(256)) * 50, b"\x80\x02.", b"PK\x03\x04" + bytes(40)])
def test_garbage_is_refused(tmp_path: Path, read: Reader, content: bytes):
    path = tmp_path / "garbage.pt"
    path.write_bytes(content)
    assert "expected a TF1 checkpoint, {'model': state_dict}" in refusal(read, path, CONFIG)


@both_readers
@pytest.mark.parametrize("layout", ["zip", "legacy", "bare pickle"])
def test_pickled_code_is_never_run(tmp_path: Path, read: Reader, layout: str):
    trap, path = tmp_path / "trap", tmp_path / "code.pt"
    state = {**state_dict(CONFIG, WEIGHTS), "extra": RunsCode(trap)}
    if layout == "bare pickle":
        path.write_bytes(pickle.dumps({"model": RunsCode(trap)}, protocol=2))
    else:
        torch.save({"model": state}, path, _use_new_zipfile_serialization=layout == "zip")
    assert "holds code, which is never run" in refusal(read, path, CONFIG)
    assert not trap.exists()


@both_readers
def test_a_missing_path_is_refused(tmp_path: Path, read: Reader):
    assert "does not exist: set run.data.checkpoint" in refusal(read, tmp_path / "gone.pt", CONFIG)


@both_readers
def test_a_folder_without_weights_is_refused(tmp_path: Path, read: Reader):
    assert "is no checkpoint: expected a TF1 checkpoint" in refusal(read, tmp_path, CONFIG)
