"""Golden vectors of the published reference (tests/data/golden, numbers only) as our own types."""

import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bert_mlperf.config.model import ModelConfig
from bert_mlperf.config.recipe import Recipe
from bert_mlperf.data.samples import Samples
from bert_mlperf.model.bert import BertForPreTraining
from bert_mlperf.model.tensors import TensorSpec, tensor_specs

FOLDER = Path(__file__).parent / "data" / "golden"


def arrays(name: str) -> dict[str, np.ndarray]:
    with np.load(FOLDER / f"{name}.npz") as file:
        return {key: file[key] for key in file.files}


def tiny_config() -> ModelConfig:
    fields = json.loads((FOLDER / "bert_tiny_config.json").read_text())
    fields.pop("hidden_act")
    return ModelConfig(name="bert-tiny-golden", **fields)


def recipe_of(config: dict, *, global_batch_size: int) -> Recipe:
    return Recipe(
        global_batch_size=global_batch_size,
        base_learning_rate=config["learning_rate"],
        training_steps=config["num_train_steps"],
        warmup_steps=config["num_warmup_steps"],
        start_warmup_step=config["start_warmup_step"],
        beta_1=config["lamb_beta_1"],
        beta_2=config["lamb_beta_2"],
        epsilon=config["epsilon"],
        weight_decay=config["lamb_weight_decay_rate"],
    )


def samples_from_padded(padded: dict[str, np.ndarray]) -> Samples:
    """Flat ragged samples from padded arrays [B, S] and prediction slots [B, P]."""
    real = padded["input_mask"] == 1
    predicted = padded["masked_lm_weights"] == 1
    return Samples(
        input_ids=padded["input_ids"][real],
        segment_ids=padded["segment_ids"][real].astype(np.uint8),
        offsets=np.concatenate([[0], real.sum(1).cumsum()]),
        masked_positions=padded["masked_lm_positions"][predicted],
        masked_ids=padded["masked_lm_ids"][predicted],
        masked_offsets=np.concatenate([[0], predicted.sum(1).cumsum()]),
        next_sentence_labels=padded["next_sentence_labels"].reshape(-1).astype(np.uint8),
    )


def load_into(model: BertForPreTraining, weights: dict[str, np.ndarray]) -> None:
    """Copies TF arrays by TF name into a model."""
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for spec in tensor_specs(model.config):
            spec.of(parameters).copy_(tf_tensor(weights[spec.name], spec))


def tf_tensor(array: np.ndarray, spec: TensorSpec) -> Tensor:
    return spec.in_tf_layout(torch.from_numpy(array))


def relative_error(got: Tensor, expected: Tensor) -> float:
    """||got - expected|| / ||expected||."""
    return float(torch.linalg.vector_norm(got - expected) / torch.linalg.vector_norm(expected))
