"""Padded = unpadded: losses, accuracy and every gradient, for lengths 1 to 512."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from bert_mlperf.config.model import ModelConfig
from bert_mlperf.data.samples import Samples
from bert_mlperf.kernels.registry import select
from bert_mlperf.model.batch import make_batch
from bert_mlperf.model.bert import DropoutSeed, build_model
from bert_mlperf.model.tensors import tensor_specs
from bert_mlperf.model.tie import tie
from tests import golden
from tests.model import padded_reference

LENGTHS = [[1], [2], [511], [512], [1, 2, 511, 512], [512, 512], [7, 7, 7], [3, 100, 1, 64]]


def config(**changes) -> ModelConfig:
    fields = {
        "name": "bert-unpadded-test", "vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2,
        "num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": 512,
        "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "initializer_range": 0.2,
    }  # fmt: skip
    return ModelConfig(**{**fields, **changes})


def random_samples(lengths: list[int], vocab_size: int) -> Samples:
    """Samples of the given lengths; every second one has no masked token, the others about 15%."""
    generator = np.random.default_rng(sum(lengths))
    masked = [round(0.15 * n) + 1 if i % 2 == 0 else 0 for i, n in enumerate(lengths)]
    positions = [np.sort(generator.choice(n, size=m, replace=False)) for n, m in zip(lengths, masked, strict=True)]
    total = sum(lengths)
    return Samples(
        input_ids=generator.integers(0, vocab_size, total),
        segment_ids=generator.integers(0, 2, total).astype(np.uint8),
        offsets=np.concatenate([[0], np.cumsum(lengths)]),
        masked_positions=np.concatenate(positions),
        masked_ids=generator.integers(0, vocab_size, sum(masked)),
        masked_offsets=np.concatenate([[0], np.cumsum(masked)]),
        next_sentence_labels=generator.integers(0, 2, len(lengths)).astype(np.uint8),
    )


def padded(samples: Samples, length: int) -> dict[str, torch.Tensor]:
    """[B, length] arrays and prediction slots as the reference takes them; padding slots point at position 0."""
    count, slots = samples.num_samples, max(1, int(samples.masked_counts.max()))
    arrays = {name: np.zeros((count, length), dtype=np.int64) for name in ("input_ids", "input_mask", "segment_ids")}
    arrays |= {name: np.zeros((count, slots), dtype=np.int64) for name in ("masked_lm_positions", "masked_lm_ids")}
    arrays["masked_lm_weights"] = np.zeros((count, slots), dtype=np.float32)
    for i in range(count):
        tokens = slice(samples.offsets[i], samples.offsets[i + 1])
        masked = slice(samples.masked_offsets[i], samples.masked_offsets[i + 1])
        n, m = samples.lengths[i], samples.masked_counts[i]
        arrays["input_ids"][i, :n], arrays["input_mask"][i, :n] = samples.input_ids[tokens], 1
        arrays["segment_ids"][i, :n] = samples.segment_ids[tokens]
        arrays["masked_lm_positions"][i, :m] = samples.masked_positions[masked]
        arrays["masked_lm_ids"][i, :m], arrays["masked_lm_weights"][i, :m] = samples.masked_ids[masked], 1
    arrays["next_sentence_labels"] = samples.next_sentence_labels.astype(np.int64)
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("implementation", ["reference", "native"])
def test_unpadded_equals_padded(implementation, lengths):
    model = build_model(config(), seed=1, kernels=select(torch.device("cpu"), implementation))
    samples = random_samples(lengths, model.config.vocab_size)
    batch = make_batch(samples)
    sums = model(batch)
    (sums.masked_lm_sum + sums.next_sentence_sum).backward()

    specs = tensor_specs(model.config)
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    weights = {s.name: s.in_tf_layout(s.of(parameters)).clone().requires_grad_() for s in specs}
    masked, following, correct = padded_reference.losses(weights, padded(samples, 512), layers=2, heads=2)
    (masked + following).backward()

    assert sums.masked_lm_sum.item() == pytest.approx(masked.item(), rel=1e-6, abs=1e-6)
    assert sums.next_sentence_sum.item() == pytest.approx(following.item(), rel=1e-6)
    assert model.count_correct(batch).item() == correct.item()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    for spec in specs:
        got, want = spec.in_tf_layout(spec.of(gradients)), weights[spec.name].grad
        if spec.name.endswith("key/bias") or want.norm() < 1e-5:  # truly zero: rounding noise on both sides
            assert (got - want).abs().max() < 1e-5
        else:
            assert golden.relative_error(got, want) < 2e-5, spec.name


def test_dropout_differs_from_step_to_step_and_keeps_the_mean():
    model = build_model(config(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1), seed=1)
    batch = make_batch(random_samples([64] * 8, 50))
    first, second, again = (model(batch, DropoutSeed(1, step)).masked_lm_sum.item() for step in (0, 1, 0))
    assert first == again != second
    exact = model(batch).masked_lm_sum.item()
    assert exact == model(batch).masked_lm_sum.item()
    assert first == pytest.approx(exact, rel=0.2)


def test_first_weights_are_drawn_as_the_reference_draws_them():
    model = build_model(config(hidden_size=64, vocab_size=5000, initializer_range=0.02), seed=7)
    words = model.embeddings.word.weight
    assert words.abs().max().item() <= 0.04
    assert words.std().item() == pytest.approx(0.02 * 0.8796, rel=0.01)  # of a normal cut at two deviations
    assert all((layer.qkv.bias == 0).all() for layer in model.encoder.layers)
    assert (model.embeddings.norm.weight == 1).all() and (model.masked_lm.bias == 0).all()
    again, other = build_model(model.config, seed=7), build_model(model.config, seed=8)
    assert torch.equal(again.embeddings.word.weight, words)
    assert not torch.equal(other.embeddings.word.weight, words)


def test_dropout_acts_at_every_place_of_the_reference_with_a_key_of_its_own():
    """After the embeddings, after attention and feed-forward of each layer, and on the attention probabilities."""
    kernels, hidden, probabilities = select(torch.device("cpu"), "reference"), [], []

    def spy(function, found):
        def call(*arguments, dropout, **options):
            found.append(dropout)
            return function(*arguments, dropout=dropout, **options)

        return call

    spied = replace(
        kernels,
        embedding_layer_norm=spy(kernels.embedding_layer_norm, hidden),
        dropout_add_layer_norm=spy(kernels.dropout_add_layer_norm, hidden),
        attention=spy(kernels.attention, probabilities),
    )
    model = build_model(config(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.3), seed=1, kernels=spied)
    batch = make_batch(random_samples([5, 9], 50))
    model(batch, DropoutSeed(1, 0))
    *hidden_sites, head = hidden
    assert head is None and [dropout.probability for dropout in hidden_sites] == 5 * [0.1]
    assert [dropout.probability for dropout in probabilities] == [0.3, 0.3]
    assert len({dropout.key for dropout in hidden_sites + probabilities}) == 7
    positions = batch.positions_T.int()
    for dropout in [*hidden_sites[:3], probabilities[0]]:
        assert torch.equal(dropout.positions_R, positions) and torch.equal(dropout.samples_R, batch.samples_T)
    for dropout in [*hidden_sites[3:], probabilities[1]]:  # the last layer: the masks of the rows that it computes
        assert torch.equal(dropout.positions_R, positions[batch.query_tokens_Q])
        assert torch.equal(dropout.samples_R, batch.samples_T[batch.query_tokens_Q])
    hidden.clear()
    probabilities.clear()
    model(batch)
    assert hidden == 6 * [None] and probabilities == [None, None]


def loss_and_gradients(recompute: int | str) -> tuple[torch.Tensor, list[torch.Tensor]]:
    model = build_model(
        config(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1, num_hidden_layers=3),
        seed=1,
        recompute=recompute,
    )
    losses = model(make_batch(random_samples([5, 64, 9], 50)), DropoutSeed(1, 0))
    loss = losses.masked_lm_sum + losses.next_sentence_sum
    loss.backward()
    return loss, [p.grad for p in model.parameters()]


@pytest.mark.parametrize("recompute", ["attention", 1, 2, 3, 4])
def test_recomputing_changes_no_bit(recompute):
    (loss, gradients), (expected_loss, expected) = loss_and_gradients(recompute), loss_and_gradients("none")
    assert torch.equal(loss, expected_loss)
    assert all(torch.equal(g, e) for g, e in zip(gradients, expected, strict=True))


@pytest.mark.parametrize("recompute, calls", [("none", 3), ("attention", 6), (1, 6), (2, 4), (3, 4), (4, 3)])
def test_what_is_computed_again(recompute, calls):
    kernels, seen = select(torch.device("cpu"), "reference"), []

    def counted(*arguments, **options):
        seen.append(1)
        return kernels.attention(*arguments, **options)

    model = build_model(
        config(num_hidden_layers=3), seed=1, kernels=replace(kernels, attention=counted), recompute=recompute
    )
    model(make_batch(random_samples([5], 50))).masked_lm_sum.backward()
    assert len(seen) == calls


@pytest.mark.parametrize("sparse", [True, False])
def test_the_tied_weight_gets_both_gradients_in_one(sparse):
    weight = torch.randn(9, 4, requires_grad=True)
    ids, upstream = torch.tensor([3, 3, 8]), torch.randn(9, 4)
    embeddings, decoder = tie(weight)
    rows = torch.nn.functional.embedding(ids, embeddings, sparse=sparse)
    (rows.square().sum() + (decoder * upstream).sum()).backward()
    expected = upstream.clone()
    for i in ids:
        expected[i] += 2 * weight.detach()[i]
    assert not weight.grad.is_sparse and torch.allclose(weight.grad, expected, atol=1e-6)
