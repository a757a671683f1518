"""`bench step`: the batches of both sides, what the peer gets, bad options, and a step of a small model."""

import importlib.util

import numpy as np
import pytest
import torch

from bert_mlperf.bench import step
from bert_mlperf.bench.step_side import FULL, MLPERF_LIKE, OURS, PEER, batches, hugging_face, ours, padded
from bert_mlperf.cli import main
from bert_mlperf.config.model import NAMED_MODELS, ModelConfig

SMALL = ModelConfig(
    name="bert-step-test",
    vocab_size=100,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=64,
    max_position_embeddings=512,
)


def test_mlperf_like_batches_have_the_lengths_of_the_distribution():
    made = batches(MLPERF_LIKE, 25, 4, NAMED_MODELS["bert-large"])
    lengths = np.concatenate([batch.lengths for batch in made])
    assert lengths.mean() == pytest.approx(256, rel=0.03)
    assert (lengths == 512).mean() == pytest.approx(0.23, abs=0.011) and lengths.min() >= 20
    assert all((batch.lengths == 512).all() for batch in batches(FULL, 2, 4, NAMED_MODELS["bert-large"]))


def test_the_peer_gets_the_same_samples_padded():
    (batch,) = batches(MLPERF_LIKE, 1, 4, SMALL)
    inputs = padded(batch, 512)
    mask, labels = inputs["attention_mask"].bool(), inputs["labels"]
    assert np.array_equal(mask.sum(1).numpy(), batch.lengths)
    assert np.array_equal(inputs["input_ids"][mask].numpy(), batch.input_ids)
    assert np.array_equal(labels[labels != -100].numpy(), batch.masked_ids)
    assert np.array_equal((labels != -100).sum(1).numpy(), batch.masked_counts)
    assert np.array_equal(inputs["next_sentence_label"].numpy(), batch.next_sentence_labels)


@pytest.mark.parametrize("side", [ours, hugging_face])
def test_a_side_trains(side):
    if side is hugging_face and importlib.util.find_spec("transformers") is None:
        pytest.skip("Hugging Face transformers is not installed")
    (batch,) = batches(MLPERF_LIKE, 1, 4, SMALL)
    train = side(SMALL, 4)
    losses = [train(batch) for _ in range(8)]
    assert losses[0] == pytest.approx(np.log(100) + np.log(2), abs=0.5)
    assert np.isfinite(losses).all() and torch.get_num_threads() >= 1


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["--model", "bert-huge"], "--model is 'bert-huge', expected one of bert-large, bert-base"),
        (["--samples", "0"], "--samples is 0, expected 1 to 1,024"),
        (["--steps", "-1"], "--steps is -1, expected 1 to 1,000"),
        (["--threads", "5000"], "--threads is 5000, expected 1 to 1,024"),
    ],
)
def test_bad_options_are_named(arguments, sentence, capsys):
    assert main(["bench", "step", *arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_without_the_peer_it_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr(step.importlib.util, "find_spec", lambda name: None)
    assert main(["bench", "step"]) == 2
    assert "pip install -c constraints.txt -e '.[peers]'" in capsys.readouterr().err


def test_the_table_says_the_ratios(capsys):
    side = {
        kind: {"seconds": [2.0], "peak": 2**30, "matrix_speed": 3e11, "matrix_share": 0.5, "tokens": [1024]}
        for kind in (FULL, MLPERF_LIKE)
    }
    slow = {kind: values | {"seconds": [5.0]} for kind, values in side.items()}
    step.show(step.Settings(), {OURS: side | {"peak_speed": 4e11}, PEER: slow | {"peak_speed": 4e11}}, where="here")
    text = capsys.readouterr().out
    assert text.count("2.50") == 2 and "75%" in text and "256 tokens on average" in text
