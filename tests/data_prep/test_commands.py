"""The steps as whole commands: the same bytes in any circumstances, and an order that mixes the parts."""

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from bert_mlperf.data.order import SampleOrder
from bert_mlperf.data.shards import ShardSet
from bert_mlperf.data_prep.evaluation import SHARD
from tests.data_prep.commands import SMALL, everything_in, prep, write_corpus, write_parts

ROOT = Path(__file__).resolve().parents[2]
STEPS = (
    ("clean", "text/*/wiki_??", "--extracted-with", "extractor 1"),
    ("segment", "clean"),
    ("split", "segment", "--eval-articles", "9"),
    ("gather", "split/train", "--block-size", "0.03"),
    ("examples", "gather", "--vocab", "vocab.txt", *SMALL),
    ("examples", "gather", "--vocab", "vocab.txt", *SMALL, "--subset", "200", "--out", "subset"),
    ("eval", "split/eval.txt", "--vocab", "vocab.txt", *SMALL, "--num-samples", "20"),
)


def run_steps(folder: Path, *, workers: int, **variables: str) -> dict[str, bytes]:
    """Every file that the steps write, and what they say on stdout."""
    written: dict[str, bytes] = {}
    for name, *arguments in STEPS:
        out = arguments[-1] if "--out" in arguments else name
        if name != "eval":
            arguments += ["--workers", str(workers)]
        result = prep(folder, name, *arguments, *(() if "--out" in arguments else ("--out", out)), **variables)
        assert result.returncode == 0, result.stderr
        written[f"{out} on stdout"] = result.stdout.encode()
        written |= {f"{out}/{path}": content for path, content in everything_in(folder / out).items()}
    return written


@pytest.mark.slow
def test_same_bytes_for_any_number_of_workers_time_zone_and_hash_seed(tmp_path: Path) -> None:
    found = [
        run_steps(
            write_corpus(tmp_path / name, files=4, articles=40),
            workers=workers,
            TZ=zone,
            PYTHONHASHSEED=hash_seed,
            PYTHONWARNINGS="error::SyntaxWarning,error::DeprecationWarning",
        )
        for name, workers, zone, hash_seed in (
            ("a", 1, "UTC", "0"),
            ("other place", 2, "Asia/Kathmandu", "1"),
            ("c", 3, "America/St_Johns", "4294967295"),
        )
    ]
    first = found[0]
    assert len([name for name in first if name.endswith("manifest.json")]) == len(STEPS)
    assert len([name for name in first if name.startswith("examples/part_")]) > 2
    assert not [name for name in first if ".unfinished" in name or ".tmp" in name]
    for other in found[1:]:
        assert {name for name in first.keys() | other.keys() if first.get(name) != other.get(name)} == set()


def test_one_more_run_with_other_workers_and_time_zone_has_nothing_to_do(tmp_path: Path) -> None:
    write_parts(tmp_path, parts=2, documents=8)
    arguments = ("examples", "parts", "--vocab", "vocab.txt", *SMALL, "--out", "out")
    assert prep(tmp_path, *arguments, "--workers", "1", TZ="UTC").returncode == 0
    before = everything_in(tmp_path / "out")
    again = prep(tmp_path, *arguments, "--workers", "2", TZ="Asia/Kathmandu")
    assert again.returncode == 0 and "holds this already" in again.stderr
    assert everything_in(tmp_path / "out") == before


def test_a_subset_is_the_chosen_samples_of_all(tmp_path: Path) -> None:
    write_parts(tmp_path, parts=3, documents=12)
    common = ("examples", "parts", "--vocab", "vocab.txt", *SMALL)
    assert prep(tmp_path, *common, "--out", "all").returncode == 0
    assert prep(tmp_path, *common, "--subset", "50", "--out", "some").returncode == 0
    whole, some = rows(tmp_path / "all"), rows(tmp_path / "some")
    assert len(some) == 50 and len(set(some)) == 50 and set(some) <= set(whole)
    assert [row for row in whole if row in set(some)] == some  # in their order
    summary = json.loads((tmp_path / "some/manifest.json").read_text())["summary"]
    assert summary["samples"] == 50 and sum(summary["samples_of_inputs"]) == len(whole)


