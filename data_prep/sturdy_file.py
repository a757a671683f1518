"""A file that HDF5 writes to without ever seeing a failure.

Where a write of its own fails (full disk, quota), HDF5 may crash the process when it closes the file, and what it lost
while it closed a dataset is told to nobody. So it writes through this object: the first failure is kept for the writer
to ask, and what is written after it stays in memory, so that HDF5 goes on undisturbed until the writer closes it.
"""

import os
from pathlib import Path


class SturdyFile:
    """The new file `path`, as h5py's driver "fileobj" wants it. OSError if it exists or cannot be made."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "x+b", buffering=0)
        self._at = 0
        self._end = 0  # of the file, had nothing failed
        self._failure: OSError | None = None
        self._kept: list[tuple[int, bytes]] = []  # what could not be written, and where

    def check(self) -> None:
        """Raises the first failure there was; asked after every chunk, so that what is kept stays small."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        self._file.close()
        self._kept.clear()

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._end}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def write(self, data: memoryview) -> int:
        left = memoryview(data).cast("B")  # h5py gives a memoryview of its own
        size = len(left)
        try:
            while left and self._failure is None:
                left = left[os.pwrite(self._file.fileno(), left, self._at + size - len(left)) :]
        except OSError as error:
            self._failure = error
        if left:
            self._kept.append((self._at + size - len(left), left.tobytes()))
        self._at += size
        self._end = max(self._end, self._at)
        return size

    def readinto(self, buffer: memoryview) -> int:
        wanted = memoryview(buffer).cast("B")
        first, behind = self._at, self._at + len(wanted)
        found = os.preadv(self._file.fileno(), [wanted], first)
        wanted[found:] = bytes(len(wanted) - found)
        for start, kept in self._kept:
            low, high = max(first, start), min(behind, start + len(kept))
            if low < high:
                wanted[low - first : high - first] = kept[low - start : high - start]
        self._at = behind
        return len(wanted)

    def truncate(self, size: int) -> int:
        try:
            if self._failure is None:
                self._file.truncate(size)
        except OSError as error:
            self._failure = error
        self._end = size
        return size

    def flush(self) -> None:
        """Nothing is held back here."""
