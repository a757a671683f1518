"""The model against the published reference: losses, log-probabilities, gradients, accuracy; and planted mistakes."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from bert_mlperf.comm.control import Control
from bert_mlperf.kernels.registry import Kernels, select
from bert_mlperf.model.batch import make_batch
from bert_mlperf.model.bert import BertForPreTraining
from bert_mlperf.model.tensors import tensor_specs
from bert_mlperf.optim.lamb import clip_by_global_norm
from bert_mlperf.train.evaluate import evaluate
from tests import golden

LOSS_BOUND = 2e-6
LOG_PROB_BOUND = 1e-5
GRADIENT_BOUND = 1e-5
KEY_BIAS_BOUND = 5e-8


@pytest.fixture(scope="module")
def expected():
    return golden.arrays("bert_tiny_outputs")


@pytest.fixture(params=["reference", "native"])
def kernels(request) -> Kernels:
    return select(torch.device("cpu"), request.param)


def tiny_model(kernels: Kernels | None = None) -> BertForPreTraining:
    model = BertForPreTraining(golden.tiny_config(), kernels=kernels)
    golden.load_into(model, golden.arrays("bert_tiny_weights"))
    return model


def tiny_batch():
    return make_batch(golden.samples_from_padded(golden.arrays("bert_tiny_inputs")))


def losses_of(model, batch):
    sums = model(batch)
    masked = sums.masked_lm_sum / (batch.num_masked + 1e-5)
    following = sums.next_sentence_sum / batch.num_samples
    return masked, following, sums.of_global_batch(batch.num_masked, batch.num_samples)


def worst_errors(model, expected) -> dict[str, float]:
    """Largest absolute error of losses and log-probabilities and largest relative error of a gradient."""
    batch = tiny_batch()
    masked, following, total = losses_of(model, batch)
    total.backward()
    masked_MV, next_B2 = model.logits(batch)
    predicted = golden.arrays("bert_tiny_inputs")["masked_lm_weights"] == 1
    log_probs = F.log_softmax(masked_MV, -1).detach().numpy() - expected["masked_lm_log_probs"][predicted]
    next_probs = F.log_softmax(next_B2, -1).detach().numpy() - expected["next_sentence_log_probs"]
    names = ("masked_lm_loss", "next_sentence_loss", "total_loss")
    losses = [abs(v.item() - float(expected[n])) for v, n in zip((masked, following, total), names, strict=True)]
    gradients, key_biases = gradient_errors(model)
    return {
        "loss": max(losses),
        "log_prob": float(max(np.abs(log_probs).max(), np.abs(next_probs).max())),
        "gradient": max(gradients.values()),
        "key_bias": max(key_biases.values()),
    }


def gradient_errors(model) -> tuple[dict[str, float], dict[str, float]]:
    """Relative error per tensor; key biases, whose true gradient is 0, apart with their absolute error."""
    reference = golden.arrays("bert_tiny_grads")
    gradients = {name: p.grad for name, p in model.named_parameters()}
    errors, key_biases = {}, {}
    for spec in tensor_specs(model.config):
        got, want = spec.of(gradients), golden.tf_tensor(reference[spec.name], spec)
        if spec.name.endswith("key/bias"):
            key_biases[spec.name] = float((got - want).abs().max())
        else:
            errors[spec.name] = golden.relative_error(got, want)
    return errors, key_biases


def test_losses_log_probabilities_and_gradients_equal_the_reference(expected, kernels):
    errors = worst_errors(tiny_model(kernels), expected)
    assert errors["loss"] <= LOSS_BOUND
    assert errors["log_prob"] <= LOG_PROB_BOUND
    assert errors["gradient"] <= GRADIENT_BOUND
    assert errors["key_bias"] <= KEY_BIAS_BOUND


def test_gradient_norm_equals_the_reference(expected):
    model = tiny_model()
    losses_of(model, tiny_batch())[2].backward()
    gradients = [p.grad for p in model.parameters()]
    norm = clip_by_global_norm(gradients, torch.zeros(1))
    assert float(norm) == pytest.approx(float(expected["grad_global_norm"]), rel=1e-6)


def test_erf_gelu_fails_the_bounds(expected):
    other = replace(select(torch.device("cpu"), "reference"), bias_gelu=lambda x, bias: erf_gelu(x + bias))
    errors = worst_errors(tiny_model(other), expected)
    assert errors["loss"] > LOSS_BOUND
    assert errors["gradient"] > GRADIENT_BOUND


def erf_gelu(x):
    return 0.5 * x * (1 + torch.erf(x / 2**0.5))


def test_swapped_query_and_key_fail_the_bounds(expected):
    model = tiny_model()
    with torch.no_grad():
        bias = model.encoder.layers[0].qkv.bias
        bias.copy_(torch.cat([bias[64:128], bias[:64], bias[128:]]))
    assert worst_errors(model, expected)["loss"] > LOSS_BOUND


def test_a_batch_without_masked_tokens_has_masked_lm_loss_zero_and_finite_gradients(expected, kernels):
    padded = golden.arrays("bert_tiny_inputs")
    padded["masked_lm_weights"] = np.zeros_like(padded["masked_lm_weights"])
    batch = make_batch(golden.samples_from_padded(padded))
    model = tiny_model(kernels)
    masked, following, total = losses_of(model, batch)
    total.backward()
    assert masked.item() == 0.0
    assert [masked.item(), following.item(), total.item()] == pytest.approx(
        expected["zero_weights_losses"].tolist(), abs=LOSS_BOUND
    )
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


def test_accuracy_accumulates_as_the_reference_metric():
    streams = golden.arrays("eval_streaming")
    model, control = tiny_model(), Control(rank=0, world_size=1)
    names = (
        "input_ids", "input_mask", "segment_ids", "masked_lm_positions", "masked_lm_ids", "masked_lm_weights",
        "next_sentence_labels",
    )  # fmt: skip
    batches = []
    for index in range(4):
        batches.append(make_batch(golden.samples_from_padded({n: streams[f"batch{index}_{n}"] for n in names})))
        accuracy = evaluate(model, batches, control, torch.device("cpu"))
        assert accuracy.value == pytest.approx(float(streams["running_masked_lm_accuracy"][index]), abs=1e-7)
        assert accuracy.total == int(streams["tokens_per_batch"][: index + 1].sum())


def test_accuracy_of_the_tiny_batch_is_the_reference_count(expected, kernels):
    accuracy = evaluate(tiny_model(kernels), [tiny_batch()], Control(rank=0, world_size=1), torch.device("cpu"))
    assert (accuracy.correct, accuracy.total) == (
        int(expected["masked_lm_accuracy_numerator"]),
        int(expected["masked_lm_accuracy_denominator"]),
    )
