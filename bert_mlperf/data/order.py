"""Which samples global batch k holds: a pure function of (seed, k, number of samples, batch size).

Epoch e visits every sample once, in an order drawn from (seed, e). The epochs are laid end to end, and batch k is
positions kB..(k+1)B-1 of that line: batches run across the epoch border and nothing is dropped. No permutation is ever
stored: a position is mapped to its sample by a keyed bijection, so any batch of 157 million samples costs microseconds
per sample and no memory, and the order does not change with the version of numpy.
"""

import numpy as np

_ROUNDS = 6  # pairs of half-rounds; 4 would do for a cipher of this kind (Luby and Rackoff), 2 more cost nothing


def global_batch_ids(seed: int, step: int, num_samples: int, global_batch_size: int) -> np.ndarray:
    """Sample ids of global batch `step` (0-based), int64 [global_batch_size], each in [0, num_samples).

    `seed` is any non-negative integer. The result does not depend on ranks, micro-batches or earlier calls.
    """
    assert num_samples > 0 and global_batch_size > 0 and step >= 0
    first = step * global_batch_size
    epochs, places = np.divmod(np.arange(first, first + global_batch_size, dtype=np.int64), num_samples)
    ids = np.empty(global_batch_size, dtype=np.int64)
    for epoch in range(int(epochs[0]), int(epochs[-1]) + 1):
        chosen = epochs == epoch
        ids[chosen] = permuted(places[chosen], num_samples, seed=seed, epoch=epoch)
    return ids


def permuted(places: np.ndarray, num_samples: int, *, seed: int, epoch: int) -> np.ndarray:
    """The samples at `places` (int64 [k], each in [0, num_samples)) of this epoch's order, int64 [k].

    Places are shuffled by a Feistel network on the smallest power of two >= num_samples; a value that falls outside
    [0, num_samples) is shuffled again until it falls inside (cycle walking), which keeps the map one-to-one.
    """
    bits = (num_samples - 1).bit_length()
    keys = np.random.SeedSequence([seed, epoch]).generate_state(2 * _ROUNDS, np.uint64)
    values = _shuffle_bits(places.astype(np.uint64), bits, keys)
    outside = np.flatnonzero(values >= num_samples)
    while len(outside):
        values[outside] = _shuffle_bits(values[outside], bits, keys)
        outside = outside[values[outside] >= num_samples]
    return values.astype(np.int64)


def _shuffle_bits(values: np.ndarray, bits: int, keys: np.ndarray) -> np.ndarray:
    """A keyed bijection of [0, 2**bits): each half is xored with a hash of the other half, several times."""
    low_bits = np.uint64(bits - bits // 2)
    low_mask = np.uint64((1 << (bits - bits // 2)) - 1)
    high_mask = np.uint64((1 << (bits // 2)) - 1)
    high, low = values >> low_bits, values & low_mask
    for key_high, key_low in keys.reshape(-1, 2):
        high = high ^ (_hash(low ^ key_high) & high_mask)
        low = low ^ (_hash(high ^ key_low) & low_mask)
    return (high << low_bits) | low


def _hash(values: np.ndarray) -> np.ndarray:
    """64-bit finaliser of the splitmix64 generator: every bit of the result depends on every bit of the value."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
