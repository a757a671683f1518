"""The published layouts of BERT pre-training data, read as they are: which one a file has, and its samples in chunks.

padded.py reads fixed-length HDF5 and TFRecord, ragged.py variable-length and packed HDF5. HDF5 handles are open only
while a chunk is read.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import h5py

from bert_mlperf.data import tfrecord
from bert_mlperf.data.fields import OPTIONAL, PACKED_COUNTS, REQUIRED, UNREADABLE, damaged, missing_field, open_table
from bert_mlperf.data.padded import iter_fixed, iter_tfrecord
from bert_mlperf.data.ragged import iter_packed, iter_variable, open_packed
from bert_mlperf.data.samples import Samples, concatenate
from bert_mlperf.data.shard_file import LAYOUT
from bert_mlperf.errors import UserError

FIXED = "fixed-length HDF5"
VARIABLE = "variable-length HDF5"
PACKED = "packed variable-length HDF5"
TFRECORD = "TFRecord"
_GZIP = b"\x1f\x8b"
ROWS = 4096  # rows of a chunk: some 10 MB as they lie in the file

_READERS: dict[str, Callable[..., Iterator[Samples]]] = {
    FIXED: iter_fixed,
    VARIABLE: iter_variable,
    PACKED: iter_packed,
    TFRECORD: iter_tfrecord,
}


def detect_layout(path: Path) -> str:
    """LAYOUT, FIXED, VARIABLE, PACKED or TFRECORD by the content of the file; UserError if it is none of them, lacks a
    field or is unreadable."""
    try:
        if h5py.is_hdf5(path):
            with h5py.File(path, "r", locking=False) as file:
                return _detect_hdf5(path, file)
        if tfrecord.is_tfrecord(path):
            return TFRECORD
        with open(path, "rb") as raw:
            head = raw.read(16)
    except UserError:
        raise
    except UNREADABLE as error:
        raise damaged(path, error) from error
    if head.startswith(_GZIP):
        raise UserError(f"{path} is compressed with gzip, expected HDF5 or TFRecord; unpack it first (gunzip).")
    raise UserError(
        f"{path} begins with {head!r}: it is neither HDF5 nor TFRecord; remove it from the data folder, or copy "
        "it again if it should be a shard."
    )


def read_published(path: Path, layout: str) -> Samples:
    """All samples of a file of a published `layout`, in memory. Raises UserError, naming the file, if it is damaged."""
    return concatenate(list(iter_published(path, layout)))


def iter_published(path: Path, layout: str, *, rows: int = ROWS) -> Iterator[Samples]:
    """The samples of a file of a published `layout` in order, those of `rows` rows or records at a time, so that memory
    does not grow with the file. Raises UserError, naming the file, if it is damaged or holds no samples."""
    empty = True
    try:
        for samples in _READERS[layout](path, rows=rows):
            samples.check_structure(where=str(path))
            yield samples
            empty = False
    except UserError:
        raise
    except UNREADABLE as error:
        raise damaged(path, error) from error
    if empty:
        raise UserError(f"{path} holds no samples; remove it from the folder or make it anew.")


def count_published(path: Path, layout: str) -> int:
    """Number of samples of a file of a published `layout`, without reading them. UserError if it is damaged."""
    try:
        if layout == TFRECORD:
            return tfrecord.count_records(path)
        if layout == PACKED:
            table = open_packed(path)
            labels = (arrays["next_sentence_labels"] for _, arrays in table.only("next_sentence_labels").chunks(ROWS))
            return sum(len(row) for rows in labels for row in rows)
        return open_table(path, required=("next_sentence_labels",)).num_rows
    except UserError:
        raise
    except UNREADABLE as error:
        raise damaged(path, error) from error


def _detect_hdf5(path: Path, file: h5py.File) -> str:
    if "format" in file.attrs:
        return LAYOUT
    packed = any(name in file for name in PACKED_COUNTS)
    expected = (*REQUIRED, *PACKED_COUNTS) if packed else REQUIRED
    present = [name for name in (*expected, *OPTIONAL) if name in file]
    missing = [name for name in expected if name not in file]
    if present and missing:
        raise missing_field(path, missing[0], present=list(file), expected=expected)
    if not missing:
        ids = file["input_ids"]
        if ids.ndim == 2 and not packed:
            return FIXED
        if ids.ndim == 1 and h5py.check_vlen_dtype(ids.dtype):
            return PACKED if packed else VARIABLE
    content = ", ".join(f"{name} {getattr(item, 'shape', '')}" for name, item in list(file.items())[:6]) or "nothing"
    raise UserError(
        f"{path} is HDF5 of an unknown layout (it holds {content}); expected our own shards, or the published ones "
        f"with {', '.join(REQUIRED)}: remove it or convert it."
    )
