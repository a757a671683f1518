"""The official TF1 checkpoint: as TensorFlow writes it, whole and damaged, and the one of the reference vectors."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from bert_mlperf.checkpoint.convert.tf1 import Tf1Reader
from bert_mlperf.checkpoint.store import check_checkpoint, load_weights
from bert_mlperf.model.batch import make_batch
from bert_mlperf.model.bert import BertForPreTraining
from tests import golden
from tests.checkpoint.checkpoints import Reader, assert_same_bits, both_readers, refusal, write_tf1

CONFIG = golden.tiny_config()
LOSS_ON_FIRST_BATCH = 7.230439  # of train10's final weights, as the reference computed it


def final_weights() -> dict[str, np.ndarray]:
    return golden.arrays("train10_final_weights")


def as_tensors(arrays: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def with_optimizer_state(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Every slot of the reference's optimizers beside each variable, and the counters; none looks like a weight."""
    slots = {name + slot: array + 1 for name, array in arrays.items() for slot in ("/LAMB", "/LAMB_1")}
    slots |= {name + slot: array - 1 for name, array in arrays.items() for slot in ("/adam_m", "/adam_v")}
    counters = {"beta1_power": np.float32(0.5), "beta2_power": np.float32(0.9), "global_step": np.int64(28252)}
    return arrays | slots | counters


def loss_on_first_batch(weights: dict[str, torch.Tensor]) -> float:
    model = BertForPreTraining(CONFIG)
    model.load_state_dict(weights)
    samples = golden.samples_from_padded({name: a[0] for name, a in golden.arrays("train10_batches").items()})
    with torch.no_grad():
        losses = model(make_batch(samples))
    return losses.of_global_batch(samples.num_masked, samples.num_samples).item()


@pytest.fixture(scope="module")
def tensorflow():
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    return pytest.importorskip("tensorflow", reason="TensorFlow (the extra tf) is not installed")


@pytest.fixture
def prefix(tensorflow, tmp_path: Path) -> Path:
    """A checkpoint of train10's final weights with optimizer state, written by TensorFlow."""
    return write_tf1(tensorflow, tmp_path, with_optimizer_state(final_weights()))


def data_file(prefix: Path) -> Path:
    return prefix.with_name(prefix.name + ".data-00000-of-00001")


def index_file(prefix: Path) -> Path:
    return prefix.with_name(prefix.name + ".index")


def test_weights_load_to_the_bit_and_optimizer_state_is_ignored(prefix: Path):
    weights = load_weights(prefix, CONFIG)
    assert_same_bits(weights, CONFIG, as_tensors(final_weights()))
    assert loss_on_first_batch(weights) == pytest.approx(LOSS_ON_FIRST_BATCH, abs=1e-5)
    check_checkpoint(prefix, CONFIG)


@pytest.mark.parametrize("given", ["prefix", "index", "folder"])
def test_the_path_may_be_the_prefix_the_index_or_the_folder(prefix: Path, given: str):
    path = {"prefix": prefix, "index": index_file(prefix), "folder": prefix.parent}[given]
    check_checkpoint(path, CONFIG)
    assert_same_bits(load_weights(path, CONFIG), CONFIG, as_tensors(final_weights()))


@pytest.mark.reference
@pytest.mark.parametrize("given", ["model.ckpt-28252", "model.ckpt-28252.index", ""])
def test_the_reference_checkpoint_loads_to_the_bit(tensorflow, reference_dir: Path, given: str):
    path = reference_dir / "golden" / "tf1_ckpt" / given
    check_checkpoint(path, CONFIG)
    weights = load_weights(path, CONFIG)
    assert_same_bits(weights, CONFIG, as_tensors(final_weights()))
    assert loss_on_first_batch(weights) == pytest.approx(LOSS_ON_FIRST_BATCH, abs=1e-5)


def test_other_float_types_load_as_fp32(tensorflow, tmp_path: Path):
    exact = {name: array.astype(np.float16) for name, array in final_weights().items()}
    prefix = write_tf1(tensorflow, tmp_path, exact)
    expected = {name: torch.from_numpy(array.astype(np.float32)) for name, array in exact.items()}
    assert_same_bits(load_weights(prefix, CONFIG), CONFIG, expected)


@both_readers
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"bert/pooler/dense/kernel": None}, "lacks bert/pooler/dense/kernel: it has 45 of the 46 tensors"),
        (
            {"bert/embeddings/LayerNorm/beta": None, "cls/seq_relationship/output_bias": None},
            "lacks bert/embeddings/LayerNorm/beta and 1 more",
        ),
        ({"bert/pooler/dense/scale": (64,)}, "holds bert/pooler/dense/scale, which is no tensor of"),
        ({"bert/encoder/layer_2/output/dense/bias": (64,)}, "holds bert/encoder/layer_2/output/dense/bias, which is"),
        (
            {"cls/predictions/transform/dense/kernel": (64, 32)},
            "cls/predictions/transform/dense/kernel has shape [64, 32] in TF layout, bert-tiny-golden expects [64, 64]",
        ),
        ({"bert/embeddings/word_embeddings": (520, 64)}, "word_embeddings has shape [520, 64]"),
    ],
)
def test_wrong_variables_are_named(tensorflow, tmp_path: Path, read: Reader, changes: dict, words: str):
    arrays = final_weights()
    for name, shape in changes.items():
        arrays.pop(name, None)
        arrays |= {} if shape is None else {name: np.ones(shape, np.float32)}
    assert words in refusal(read, write_tf1(tensorflow, tmp_path, arrays), CONFIG)


@both_readers
@pytest.mark.parametrize("kept", [0, 1000, -4], ids=["empty", "short", "last bytes missing"])
def test_a_truncated_data_file_is_refused(prefix: Path, read: Reader, kept: int):
    data_file(prefix).write_bytes(data_file(prefix).read_bytes()[:kept])
    assert "cannot be read" in refusal(read, prefix, CONFIG)


@both_readers
def test_a_missing_data_file_is_refused(prefix: Path, read: Reader):
    data_file(prefix).unlink()
    assert "cannot be read" in refusal(read, prefix, CONFIG)


@both_readers
@pytest.mark.parametrize("content", [b"", b"no index at all " * 100], ids=["empty", "garbage"])
def test_a_damaged_index_is_refused(prefix: Path, read: Reader, content: bytes):
    index_file(prefix).write_bytes(content)
    assert "cannot be read" in refusal(read, prefix, CONFIG)


def test_a_flipped_bit_is_found_while_loading(prefix: Path):
    content = bytearray(data_file(prefix).read_bytes())
    content[8] ^= 1  # in the first variable, bert/embeddings/LayerNorm/beta
    data_file(prefix).write_bytes(content)
    with pytest.raises(ValueError, match="cannot be read"):
        load_weights(prefix, CONFIG)


def test_the_check_reads_no_weights(prefix: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Tf1Reader, "tensors", lambda self: pytest.fail("the check read the tensors"))
    check_checkpoint(prefix, CONFIG)


@both_readers
def test_a_folder_of_several_checkpoints_is_refused(tmp_path: Path, read: Reader):
    for step in (1, 2):
        (tmp_path / f"model.ckpt-{step}.index").touch()
    assert "holds 2 TF1 checkpoints: give one of them, e.g." in refusal(read, tmp_path, CONFIG)


@both_readers
def test_without_tensorflow_the_extra_is_named(tmp_path: Path, read: Reader, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    index_file(tmp_path / "model.ckpt-28252").touch()
    assert "pip install 'bert-mlperf[tf]'" in refusal(read, tmp_path / "model.ckpt-28252", CONFIG)
