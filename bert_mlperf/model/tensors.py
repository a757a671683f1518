"""The reference's variables: their TF names, and where each one lies in our parameters.

The optimizer, the checkpoints and the MLPerf log speak of the reference's variables ("tensors"). Ours fuse query, key
and value into one parameter and store matrices as [out, in], so a tensor is a block of rows of a parameter, read
transposed for a kernel.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from bert_mlperf.config.model import ModelConfig

EXCLUDED = re.compile("LayerNorm|layer_norm|bias")


@dataclass(frozen=True)
class TensorSpec:
    """One variable of the reference."""

    name: str  # TF name, e.g. bert/encoder/layer_0/attention/self/query/kernel
    shape: tuple[int, ...]  # TF shape (a kernel is [in, out])
    parameter: str  # name of our parameter
    rows: tuple[int, int] | None = None  # block of rows of a fused parameter
    transposed: bool = False

    @property
    def adapted(self) -> bool:
        """True if LAMB decays this tensor and scales its update by the trust ratio."""
        return EXCLUDED.search(self.name) is None

    def of(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """The tensor's part of our parameter, in our layout: a contiguous view."""
        parameter = parameters[self.parameter]
        return parameter if self.rows is None else parameter[self.rows[0] : self.rows[1]]

    def in_tf_layout(self, view: Tensor) -> Tensor:
        """Our layout to TF's, and back: a transposition is its own inverse."""
        return view.t() if self.transposed else view


def tensor_specs(config: ModelConfig) -> list[TensorSpec]:
    """All variables of the reference in its graph order: 24 x 16 + 14 = 398 for BERT-Large."""
    hidden = config.hidden_size
    specs = [
        TensorSpec("bert/embeddings/word_embeddings", (config.vocab_size, hidden), "embeddings.word.weight"),
        TensorSpec(
            "bert/embeddings/token_type_embeddings", (config.type_vocab_size, hidden), "embeddings.token_type.weight"
        ),
        TensorSpec(
            "bert/embeddings/position_embeddings",
            (config.max_position_embeddings, hidden),
            "embeddings.position.weight",
        ),
        *_layer_norm("bert/embeddings/LayerNorm", "embeddings.norm", hidden),
    ]
    for index in range(config.num_hidden_layers):
        specs += _layer(config, f"bert/encoder/layer_{index}", f"encoder.layers.{index}")
    specs += _dense("bert/pooler/dense", "next_sentence.pooler", hidden, hidden)
    specs += _dense("cls/predictions/transform/dense", "masked_lm.transform", hidden, hidden)
    specs += _layer_norm("cls/predictions/transform/LayerNorm", "masked_lm.norm", hidden)
    specs += [
        TensorSpec("cls/predictions/output_bias", (config.vocab_size,), "masked_lm.bias"),
        TensorSpec("cls/seq_relationship/output_weights", (2, hidden), "next_sentence.classifier.weight"),
        TensorSpec("cls/seq_relationship/output_bias", (2,), "next_sentence.classifier.bias"),
    ]
    return specs


def named_parameters(model: nn.Module) -> dict[str, Tensor]:
    """Our parameters by name; the tied decoder is no parameter of its own."""
    return dict(model.named_parameters())


def _layer(config: ModelConfig, tf: str, ours: str) -> list[TensorSpec]:
    hidden, feed_forward = config.hidden_size, config.intermediate_size
    specs = []
    for block, role in enumerate(("query", "key", "value")):
        rows = (block * hidden, (block + 1) * hidden)
        name = f"{tf}/attention/self/{role}"
        specs.append(TensorSpec(f"{name}/kernel", (hidden, hidden), f"{ours}.qkv.weight", rows, transposed=True))
        specs.append(TensorSpec(f"{name}/bias", (hidden,), f"{ours}.qkv.bias", rows))
    specs += _dense(f"{tf}/attention/output/dense", f"{ours}.attention_output", hidden, hidden)
    specs += _layer_norm(f"{tf}/attention/output/LayerNorm", f"{ours}.attention_norm", hidden)
    specs += _dense(f"{tf}/intermediate/dense", f"{ours}.intermediate", hidden, feed_forward)
    specs += _dense(f"{tf}/output/dense", f"{ours}.output", feed_forward, hidden)
    specs += _layer_norm(f"{tf}/output/LayerNorm", f"{ours}.output_norm", hidden)
    return specs


def _dense(tf: str, ours: str, fan_in: int, fan_out: int) -> list[TensorSpec]:
    return [
        TensorSpec(f"{tf}/kernel", (fan_in, fan_out), f"{ours}.weight", transposed=True),
        TensorSpec(f"{tf}/bias", (fan_out,), f"{ours}.bias"),
    ]


def _layer_norm(tf: str, ours: str, hidden: int) -> list[TensorSpec]:
    return [
        TensorSpec(f"{tf}/gamma", (hidden,), f"{ours}.weight"),
        TensorSpec(f"{tf}/beta", (hidden,), f"{ours}.bias"),
    ]
