"""Where every parameter lies in one flat buffer, and which part of it each rank of a shard group owns.

    buffer     bucket 0 | bucket 1 | ...       a bucket is a run of parameters, padded so that it falls into equal parts
    bucket b   part 0 | part 1 | ... | part S-1
    shard r    part r of bucket 0 | part r of bucket 1 | ...           1/S of the buffer

A bucket is what is reduced, and later gathered, at a time. Each has its own S parts, so its reduced part is final as
soon as the bucket is, whatever the others do. Parameters begin at multiples of ALIGNMENT elements, decayed ones first
in their bucket. All numbers are elements; all functions are pure, so that layouts are tested without processes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

ALIGNMENT = 64  # elements: 128 bytes of bf16 or fp16, 256 of fp32


@dataclass(frozen=True)
class Slot:
    """A parameter's place in the flat buffer: elements [start, end)."""

    name: str
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True)
class TensorRange:
    """One tensor of the reference: elements [start, end) of the flat buffer."""

    name: str
    start: int
    end: int
    adapted: bool  # decayed, and scaled by its trust ratio


@dataclass(frozen=True)
class Bucket:
    """Elements [start, end) of the flat buffer: some parameters, and padding."""

    start: int
    end: int
    parameters: tuple[str, ...]

    @property
    def size(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class Piece:
    """What one shard holds of a stretch of the buffer: elements [start, end) of the buffer, and where they begin in the
    shard."""

    start: int
    end: int
    shard_start: int

    @property
    def shard_end(self) -> int:
        return self.shard_start + self.end - self.start


@dataclass(frozen=True)
class FlatLayout:
    """Parameters in buckets, in `num_shards` equal shards."""

    slots: Mapping[str, Slot]
    buckets: tuple[Bucket, ...]
    num_shards: int

    @property
    def size(self) -> int:
        """Elements of the flat buffer, padding included."""
        return self.buckets[-1].end

    @property
    def shard_size(self) -> int:
        return self.size // self.num_shards

    def part(self, bucket: Bucket, shard: int) -> Piece:
        """The part of `bucket` that the shard owns."""
        size = bucket.size // self.num_shards
        start = bucket.start + shard * size
        return Piece(start, start + size, bucket.start // self.num_shards)

    def parts(self, shard: int) -> list[Piece]:
        """What the shard owns of each bucket: together all of its elements."""
        return [self.part(bucket, shard) for bucket in self.buckets]

    def pieces(self, start: int, end: int, shard: int) -> list[Piece]:
        """What the shard owns of elements [start, end) of the buffer, in ascending order, none empty."""
        found = []
        for part in self.parts(shard):
            low, high = max(start, part.start), min(end, part.end)
            if low < high:
                found.append(Piece(low, high, part.shard_start + low - part.start))
        return found


def make_layout(
    shapes: Mapping[str, Sequence[int]],
    *,
    units: Sequence[Sequence[str]],
    decayed: Iterable[str],
    num_shards: int = 1,
    bucket_size: int | None = None,
) -> FlatLayout:
    """Buckets of whole `units` (parameters whose gradients are complete together, such as those of one layer, in the
    order in which backward completes them), closed as soon as they hold `bucket_size` elements (None: one bucket).

    Every parameter of `shapes` stands in exactly one unit.
    """
    names = [name for unit in units for name in unit]
    assert sorted(names) == sorted(shapes), "each parameter belongs to one unit"
    assert num_shards >= 1 and (bucket_size is None or bucket_size >= 1)
    is_decayed = set(decayed)
    slots: dict[str, Slot] = {}
    buckets: list[Bucket] = []
    for group in _groups(shapes, units, bucket_size):
        start = at = buckets[-1].end if buckets else 0
        ordered = sorted(group, key=lambda name: name not in is_decayed)  # stable
        for name in ordered:
            shape = tuple(shapes[name])
            slots[name] = Slot(name, shape, at, at + _numel(shape))
            at = _aligned(slots[name].end, ALIGNMENT)
        end = start + _aligned(max(at - start, 1), ALIGNMENT * num_shards)
        buckets.append(Bucket(start, end, tuple(ordered)))
    return FlatLayout(slots, tuple(buckets), num_shards)


def _groups(
    shapes: Mapping[str, Sequence[int]], units: Sequence[Sequence[str]], bucket_size: int | None
) -> list[list[str]]:
    """The parameters of each bucket."""
    groups: list[list[str]] = [[]]
    held = 0
    for unit in units:
        if bucket_size is not None and held >= bucket_size:
            groups.append([])
            held = 0
        groups[-1] += unit
        held += sum(_numel(shapes[name]) for name in unit)
    return groups


def _numel(shape: Sequence[int]) -> int:
    number = 1
    for extent in shape:
        number *= extent
    return number


def _aligned(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
