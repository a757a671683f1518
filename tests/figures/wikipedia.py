"""Real data: a 4-layer, 256-wide BERT on the 19,828 Wikipedia examples of the reference folder.

    python -m tests.figures.wikipedia [--set KEY=VALUE ...]

Writes the examples as shards into a temporary folder, runs systems/cpu-wikipedia.json on them and prints the masked-LM
loss of every tenth step, the first step at which the mean of the last ten is below 7.4, and the samples/s.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

import numpy as np

from bert_mlperf.cli import main as cli
from bert_mlperf.data.samples import Samples
from bert_mlperf.data.shards import write_shard
from bert_mlperf.errors import UserError

REFERENCE = Path(os.environ.get("BERT_MLPERF_REFERENCE", "../shared"))
VOCABULARY = 30522
BOUND = 7.4  # nats; guessing by frequency gives 7.14, a uniform guess ln(30522) = 10.33


def reference_examples(path: Path) -> Samples:
    """All examples of a reference .npz file."""
    if not path.is_file():
        raise UserError(f"{path} does not exist: set BERT_MLPERF_REFERENCE to the folder of reference vectors")
    with np.load(path) as arrays:
        lengths = np.diff(arrays["offsets"])
        positions = np.arange(lengths.sum()) - np.repeat(arrays["offsets"][:-1], lengths)
        return Samples(
            input_ids=arrays["input_ids"],
            segment_ids=(positions >= np.repeat(arrays["segment_a_length"], lengths)).astype(np.uint8),
            offsets=arrays["offsets"],
            masked_positions=arrays["masked_lm_positions"],
            masked_ids=arrays["masked_lm_ids"],
            masked_offsets=arrays["masked_offsets"],
            next_sentence_labels=arrays["next_sentence_labels"],
        )


def main(arguments: list[str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part, file in (("train", "examples_part0"), ("eval", "eval_pick100")):
            (folder / part).mkdir()
            samples = reference_examples(REFERENCE / "golden/dataprep" / f"{file}.npz")
            write_shard(folder / part / "part_00000_of_00001.hdf5", samples, vocab_size=VOCABULARY)
        os.environ["WIKIPEDIA"] = name
        code = cli(["launch", "systems/cpu-wikipedia.json", "--results", f"{name}/results", *arguments])
        metrics = folder / "results/cpu-wikipedia/bert/run_0/metrics.jsonl"
        records = [json.loads(line) for line in metrics.read_text().splitlines()]
    intervals = [record for record in records if record["kind"] == "interval"]  # one a step
    losses = [record["mlm_loss"] for record in intervals]
    means = [float(np.mean(losses[max(0, end - 10) : end])) for end in range(1, len(losses) + 1)]
    for step in range(9, len(losses), 10):
        print(f"step {step + 1:4d}  masked-LM loss {losses[step]:.3f}  mean of ten {means[step]:.3f}")
    below = next((step + 1 for step, mean in enumerate(means) if step >= 9 and mean < BOUND), None)
    rate = len(losses) * 64 / sum(64 / record["samples_per_s"] for record in intervals)
    print(f"first loss {losses[0]:.3f}, below {BOUND} after {below} steps, {rate:.1f} samples/s, exit code {code}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UserError as error:
        sys.exit(f"error: {error}")
