"""Our own weights file: it comes back to the bit, is never half there, and a run starts from it with fresh moments."""

from pathlib import Path

import pytest
import torch

from bert_mlperf.checkpoint.store import FILE_NAME, check_checkpoint, collect_weights, load_weights, save_weights
from bert_mlperf.comm.control import Control
from bert_mlperf.errors import UserError
from bert_mlperf.model.bert import build_model
from bert_mlperf.train import setup
from tests.checkpoint.checkpoints import (
    Reader,
    as_parameters,
    assert_same_bits,
    both_readers,
    random_weights,
    refusal,
    state_dict,
    write_published,
)
from tests.train.small import small_model, small_run

CONFIG = small_model()
WEIGHTS = random_weights(CONFIG)
DEEP = small_model(name="bert-deep-test", num_hidden_layers=24)


def save(folder: Path, weights=WEIGHTS, config=CONFIG) -> Path:
    return save_weights(folder, config, as_parameters(config, weights))


def rewrite(path: Path, change) -> Path:
    """The file with its content changed in place by `change`."""
    content = torch.load(path)
    change(content)
    torch.save(content, path)
    return path


def test_saved_weights_come_back_to_the_bit(tmp_path: Path):
    path = save(tmp_path / "new" / "folder")
    assert path == tmp_path / "new" / "folder" / FILE_NAME
    for given in (path, path.parent):
        check_checkpoint(given, CONFIG)
        assert_same_bits(load_weights(given, CONFIG), CONFIG, WEIGHTS)


def test_the_file_holds_every_weight_once(tmp_path: Path):
    config = small_model(name="bert-wide-test", hidden_size=128, intermediate_size=512, vocab_size=1000)
    model = build_model(config, seed=1)
    path = save_weights(tmp_path, config, {name: p.detach() for name, p in model.named_parameters()})
    assert 4 * config.num_parameters < path.stat().st_size < 1.1 * 4 * config.num_parameters


def test_all_398_tensors_of_24_layers_come_back(tmp_path: Path):
    weights = random_weights(DEEP)
    assert len(weights) == 398
    assert_same_bits(load_weights(save(tmp_path / "ours", weights, DEEP), DEEP), DEEP, weights)
    published = write_published(tmp_path, state_dict(DEEP, weights))
    assert_same_bits(load_weights(published, DEEP), DEEP, weights)


def test_each_of_398_tensors_is_taken_exactly_once():
    weights, where = random_weights(DEEP), Path("some/checkpoint")
    stream = [(name, name, tensor) for name, tensor in weights.items()]
    assert list(collect_weights(stream, DEEP, where=where)) == list(weights)
    for index, (name, _, tensor) in enumerate(stream):
        with pytest.raises(UserError, match=f"^{where} lacks {name}: it has 397 of the 398 tensors of bert-deep-test$"):
            collect_weights(stream[:index] + stream[index + 1 :], DEEP, where=where)
        with pytest.raises(UserError, match=f"holds {name} twice: as {name} and as again$"):
            collect_weights([*stream, ("again", name, tensor)], DEEP, where=where)


@both_readers
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c.update(schema_version=2), "has schema version 2, expected 1"),
        (lambda c: c.pop("schema_version"), "has schema version None, expected 1"),
        (lambda c: c.pop("tensors"), "holds no dictionary of tensors by name"),
        (lambda c: c.pop("model"), "holds a model whose vocab_size is None"),
        (lambda c: c["tensors"].pop("bert/pooler/dense/bias"), "lacks bert/pooler/dense/bias: it has 45 of the 46"),
        (lambda c: c["tensors"].update(extra=torch.ones(2)), "holds extra, which is no tensor of bert-small-test"),
        (
            lambda c: c["tensors"].update({"bert/pooler/dense/bias": torch.ones(17)}),
            "bert/pooler/dense/bias has shape [17]",
        ),
    ],
    ids=["version", "no version", "no tensors", "no model", "missing", "unknown", "misshaped"],
)
def test_a_changed_file_is_refused(tmp_path: Path, read: Reader, change, words: str):
    assert words in refusal(read, rewrite(save(tmp_path), change), CONFIG)


@both_readers
@pytest.mark.parametrize(
    ("key", "value"),
    [("num_hidden_layers", 1), ("num_hidden_layers", 3), ("num_attention_heads", 4), ("vocab_size", 64)],
)
def test_weights_of_another_model_are_refused(tmp_path: Path, read: Reader, key: str, value: int):
    wanted, sentence = small_model(**{key: value}), f"holds a model whose {key} is {getattr(CONFIG, key)}, bert-small"
    assert sentence in refusal(read, save(tmp_path), wanted)


def test_name_dropout_and_initializer_may_differ(tmp_path: Path):
    other = small_model(name="bert-other", hidden_dropout_prob=0.1, initializer_range=0.5)
    assert_same_bits(load_weights(save(tmp_path), other), other, WEIGHTS)


def fail_half_way(content, file) -> None:
    file.write(b"half a file")
    raise OSError(28, "No space left on device")


def test_an_interrupted_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = save(tmp_path)
    before, new = path.read_bytes(), random_weights(CONFIG, seed=1)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", fail_half_way)
        with pytest.raises(OSError, match="No space left"):
            save(tmp_path, new)
    assert [file.name for file in tmp_path.iterdir()] == [FILE_NAME]
    assert path.read_bytes() == before
    save(tmp_path, new)
    assert_same_bits(load_weights(tmp_path, CONFIG), CONFIG, new)


def test_an_interrupted_first_save_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch, "save", fail_half_way)
    with pytest.raises(OSError, match="No space left"):
        save(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_save_left_does_not_matter(tmp_path: Path):
    (tmp_path / f".{FILE_NAME}.partial").write_bytes(b"half a file")
    assert "is no checkpoint" in refusal(load_weights, tmp_path, CONFIG)
    save(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == [FILE_NAME]
    assert_same_bits(load_weights(tmp_path, CONFIG), CONFIG, WEIGHTS)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_run_starts_from_the_weights_with_moments_and_step_at_zero(tmp_path: Path, precision: str):
    run, control = small_run(precision=precision), Control(rank=0, world_size=1)
    state = setup.build_state(run, control, torch.device("cpu"), seed=3, checkpoint=str(save(tmp_path)))
    masters = state.flat.shard_weights
    assert_same_bits(state.weights.in_fp32(), CONFIG, WEIGHTS)
    assert torch.equal(state.flat.weights, masters if precision == "fp32" else masters.bfloat16())
    assert (state.step, state.samples, state.optimizer.updates) == (0, 0, 0)
    assert not state.optimizer.first_moment.any() and not state.optimizer.second_moment.any()
