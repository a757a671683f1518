"""System files that tests write."""

import copy
import json
from pathlib import Path
from typing import Any

from bert_mlperf.config.description import MLPERF_FIELDS

SMALL: dict[str, Any] = {
    **dict.fromkeys(MLPERF_FIELDS, ""),
    "submitter": "Example",
    "division": "open",
    "status": "Available on-premise",
    "system_name": "small",
    "number_of_nodes": "1",
    "accelerators_per_node": "0",
    "run": {
        "model": {
            "name": "bert-small",
            "vocab_size": 1000,
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 128,
            "max_position_embeddings": 64,
        },
        "recipe": {"global_batch_size": 16, "base_learning_rate": 1e-3, "training_steps": 100},
        "data": {"train": "demo", "eval": "demo"},
        "micro_batch_size": 4,
        "ranks_per_node": 2,
        "gradient_accumulation_steps": 2,
    },
}

CLOSED_RUN: dict[str, Any] = {
    "model": "bert-large",
    "recipe": {"global_batch_size": 448, "base_learning_rate": 4.25e-4, "training_steps": 6700},
    "data": {"train": "/data/train", "eval": "/data/eval", "checkpoint": "/data/phase1"},
    "micro_batch_size": 56,
    "ranks_per_node": 8,
}


def small() -> dict[str, Any]:
    return copy.deepcopy(SMALL)


def closed() -> dict[str, Any]:
    return copy.deepcopy(SMALL | {"division": "closed", "run": CLOSED_RUN})


def write(folder: Path, content: dict[str, Any] | str, name: str = "small.json") -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path
