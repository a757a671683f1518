"""A small model, a small run and samples whose masked counts differ ten-fold, for tests of training."""

import numpy as np

from bert_mlperf.config.model import ModelConfig
from bert_mlperf.config.system import Run
from bert_mlperf.data.samples import Samples

GLOBAL_BATCH = 48


def small_model(**changes) -> ModelConfig:
    fields = {
        "name": "bert-small-test",
        "vocab_size": 61,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 40,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "initializer_range": 0.1,
    }
    return ModelConfig(**{**fields, **changes})


def small_run(**changes) -> Run:
    """One that trains a global batch of 48 on `ranks_per_node` ranks with the given accumulation."""
    ranks, steps = changes.get("ranks_per_node", 1), changes.get("gradient_accumulation_steps", 1)
    fields = {
        "model": small_model(),
        "recipe": {"global_batch_size": GLOBAL_BATCH, "base_learning_rate": 0.01, "training_steps": 100},
        "data": {"train": "unused", "eval": "unused"},
        "micro_batch_size": GLOBAL_BATCH // ranks // steps,
        "precision": "fp32",
        "device": "cpu",
    }
    return Run.model_validate({**fields, **changes})


def uneven_samples(count: int, *, config: ModelConfig, seed: int = 0) -> Samples:
    """Every third run of samples has 20 masked tokens of 40, the others 2 of 5 to 30."""
    generator = np.random.default_rng(seed)
    crowded = np.arange(count) % 3 == 0
    lengths = np.where(crowded, config.max_position_embeddings, generator.integers(5, 31, count))
    masked_counts = np.where(crowded, 20, 2)
    positions = [
        np.sort(generator.choice(np.arange(1, n), size=m, replace=False))
        for n, m in zip(lengths, masked_counts, strict=True)
    ]
    halves = [np.arange(n) >= n // 2 for n in lengths]
    return Samples(
        input_ids=generator.integers(0, config.vocab_size, lengths.sum()),
        segment_ids=np.concatenate(halves).astype(np.uint8),
        offsets=np.concatenate([[0], lengths.cumsum()]),
        masked_positions=np.concatenate(positions),
        masked_ids=generator.integers(0, config.vocab_size, masked_counts.sum()),
        masked_offsets=np.concatenate([[0], masked_counts.cumsum()]),
        next_sentence_labels=generator.integers(0, 2, count).astype(np.uint8),
    )
