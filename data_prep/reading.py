"""The samples of a file while someone watches."""

from collections.abc import Callable, Iterator

from bert_mlperf.data.parts import MappedPart, Part
from bert_mlperf.data.samples import Samples


def tracked_chunks(part: Part, progress: Callable[[int], None]) -> Iterator[Samples]:
    """The samples of `part`, whose bytes are reported while they are read: the size of the file in all. Of a shard of
    ours half of them stand for the checksum, which is compared behind the last sample.

    Raises UserError if the file is damaged.
    """
    size, total = part.path.stat().st_size, part.count_samples()
    for_digest = size // 2 if isinstance(part, MappedPart) else 0
    done = reported = 0
    for chunk in part.chunks():
        yield chunk
        done += chunk.num_samples
        progress((size - for_digest) * done // total - reported)
        reported = (size - for_digest) * done // total
    if isinstance(part, MappedPart):
        part.check_digest()
        progress(for_digest)
