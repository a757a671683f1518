"""The samples of a file while someone watches."""

from collections.abc import Callable, Iterator

from bert_mlperf.data.parts import MappedPart, Part
from bert_mlperf.data.samples import Samples
from bert_mlperf.errors import UserError


def tracked_chunks(part: Part, progress: Callable[[int], None]) -> Iterator[Samples]:
    """The samples of `part`, each checked. Their bytes are reported while they are read: the size of the file in all,
    of which half stands for the checksum of a shard of ours, compared behind the last sample.

    Raises UserError if the file is damaged, or holds a sample that is none whatever the model and the vocabulary.
    """
    size, total = part.path.stat().st_size, part.count_samples()
    for_digest = size // 2 if isinstance(part, MappedPart) else 0
    done = reported = 0
    for chunk in part.chunks():
        _check(chunk, part, first_sample=done)
        yield chunk
        done += chunk.num_samples
        progress((size - for_digest) * done // total - reported)
        reported = (size - for_digest) * done // total
    if isinstance(part, MappedPart):
        part.check_digest()
        progress(for_digest)


def _check(chunk: Samples, part: Part, *, first_sample: int) -> None:
    """Raises UserError if a sample is none; the reason is the checksum, if that is wrong, too."""
    highest = max(int(ids.max(initial=0)) for ids in (chunk.input_ids, chunk.masked_ids))
    longest = int(chunk.lengths.max(initial=1))
    try:
        chunk.validate(highest + 1, longest, where=str(part.path), first_sample=first_sample)
    except UserError:
        if isinstance(part, MappedPart):
            part.check_digest()
        raise
