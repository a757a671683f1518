"""The step "eval": the evaluation samples, picked from the examples of the withheld text as the reference picks."""

import functools
import sys
from pathlib import Path
from typing import Any

import numpy as np

from bert_mlperf.data.shard_file import map_samples, read_header
from bert_mlperf.data_prep.examples import ExampleOptions
from bert_mlperf.data_prep.examples_command import example_settings, same_vocabulary
from bert_mlperf.data_prep.fingerprint import (
    OFFICIAL_EVAL_INPUT_IDS_MD5,
    fingerprint,
    official_input_ids_md5,
)
from bert_mlperf.data_prep.inputs import find_sources
from bert_mlperf.data_prep.part_examples import Progress, write_part_examples
from bert_mlperf.data_prep.stage import Job, number_of, run_stage
from bert_mlperf.errors import UserError

NUM_SAMPLES = 10_000
SHARD = "part_00000_of_00001.hdf5"


def eval_examples(
    text: str | Path,
    *,
    vocabulary: Path,
    out: Path,
    options: ExampleOptions,
    num_samples: int = NUM_SAMPLES,
    own_vocabulary: bool = False,
    allow_long_lines: bool = False,
) -> dict[str, Any]:
    """Writes `num_samples` evaluation samples of the file `text` as one shard in the folder `out`, prints a fingerprint
    per field to stdout, and returns the manifest, which holds the fingerprints too.

    Raises UserError for bad input, if the text gives fewer examples, and as `examples_command.examples` does.
    """
    if num_samples < 1:
        raise UserError(f"--num-samples is {num_samples}, expected at least 1; give another number.")
    sources = find_sources([text])
    if len(sources) != 1:
        raise UserError(
            f"{text} is {len(sources):,} files, expected one; give the evaluation text, eval.txt of prep split."
        )
    settings = example_settings(
        vocabulary, options=options, own_vocabulary=own_vocabulary, allow_long_lines=allow_long_lines
    )
    manifest = run_stage(
        "eval",
        out=out,
        options=settings | {"num_samples": num_samples},
        jobs=[Job((sources[0].path,), (SHARD,), {"num_samples": num_samples})],
        work=functools.partial(
            _write_picked,
            vocabulary=Path(vocabulary).absolute(),
            options=options,
            allow_long_lines=allow_long_lines,
        ),
        workers=1,
        finish=lambda *_: same_vocabulary(vocabulary, settings),
    )
    print(f"{'eval':8s} {number_of(num_samples, 'sample')}, {Path(out) / SHARD}", file=sys.stderr)
    _print_fingerprints(manifest["outputs"][0]["facts"])
    return manifest


def picked(num_examples: int, num_samples: int) -> np.ndarray:
    """Which of the examples are the evaluation samples: int(i * (N / n)), in float64 as the reference computes it.

    Raises UserError if there are fewer examples than samples; the reference would repeat some.
    """
    if num_examples < num_samples:
        raise UserError(
            f"the evaluation text gives {num_examples:,} examples, expected at least {num_samples:,}; give "
            f"--num-samples {num_examples} or fewer, or more text."
        )
    return (np.arange(num_samples) * (num_examples / num_samples)).astype(np.int64)


def _write_picked(job: Job, targets: tuple[Path, ...], progress: Progress, **bound: Any) -> dict[str, Any]:
    """Runs in a worker."""
    select = functools.partial(picked, num_samples=job.arguments["num_samples"])
    facts = write_part_examples(job.sources[0], targets[0], select=select, progress=progress, **bound)
    samples = map_samples(read_header(targets[0]))
    return facts | {
        "fingerprints": fingerprint([samples]),
        "official_input_ids_md5": official_input_ids_md5([samples]),
    }


def _print_fingerprints(facts: dict[str, Any]) -> None:
    for name, value in facts["fingerprints"].items():
        print(f"{name:20s} sha256 {value}")
    is_official = facts["official_input_ids_md5"] == OFFICIAL_EVAL_INPUT_IDS_MD5
    verdict = "the published evaluation set" if is_official else "not that of the published evaluation set"
    print(f"{'input_ids':20s} md5 {facts['official_input_ids_md5']}, {verdict}")
    if not is_official and facts["samples"] == NUM_SAMPLES:
        print(
            f"{NUM_SAMPLES:,} samples of the official evaluation text have md5 {OFFICIAL_EVAL_INPUT_IDS_MD5}",
            file=sys.stderr,
        )
