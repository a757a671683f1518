"""Makes the index of a data set, finds it again, and tells whether it belongs to the files that are there."""

import hashlib
import os
from collections.abc import Collection
from pathlib import Path

from bert_mlperf.data.index import FILE_NAME, SampleIndex, read_index, write_index
from bert_mlperf.data.parts import open_part, open_parts
from bert_mlperf.data.published import detect_layout
from bert_mlperf.data.shards import VERIFY_BYTES, DataSummary, index_parts, indexed_file
from bert_mlperf.errors import UserError

FROM_SAMPLES = 1_000_000  # smaller sets are indexed by each rank in memory, in no time


def index_of(path: Path) -> Path:
    """The index file of the data set at `path`, a folder or one file: that beside it, or in the user's cache, made if
    there is none. Raises UserError if it is damaged or does not belong to the files."""
    _, parts = open_parts(path)
    files = [indexed_file(part) for part in parts]
    identity = hashlib.sha256(repr([path.resolve(), files]).encode()).hexdigest()[:32]
    places = [beside(path), _cache() / f"{identity}.index"]
    for place in places:
        if place.is_file():
            difference = read_checked(place).first_difference(files)
            if difference is not None:
                raise UserError(
                    f"{place} does not belong to the samples of {path} ({difference}); remove it, and it is made anew "
                    "by the next run."
                )
            return place
    index = index_parts(parts)
    for place in places:
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            write_index(place, index)
        except OSError as error:
            reason = error.strerror or str(error)
        else:
            return place
    raise UserError(f"the index of {path} can be written neither to {places[0]} nor to {places[1]} ({reason}).")


def beside(path: Path) -> Path:
    """Where the index of a data set belongs."""
    return path / FILE_NAME if path.is_dir() else path.with_name(f"{path.name}.{FILE_NAME}")


def read_checked(path: Path) -> SampleIndex:
    """An index whose checksum was compared, unless it is too large to be read twice."""
    return read_index(path, verify=path.stat().st_size <= VERIFY_BYTES)


def inspect_own_files(
    path: Path, index: SampleIndex, names: Collection[str], *, vocab_size: int, max_length: int
) -> DataSummary:
    """As `inspect_shards`, where only the files `names` of the folder can be seen: these are looked at, the others are
    known from the index. Raises UserError if one is missing, is not the one that was indexed or does not fit."""
    vocab_sizes = []
    for indexed in index.files:
        if indexed.name not in names:
            continue
        file = path / indexed.name
        if not file.is_file():
            raise UserError(
                f"{file}, which {index.where} lists and a rank of this node is to read, is not there; put it there."
            )
        part = open_part(file, detect_layout(file))
        if indexed_file(part) != indexed:
            raise UserError(
                f"{file} is another file than the one that {index.where} was made of; put that back, or remove "
                "the index."
            )
        vocab_sizes.append(part.inspect(vocab_size=vocab_size, max_length=max_length, verify=False).vocab_size)
    return DataSummary(
        path=path,
        layout=f"{len(vocab_sizes)} here, the others known from the index",
        num_files=len(index.files),
        num_samples=index.num_samples,
        num_tokens=int(index.lengths.sum(dtype="int64")),
        num_masked=int(index.masked_counts.sum(dtype="int64")),
        max_length=int(index.lengths.max(initial=0)),
        vocab_size=vocab_sizes[0] if vocab_sizes else None,
        fingerprint=hashlib.sha256("".join(file.sha256 for file in index.files).encode()).hexdigest(),
        verified=False,
    )


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bert-mlperf" / "index"
