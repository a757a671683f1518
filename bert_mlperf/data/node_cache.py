"""`run.cache: node`: the nodes read the files together, each byte once, and share them over the fast network.

All files laid end to end are cut into chunks. Chunk i is for local rank i mod ranks_per_node; of the chunks of a local
rank, each node reads every n-th, and an all-gather among the ranks with this local rank gives it to the others. Every
node writes all chunks into a folder of its own, in memory or on a local disk.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bert_mlperf.errors import UserError

CHUNK_BYTES = 16 << 20
_BLOCK = 4096  # bytes in which file systems give room
_PREFIX, _LOCK = "bert-mlperf-cache-", ".lock"

Share = Callable[[np.ndarray], np.ndarray]
"""uint8 [C] -> uint8 [nodes, C]: that of each node; C is the same on all of them."""


@dataclass(frozen=True)
class Piece:
    """Bytes [start, start + size) of file number `file`."""

    file: int
    start: int
    size: int


@dataclass(frozen=True)
class NodeCache:
    """What was read and where it lies."""

    files: list[Path]  # the copies on this node, in the order of the originals
    bytes_read: int  # that this rank read from storage
    bytes_total: int  # of all files


def fill_node_cache(
    files: Sequence[Path],
    folder: Path,
    *,
    node: int,
    nodes: int,
    local_rank: int,
    ranks_per_node: int,
    share: Share,
    progress: Callable[[float], None],
    chunk_bytes: int = CHUNK_BYTES,
) -> NodeCache:
    """This rank's part of copying `files` into `folder`, under their names. The copies are whole when all ranks have
    come back, which the caller waits for. `progress` hears after each chunk which share of the work is done.

    Raises UserError, naming the file, if one cannot be read, is shorter than its size or cannot be written. A rank that
    raises leaves the others in `share`, which gives up after a time.
    """
    sizes = [_size(file) for file in files]
    copies = [folder / file.name for file in files]
    for copy, size in zip(copies, sizes, strict=True):
        _make(copy, size)
    chunk_bytes = max(1, min(chunk_bytes, -(-sum(sizes) // (nodes * ranks_per_node))))  # all take part
    read = 0
    planned = turns(sizes, chunk_bytes, nodes=nodes, local_rank=local_rank, ranks_per_node=ranks_per_node)
    for number, turn in enumerate(planned, start=1):
        own = np.zeros(chunk_bytes, dtype=np.uint8)
        filled = 0
        for piece in turn[node]:
            own[filled : filled + piece.size] = _read(files[piece.file], piece)
            filled += piece.size
        read += filled
        shared = share(own) if nodes > 1 else own[None]
        for chunk, pieces in zip(shared, turn, strict=True):
            _write(copies, pieces, chunk)
        progress(number / len(planned))
    return NodeCache(copies, read, sum(sizes))


def turns(
    sizes: Sequence[int], chunk_bytes: int, *, nodes: int, local_rank: int, ranks_per_node: int
) -> list[list[list[Piece]]]:
    """What the ranks with `local_rank` do, turn by turn: for each node the pieces of the chunk that it reads, maybe
    none."""
    chunks = cut(sizes, chunk_bytes)[local_rank::ranks_per_node]
    rounds = [chunks[first : first + nodes] for first in range(0, len(chunks), nodes)]
    return [taken + [[]] * (nodes - len(taken)) for taken in rounds]


def cut(sizes: Sequence[int], chunk_bytes: int) -> list[list[Piece]]:
    """Files of these sizes, laid end to end, in chunks of `chunk_bytes` (the last one maybe less)."""
    chunks: list[list[Piece]] = []
    free = 0
    for file, size in enumerate(sizes):
        start = 0
        while start < size:
            if not free:
                chunks.append([])
                free = chunk_bytes
            taken = min(free, size - start)
            chunks[-1].append(Piece(file, start, taken))
            start, free = start + taken, free - taken
    return chunks


@contextmanager
def run_folder(parent: Path) -> Iterator[Path]:
    """A folder in `parent` for the copies of one run, removed in the end. OSError if it cannot be made."""
    making = Path(tempfile.mkdtemp(dir=parent, prefix=".making-"))
    folder = parent / f"{_PREFIX}{making.name.removeprefix('.making-')}"
    try:
        with open(making / _LOCK, "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            making.rename(folder)  # under its name it is never without its lock
            yield folder
    finally:
        for left in (making, folder):
            shutil.rmtree(left, ignore_errors=True)


def sweep(parent: Path) -> None:
    """Removes what runs that were killed left in `parent`. A lock tells it from what is in use, on whatever machine or
    in whatever container."""
    for old in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError), open(old / _LOCK, "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(old, ignore_errors=True)


def check_space(files: Sequence[Path], folder: Path) -> None:
    """Raises UserError unless `folder` is there and has room for `files`; leftovers in it go first."""
    sweep(folder)
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise UserError(
            f"run.cache_folder {folder} cannot be used ({error.strerror}); give a folder in memory or on a local disk."
        ) from error
    needed = sum(-(-_size(file) // _BLOCK) * _BLOCK for file in files)
    if needed > free:
        raise UserError(
            f"run.cache_folder {folder} has {free / 1e6:,.2f} MB free, the training shards take "
            f"{needed / 1e6:,.2f} MB; give another folder or set run.cache=none."
        )


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError as error:
        raise _unreadable(file, error) from error


def _make(copy: Path, size: int) -> None:
    """A file of this size, whoever of the node comes first; the content comes later."""
    try:
        copy.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(copy, os.O_CREAT | os.O_WRONLY, 0o600)
        try:
            os.ftruncate(descriptor, size)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise _unwritable(copy, error) from error


def _read(file: Path, piece: Piece) -> np.ndarray:
    parts, done = [], 0
    try:
        with open(file, "rb", buffering=0) as opened:
            while done < piece.size:
                content = os.pread(opened.fileno(), piece.size - done, piece.start + done)
                if not content:
                    raise UserError(f"{file} has become shorter since the run began; copy it again and start anew.")
                parts.append(content)
                done += len(content)
    except OSError as error:
        raise _unreadable(file, error) from error
    return np.frombuffer(b"".join(parts), dtype=np.uint8)


def _write(copies: Sequence[Path], pieces: Sequence[Piece], chunk: np.ndarray) -> None:
    at = 0
    for piece in pieces:
        content = memoryview(chunk[at : at + piece.size].tobytes())
        try:
            with open(copies[piece.file], "r+b", buffering=0) as opened:
                done = 0
                while done < piece.size:
                    done += os.pwrite(opened.fileno(), content[done:], piece.start + done)
        except OSError as error:
            raise _unwritable(copies[piece.file], error) from error
        at += piece.size


def _unreadable(file: Path, error: OSError) -> UserError:
    return UserError(f"{file} can no longer be read: {error}; put it back and start anew.")


def _unwritable(copy: Path, error: OSError) -> UserError:
    return UserError(
        f"{copy} cannot be written: {error.strerror}; give run.cache_folder another folder, or free space."
    )
