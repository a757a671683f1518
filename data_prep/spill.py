"""Arrays that grow on disk instead of in memory: written in pieces, then mapped."""

import tempfile
from pathlib import Path
from types import TracebackType

import numpy as np


class Spill:
    """One growing array in a nameless file of `folder`, which is gone when it is closed or the process ends."""

    def __init__(self, folder: Path, dtype: np.dtype) -> None:
        self._file = tempfile.TemporaryFile(dir=folder)
        self._dtype = dtype
        self._bytes = 0

    def write(self, values: np.ndarray) -> None:
        """Adds values (contiguous, of the array's dtype); OSError if the disk is full."""
        if len(values):
            self._bytes += self._file.write(values.data.cast("B"))

    def mapped(self) -> np.ndarray:
        """All values so far, read-only: pages of the file, not memory of this process."""
        if not self._bytes:
            return np.empty(0, self._dtype)
        self._file.flush()
        return np.memmap(self._file, self._dtype, "r")

    def __enter__(self) -> "Spill":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()
