"""What the tests of conversion look at: files of any layout read whole, samples as plain values, the command line."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from bert_mlperf.cli import main
from bert_mlperf.data.parts import open_part, open_parts
from bert_mlperf.data.published import detect_layout
from bert_mlperf.data.samples import Samples, concatenate
from bert_mlperf.data.shard_file import write_shard
from tests.data import files

ENDINGS = {"shards": ".hdf5", "tfrecord": ".tfrecord", "fixed": ".hdf5", "variable": ".hdf5", "packed": ".hdf5"}
HDF5_TYPES = {
    "fixed": {
        "input_ids": "<i2",
        "input_mask": "|i1",
        "segment_ids": "|i1",
        "masked_lm_positions": "<i2",
        "masked_lm_ids": "<i2",
        "next_sentence_labels": "|i1",
    },
    "variable": {
        "input_ids": "<i2",
        "segment_ids": "|i1",
        "masked_lm_positions": "<i2",
        "masked_lm_ids": "<i2",
        "next_sentence_labels": "|i1",
    },
}
HDF5_TYPES["packed"] = HDF5_TYPES["variable"] | {"packed_input_len": "<i2", "packed_masked_lm_len": "<i2"}


def write_layout(path: Path, samples: Samples, layout: str, *, vocab_size: int = files.VOCAB_SIZE) -> Path:
    """A file of `layout` (a key of ENDINGS), written without the code under test but for our own shards."""
    if layout == "shards":
        write_shard(path, samples, vocab_size=vocab_size)
    elif layout == "tfrecord":
        write_sorted_tfrecord(path, samples)
    else:
        {"fixed": files.write_fixed, "variable": files.write_variable, "packed": files.write_packed}[layout](
            path, samples
        )
    return path


def write_sorted_tfrecord(path: Path, samples: Samples, *, left_out: Iterable[str] = ()) -> None:
    """A TFRecord file whose features stand in the order of their names."""
    arrays = {name: values for name, values in sorted(files.padded(samples).items()) if name not in left_out}
    files.write_tfrecord(
        path, [{name: values[i] for name, values in arrays.items()} for i in range(samples.num_samples)]
    )


def read(path: Path) -> Samples:
    """All samples of a file or folder of any layout."""
    return concatenate([chunk for part in open_parts(path)[1] for chunk in part.chunks()])


def read_file(path: Path, *, rows: int = 4096) -> Samples:
    return concatenate(list(open_part(path, detect_layout(path)).chunks(rows)))


def plain(samples: Samples) -> list[tuple[Any, ...]]:
    """Each sample as a tuple of lists: comparable, sortable."""
    offsets, masked = samples.offsets, samples.masked_offsets
    return [
        (
            samples.input_ids[offsets[i] : offsets[i + 1]].tolist(),
            samples.segment_ids[offsets[i] : offsets[i + 1]].tolist(),
            samples.masked_positions[masked[i] : masked[i + 1]].tolist(),
            samples.masked_ids[masked[i] : masked[i + 1]].tolist(),
            int(samples.next_sentence_labels[i]),
        )
        for i in range(samples.num_samples)
    ]


def hdf5_content(path: Path) -> dict[str, tuple[str, bool, list[Any]]]:
    """Type, whether the rows are ragged, and values of each field of a published HDF5 file."""
    with h5py.File(path) as file:
        return {
            name: (
                (h5py.check_vlen_dtype(file[name].dtype) or file[name].dtype).str,
                h5py.check_vlen_dtype(file[name].dtype) is not None,
                [np.asarray(row).tolist() for row in file[name][:]],
            )
            for name in file
        }


def refusal(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one sentence with which `bert-mlperf prep` refuses."""
    capsys.readouterr()
    assert main(["prep", *map(str, arguments)]) == 2
    output = capsys.readouterr()
    (line,) = [line for line in output.err.splitlines() if line.startswith("error: ")]
    assert output.err.endswith(f"{line}\n") and "Traceback" not in output.err
    return line.removeprefix("error: ")


def final_names(folder: Path) -> list[str]:
    """What lies in the folder of a step under a final name."""
    return sorted(path.name for path in folder.iterdir() if path.name != ".unfinished") if folder.exists() else []
