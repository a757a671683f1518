"""Fingerprints of a sequence of samples: equal for equal samples in equal order, however they are cut into files and in
whatever layout they lie."""

import hashlib
from collections.abc import Iterable
from dataclasses import fields
from itertools import pairwise

import numpy as np

from bert_mlperf.data.samples import Samples

OFFICIAL_EVAL_SAMPLES = 10_000
OFFICIAL_EVAL_INPUT_IDS_MD5 = "611d8bae26646145e1c33338a27ba124"
"""`official_input_ids_md5` of the official evaluation set, published with MLPerf submissions (v2.1 to v5.0)."""

_FIELDS = tuple(field.name for field in fields(Samples))
_OFFSETS = ("offsets", "masked_offsets")


class Fingerprint:
    """sha256 of each field of `Samples`, as little-endian int64 values of all samples, in constant memory."""

    def __init__(self) -> None:
        self._hashes = {name: hashlib.sha256() for name in _FIELDS}
        self._ends = dict.fromkeys(_OFFSETS, 0)
        for name in _OFFSETS:
            self._hashes[name].update(np.zeros(1, dtype="<i8").tobytes())

    def add(self, samples: Samples) -> None:
        """The samples that come next."""
        for name in _FIELDS:
            values = getattr(samples, name).astype("<i8")
            if name in _OFFSETS:
                values = values[1:] - values[0] + self._ends[name]
                self._ends[name] = int(values[-1]) if len(values) else self._ends[name]
            self._hashes[name].update(values.tobytes())

    def digests(self) -> dict[str, str]:
        """sha256 (hex) by the name of the field."""
        return {name: found.hexdigest() for name, found in self._hashes.items()}


class InputIdsMd5:
    """The checksum that MLPerf submissions publish for their evaluation file: md5 of the list of the md5 of each
    sample's token ids, both lists as Python prints them."""

    def __init__(self) -> None:
        self.num_samples = 0
        self._list = hashlib.md5(b"[", usedforsecurity=False)

    def add(self, samples: Samples) -> None:
        """The samples that come next."""
        ids, offsets = samples.input_ids.tolist(), samples.offsets.tolist()
        for start, end in pairwise(offsets):
            found = hashlib.md5(str(ids[start:end]).encode(), usedforsecurity=False).hexdigest()
            self._list.update(f"{', ' if self.num_samples else ''}'{found}'".encode())
            self.num_samples += 1

    def hexdigest(self) -> str:
        """md5 of the samples so far."""
        whole = self._list.copy()
        whole.update(b"]")
        return whole.hexdigest()


def fingerprint(chunks: Iterable[Samples]) -> dict[str, str]:
    """`Fingerprint.digests` of all samples of `chunks`."""
    found = Fingerprint()
    for samples in chunks:
        found.add(samples)
    return found.digests()


def official_input_ids_md5(chunks: Iterable[Samples]) -> str:
    """`InputIdsMd5` (hex) of all samples of `chunks`; compare with OFFICIAL_EVAL_INPUT_IDS_MD5."""
    found = InputIdsMd5()
    for samples in chunks:
        found.add(samples)
    return found.hexdigest()
