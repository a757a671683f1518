"""Which samples global batch k holds: a pure function of (seed, k, number of samples, batch size).

Epoch e visits every sample once, in an order drawn from (seed, e). The epochs are laid end to end, and batch k is
positions kB..(k+1)B-1 of that line: batches run across the epoch border and nothing is dropped. No permutation is ever
stored: a position is mapped to its sample by keyed bijections, so any batch of 157 million samples costs microseconds
per sample and no memory, and the order does not change with the version of numpy.

An epoch is shuffled in two stages, so that storage is read in pieces of a block while training sees samples from
everywhere:

    corpus    ... | block of 256 samples | block | ...      (cut anew in each epoch, from a drawn sample on)
    stage 1   blocks are shuffled over the whole corpus and dealt to windows of about 512 blocks
    stage 2   the samples of a window are shuffled

So a window of 131,072 samples (200 MB) has all its samples in about 512 runs of storage; two neighbours in the corpus
lie tens of thousands of positions apart in training, or in different windows. A set of one window is shuffled whole.
"""

from dataclasses import dataclass

import numpy as np

BLOCK_SAMPLES = 256
WINDOW_BLOCKS = 512
_ROUNDS = 6  # pairs of half-rounds; 4 would do for a cipher of this kind (Luby and Rackoff), 2 more cost nothing


@dataclass(frozen=True)
class SampleOrder:
    """The line of all epochs: position p (0-based, endless) to sample id in [0, num_samples).

    `seed` is any non-negative integer. Nothing depends on ranks, micro-batches or earlier calls, so (seed, position) is
    the whole state of a run's order.
    """

    seed: int
    num_samples: int
    block_samples: int = BLOCK_SAMPLES
    window_blocks: int = WINDOW_BLOCKS

    def global_batch(self, step: int, global_batch_size: int) -> np.ndarray:
        """Sample ids of global batch `step` (0-based), int64 [global_batch_size]."""
        assert global_batch_size > 0 and step >= 0
        return self.ids(step * global_batch_size, (step + 1) * global_batch_size)

    def ids(self, first: int, end: int) -> np.ndarray:
        """Sample ids at positions [first, end), int64 [end - first]."""
        parts = []
        while first < end:
            window_end = self.window(first)[1]
            parts.append(self._within_window(first, min(end, window_end)))
            first = window_end
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    def window(self, position: int) -> tuple[int, int]:
        """First position and end of the window that `position` lies in."""
        epoch, place = divmod(position, self.num_samples)
        number = ((place // self.block_samples + 1) * self._num_windows - 1) // self._num_blocks
        start, end = (self._first_block(n) * self.block_samples for n in (number, number + 1))
        return epoch * self.num_samples + start, epoch * self.num_samples + min(end, self.num_samples)

    @property
    def _num_blocks(self) -> int:
        return -(-self.num_samples // self.block_samples)

    @property
    def _num_windows(self) -> int:
        return max(1, self._num_blocks // self.window_blocks)

    def _first_block(self, window: int) -> int:
        return window * self._num_blocks // self._num_windows

    def _within_window(self, first: int, end: int) -> np.ndarray:
        """Ids at positions [first, end) of one window."""
        window_start, window_end = self.window(first)
        epoch = first // self.num_samples
        places = np.arange(first - window_start, end - window_start, dtype=np.int64)
        if self._num_windows == 1:
            return permuted(places, self.num_samples, seed=self.seed, epoch=epoch)
        start = window_start - epoch * self.num_samples
        shuffled = start + shuffle(places, window_end - window_start, keys=_keys(self.seed, epoch, 1, start))
        return self._blocks_shuffled(shuffled, epoch)

    def _blocks_shuffled(self, places: np.ndarray, epoch: int) -> np.ndarray:
        """Stage 1: the samples at `places` of the shuffled blocks. Blocks are cut from a drawn sample on; what is left
        over behind the last whole block stands at the end of the epoch."""
        keys = _keys(self.seed, epoch, 2)
        first = int(keys[0] % np.uint64(self.num_samples))
        blocks, within = np.divmod(places, self.block_samples)
        whole = blocks < self.num_samples // self.block_samples
        blocks[whole] = shuffle(blocks[whole], self.num_samples // self.block_samples, keys=keys)
        return (blocks * self.block_samples + within + first) % self.num_samples


def permuted(places: np.ndarray, num_samples: int, *, seed: int, epoch: int) -> np.ndarray:
    """The samples at `places` (int64 [k], each in [0, num_samples)) of a set that is shuffled whole, int64 [k]."""
    return shuffle(places, num_samples, keys=_keys(seed, epoch))


def shuffle(places: np.ndarray, size: int, *, keys: np.ndarray) -> np.ndarray:
    """A keyed bijection of [0, size): the images of `places` (int64 [k]), int64 [k]; `keys` is uint64 [2 * _ROUNDS].

    Places are shuffled by a Feistel network on the smallest power of two >= size; a value that falls outside [0, size)
    is shuffled again until it falls inside (cycle walking), which keeps the map one-to-one.
    """
    bits = (size - 1).bit_length()
    values = _shuffle_bits(places.astype(np.uint64), bits, keys)
    outside = np.flatnonzero(values >= size)
    while len(outside):
        values[outside] = _shuffle_bits(values[outside], bits, keys)
        outside = outside[values[outside] >= size]
    return values.astype(np.int64)


def _keys(*words: int) -> np.ndarray:
    return np.random.SeedSequence(words).generate_state(2 * _ROUNDS, np.uint64)


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
