"""A uniform draw of samples from many parts, and the disk that samples need."""

import numpy as np

from bert_mlperf.data.order import permuted
from bert_mlperf.data_prep.examples import ExampleOptions
from bert_mlperf.errors import UserError

# Measured on English Wikipedia with the official vocabulary and default options, 26.7 MB of text; the tokens of the
# examples hardly depend on the options, for every sentence stands about once in A or B and once more as a random B.
_TOKENS_OF_TEXT = 0.212  # per byte of text
_TOKENS_OF_EXAMPLES = 0.278  # per byte of text and pass over it


def part_of_subset(first: int, count: int, *, total: int, size: int, seed: int) -> np.ndarray:
    """Which of the samples first..first+count-1, of `total` in all parts, belong to the subset of `size` samples: their
    places in the part, ascending, int64 [k].

    All samples are shuffled by a keyed bijection (data/order.py), and the subset is what comes to lie on the first
    `size` places: every sample is equally likely, exactly `size` are chosen, and no part has to know of another.
    """
    places = permuted(np.arange(first, first + count, dtype=np.int64), total, seed=seed, epoch=0)
    return np.flatnonzero(places < size)


def check_subset(size: int, total: int | None = None) -> None:
    """Raises UserError unless a subset of `size` samples can be drawn from `total` (None: not yet known)."""
    if size < 1 or (total is not None and size > total):
        most = f"the {total:,} samples of the text" if total is not None else "the samples of the text"
        raise UserError(f"the subset has {size:,} samples, expected 1 to {most}; give another size.")


def shard_bytes(text_bytes: int, *, vocab_size: int, options: ExampleOptions, num_samples: int | None = None) -> int:
    """About how many bytes the shards of all examples of a text take; with `num_samples`, at most those of so many."""
    id_bytes = 2 if vocab_size <= 1 << 16 else 4
    masked = min(options.masked_lm_prob, options.max_predictions / options.max_seq_length)
    of_a_token = id_bytes + 1 + masked * (id_bytes + 2) + 17 / options.max_seq_length
    tokens = text_bytes * options.dupe_factor * _TOKENS_OF_EXAMPLES
    if num_samples is not None:
        tokens = min(tokens, num_samples * options.max_seq_length)
    return int(tokens * of_a_token)


def spill_bytes(text_bytes: int, *, vocab_size: int, options: ExampleOptions) -> int:
    """About how many bytes a text takes on disk beside its shard while its examples are made."""
    return int(text_bytes * 4 * _TOKENS_OF_TEXT) + shard_bytes(text_bytes, vocab_size=vocab_size, options=options)
