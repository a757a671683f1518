"""Samples of benchmarks: MLPerf-like lengths (23% full, the others gamma(1.6, 115) clipped to 20..511), random
tokens."""

import numpy as np

from bert_mlperf.data.samples import Samples

FULL_SHARE, SHAPE, SCALE, SHORTEST = 0.23, 1.6, 115.0, 20  # lengths in tokens


def mlperf_like_lengths(count: int, max_length: int, generator: np.random.Generator) -> np.ndarray:
    """int64 [count]; `max_length` is that of a full sample."""
    lengths = np.clip(generator.gamma(SHAPE, SCALE, count), min(SHORTEST, max_length - 1), max_length - 1)
    return np.where(generator.random(count) < FULL_SHARE, max_length, lengths).astype(np.int64)


def random_samples(lengths: np.ndarray, vocab_size: int, generator: np.random.Generator) -> Samples:
    """Samples of these lengths, 15% of the tokens masked."""
    masked = np.clip((0.15 * lengths).round().astype(np.int64), 1, 76)
    positions = [
        np.sort(generator.choice(np.arange(1, length), size=number, replace=False))
        for length, number in zip(lengths, masked, strict=True)
    ]
    return Samples(
        input_ids=generator.integers(0, vocab_size, lengths.sum()),
        segment_ids=np.concatenate([np.arange(length) >= length // 2 for length in lengths]).astype(np.uint8),
        offsets=np.concatenate([[0], lengths.cumsum()]),
        masked_positions=np.concatenate(positions),
        masked_ids=generator.integers(0, vocab_size, masked.sum()),
        masked_offsets=np.concatenate([[0], masked.cumsum()]),
        next_sentence_labels=generator.integers(0, 2, len(lengths)).astype(np.uint8),
    )
