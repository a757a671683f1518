"""Checkpoints that tests write, in every layout, and what is asked of their readers."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from bert_mlperf.checkpoint.store import check_checkpoint, load_weights
from bert_mlperf.config.model import ModelConfig
from bert_mlperf.errors import UserError
from bert_mlperf.model.bert import BertForPreTraining
from bert_mlperf.model.tensors import tensor_specs
from tests import golden

Reader = Callable[[Path, ModelConfig], object]
both_readers = pytest.mark.parametrize("read", [load_weights, check_checkpoint])

# A layer's modules in the published PyTorch file; those marked have an activation, which some files put in the name.
LINEAR = {
    "attention.self.query": False,
    "attention.self.key": False,
    "attention.self.value": False,
    "attention.output.dense": False,
    "intermediate.dense": True,
    "output.dense": False,
}
NORMS = ("attention.output.LayerNorm", "output.LayerNorm")
DECODER = "cls.predictions.decoder.weight"


def random_weights(config: ModelConfig, *, seed: int = 0) -> dict[str, Tensor]:
    """fp32 tensors in TF layout by TF name, no two alike."""
    generator = torch.Generator().manual_seed(seed)
    return {spec.name: torch.randn(spec.shape, generator=generator) for spec in tensor_specs(config)}


def as_parameters(config: ModelConfig, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same weights as our parameters."""
    model = BertForPreTraining(config)
    golden.load_into(model, {name: tensor.numpy() for name, tensor in weights.items()})
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def assert_same_bits(parameters: Mapping[str, Tensor], config: ModelConfig, weights: Mapping[str, Tensor]) -> None:
    """Every parameter of the model is there, fp32, contiguous, and equals the weights to the bit."""
    expected = as_parameters(config, weights)
    assert parameters.keys() == expected.keys()
    for name, tensor in parameters.items():
        assert tensor.dtype == torch.float32 and tensor.is_contiguous()
        assert tensor.shape == expected[name].shape
        assert tensor.numpy().tobytes() == expected[name].numpy().tobytes(), name


def refusal(read: Reader, path: Path, config: ModelConfig) -> str:
    """The one sentence with which a reader refuses a checkpoint; it names the path."""
    with pytest.raises(UserError) as caught:
        read(path, config)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert str(path) in sentence
    return sentence


def published_names(config: ModelConfig, *, activation: str = "dense") -> dict[str, str]:
    """Names in the published PyTorch file and the TF names that they stand for. `activation`: dense or dense_act."""
    names = {
        f"bert.embeddings.{kind}_embeddings.weight": f"bert/embeddings/{kind}_embeddings"
        for kind in ("word", "token_type", "position")
    }
    names |= _norm("bert.embeddings.LayerNorm", "bert/embeddings/LayerNorm")
    for index in range(config.num_hidden_layers):
        torch_layer, tf_layer = f"bert.encoder.layer.{index}", f"bert/encoder/layer_{index}"
        for part, activated in LINEAR.items():
            tf = f"{tf_layer}/{part.replace('.', '/')}"
            names |= _linear(f"{torch_layer}.{part.replace('dense', activation) if activated else part}", tf)
        for part in NORMS:
            names |= _norm(f"{torch_layer}.{part}", f"{tf_layer}/{part.replace('.', '/')}")
    names |= _linear(f"bert.pooler.{activation}", "bert/pooler/dense")
    names |= {"cls.predictions.bias": "cls/predictions/output_bias"}
    names |= _linear(f"cls.predictions.transform.{activation}", "cls/predictions/transform/dense")
    names |= _norm("cls.predictions.transform.LayerNorm", "cls/predictions/transform/LayerNorm")
    return names | {
        "cls.seq_relationship.weight": "cls/seq_relationship/output_weights",
        "cls.seq_relationship.bias": "cls/seq_relationship/output_bias",
    }


def _linear(torch_name: str, tf: str) -> dict[str, str]:
    return {f"{torch_name}.weight": f"{tf}/kernel", f"{torch_name}.bias": f"{tf}/bias"}


def _norm(torch_name: str, tf: str) -> dict[str, str]:
    return {f"{torch_name}.weight": f"{tf}/gamma", f"{torch_name}.bias": f"{tf}/beta"}


def state_dict(
    config: ModelConfig,
    weights: Mapping[str, Tensor],
    *,
    activation: str = "dense",
    prefix: str = "",
    padded_vocabulary: int | None = None,
    decoder: bool = True,
) -> dict[str, Tensor]:
    """The published PyTorch layout: kernels transposed, vocabulary padded with zeros, the decoder a second time."""
    state = {}
    for name, tf in published_names(config, activation=activation).items():
        tensor = weights[tf].t().contiguous() if tf.endswith("/kernel") else weights[tf].clone()
        if tf in ("bert/embeddings/word_embeddings", "cls/predictions/output_bias") and padded_vocabulary:
            tensor = torch.cat([tensor, tensor.new_zeros(padded_vocabulary - len(tensor), *tensor.shape[1:])])
        state[prefix + name] = tensor
    if decoder:
        state[prefix + DECODER] = state[prefix + "bert.embeddings.word_embeddings.weight"].clone()
    return state


def write_published(folder: Path, state: object, **options) -> Path:
    path = folder / "model.ckpt-28252.pt"
    torch.save({"model": state}, path, **options)
    return path


def write_tf1(tensorflow, folder: Path, arrays: Mapping[str, np.ndarray]) -> Path:
    """The prefix of a TF1 checkpoint (.index and .data-00000-of-00001) with these variables."""
    prefix = folder / "model.ckpt-28252"
    tensorflow.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=list(arrays),
        shape_and_slices=[""] * len(arrays),
        tensors=[tensorflow.constant(array) for array in arrays.values()],
    )
    return prefix