def test_what_the_steps_say(tmp_path: Path) -> None:
    """How much there is of what, and where; nothing about folders inside folders."""
    write_parts(tmp_path, parts=2, documents=8)
    said = prep(tmp_path, "split", "parts", "--eval-articles", "0", "--out", "split").stderr.splitlines()[-1]
    assert said == "split    0 of 16 articles withheld, in split/eval.txt"
    arguments = ("parts", "--vocab", "vocab.txt", *SMALL, "--subset")
    for number in ("20", "30"):
        lines = prep(tmp_path, "examples", *arguments, number, "--out", number).stderr.splitlines()
        assert lines[-1] == f"examples {number} samples in 2 shards, {number}" and not [x for x in lines if "/." in x]
        assert lines[0].startswith("examples at most ") and "kB of shards" in lines[0]
    (tmp_path / "kept").mkdir()
    assert prep(tmp_path, "examples", *arguments, "9999", "--out", "kept").returncode == 2
    again = prep(tmp_path, "examples", *arguments, "25", "--out", "kept")
    assert again.returncode == 0 and "\ncount    done already\n" in again.stderr, "counting is not done twice"
    one = prep(tmp_path, "eval", "parts/part-00000-of-00002", *arguments[1:-1], "--num-samples", "1", "--out", "one")
    assert "\neval     1 file, " in f"\n{one.stderr}" and one.stderr.endswith("eval     1 sample, one/" + SHARD + "\n")


def rows(folder: Path) -> list[bytes]:
    """Each sample of the shards as bytes."""
    shards = ShardSet.open(folder, vocab_size=600, max_length=64)
    samples = [shards.take(np.array([i])) for i in range(shards.num_samples)]
    fields = ("input_ids", "segment_ids", "masked_positions", "masked_ids", "next_sentence_labels")
    return [b"|".join(getattr(sample, name).tobytes() for name in fields) for sample in samples]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_neighbours_in_training_come_from_different_parts(tmp_path: Path, seed: int) -> None:
    """Training does not read part after part: with p equal parts a run of one part has p / (p - 1) samples on
    average if the order is uniform."""
    write_parts(tmp_path, parts=5, documents=25)
    assert prep(tmp_path, "examples", "parts", "--vocab", "vocab.txt", *SMALL, "--out", "out").returncode == 0
    shards = ShardSet.open(tmp_path / "out", vocab_size=600, max_length=64)
    outputs = json.loads((tmp_path / "out/manifest.json").read_text())["outputs"]
    counts = [output["facts"]["samples"] for output in outputs]
    assert len(counts) == 5 and sum(counts) == shards.num_samples > 400
    part_of = np.repeat(np.arange(5), counts)
    batch = 16
    steps = shards.num_samples // batch
    order = part_of[SampleOrder(seed, shards.num_samples).ids(0, steps * batch)]
    mean_run = len(order) / (1 + sum(a != b for a, b in pairwise(order.tolist())))
    assert 1.1 < mean_run < 1.4  # uniform: 1.25; part after part: 100 and more
    assert all(len(set(order[first : first + batch].tolist())) >= 3 for first in range(0, len(order), batch))


def test_modules_compile_and_import_with_warnings_as_errors(tmp_path: Path) -> None:
    """Invalid escapes, inline flags inside a pattern and whatever the next Python takes away."""
    modules = sorted((ROOT / "data_prep").glob("*.py"))
    assert len(modules) > 20
    strict = ("-W", "error::SyntaxWarning", "-W", "error::DeprecationWarning")
    names = [f"bert_mlperf.data_prep.{path.stem}" for path in modules if path.stem != "__init__"]
    script = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)"
    result = subprocess.run(
        [sys.executable, *strict, "-c", script, *names],
        env=os.environ | {"PYTHONPYCACHEPREFIX": str(tmp_path)},  # nothing compiled before is used
        capture_output=True,
        text=True,
    )
    assert (result.returncode, result.stderr) == (0, "")
