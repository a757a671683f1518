"""How far guesses without context get on the demo data: the figures of docs/demo_corpus.md.

    python -m bert_mlperf.data_prep.demo_figures [FOLDER]

FOLDER holds prepared demo data (train/ and eval/ shards); without it the data is prepared in a temporary folder.

Legend: M masked tokens, K columns of a table of what a guess may look at.
"""

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bert_mlperf.data.samples import Samples
from bert_mlperf.data.shards import ShardSet
from bert_mlperf.data_prep.demo_corpus import MAX_SEQ_LENGTH, VOCAB_SIZE
from bert_mlperf.data_prep.demo_data import prepare_demo_data


@dataclass(frozen=True)
class GuessFigures:
    """Share of the masked evaluation tokens that each guess gets right; each guess is counted on the training data."""

    most_frequent: float  # always the most frequent masked token
    neighbours_as_seen: float  # from the token at the place and both neighbours, as the model sees them
    neighbours_true: float  # the same, with the neighbours' original tokens where they are masked too


def visible_context(samples: Samples, *, true_neighbours: bool) -> np.ndarray:
    """What stands at each masked place and beside it: int64 [M, 3] with columns place, left, right.

    With `true_neighbours` masked neighbours are shown with their original tokens; the place itself never is. A masked
    place always has two neighbours in its sample, because [CLS] and [SEP] are never masked.
    """
    places = np.repeat(samples.offsets[:-1], samples.masked_counts) + samples.masked_positions.astype(np.int64)
    visible = samples.input_ids.astype(np.int64)
    shown = visible
    if true_neighbours:
        shown = visible.copy()
        shown[places] = samples.masked_ids
    return np.stack([visible[places], shown[places - 1], shown[places + 1]], axis=1)


def most_frequent(values: np.ndarray) -> int:
    """The most frequent value (the smallest of equals) of a non-empty integer array [M]."""
    found, counts = np.unique(values, return_counts=True)
    return int(found[np.argmax(counts)])


def pack(columns: np.ndarray, *, base: int) -> np.ndarray:
    """One int64 key per row of `columns` [M, K], whose values lie in [0, base) with base ** K < 2 ** 63."""
    keys = np.zeros(len(columns), dtype=np.int64)
    for column in columns.T:
        keys = keys * base + column
    return keys


def best_labels(keys: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct `keys` [M], sorted, and for each the label [M] that goes with it most often (the smallest of
    equals)."""
    base = int(labels.max()) + 1
    pairs, counts = np.unique(pack(np.column_stack([keys, labels]), base=base), return_counts=True)
    order = np.lexsort((pairs, -counts, pairs // base))
    distinct, first = np.unique(pairs[order] // base, return_index=True)
    return distinct, pairs[order][first] % base


def table_accuracy(
    train: tuple[np.ndarray, np.ndarray], evaluation: tuple[np.ndarray, np.ndarray], *, back_off: tuple[slice, ...]
) -> float:
    """Accuracy of a count table on (context [M, K], labels [M]) pairs.

    A context that training lacks falls back to the columns of each slice in `back_off` in turn, at last to the most
    frequent label.
    """
    base = int(max(train[0].max(), evaluation[0].max())) + 1
    guesses = np.full(len(evaluation[1]), most_frequent(train[1]))
    for columns in (*reversed(back_off), slice(None)):
        known, labels = best_labels(pack(train[0][:, columns], base=base), train[1])
        asked = pack(evaluation[0][:, columns], base=base)
        place = np.searchsorted(known, asked).clip(max=len(known) - 1)
        guesses = np.where(known[place] == asked, labels[place], guesses)
    return float(np.mean(guesses == evaluation[1]))


def guess_figures(train: Samples, evaluation: Samples) -> GuessFigures:
    """Count on `train`, guess on `evaluation`."""
    frequent = most_frequent(train.masked_ids)
    neighbours = {
        true_neighbours: table_accuracy(
            (visible_context(train, true_neighbours=true_neighbours), train.masked_ids),
            (visible_context(evaluation, true_neighbours=true_neighbours), evaluation.masked_ids),
            back_off=(slice(1, 3), slice(1, 2), slice(2, 3)),
        )
        for true_neighbours in (False, True)
    }
    return GuessFigures(
        most_frequent=float(np.mean(evaluation.masked_ids == frequent)),
        neighbours_as_seen=neighbours[False],
        neighbours_true=neighbours[True],
    )


def read_samples(folder: Path) -> Samples:
    """All samples of a folder of shards."""
    shards = ShardSet.open(folder, vocab_size=VOCAB_SIZE, max_length=MAX_SEQ_LENGTH)
    try:
        return shards.take(np.arange(shards.num_samples))
    finally:
        shards.close()


def print_figures(folder: Path) -> None:
    """Print sizes and guess figures of the prepared demo data in `folder`."""
    train, evaluation = read_samples(folder / "train"), read_samples(folder / "eval")
    figures = guess_figures(train, evaluation)
    for name, samples in (("train", train), ("eval", evaluation)):
        print(
            f"{name:<6} {samples.num_samples:>7,} samples, {samples.num_masked:>8,} masked tokens, "
            f"mean length {samples.lengths.mean():.1f}"
        )
    print(f"most frequent token                   {figures.most_frequent:.3f}")
    print(f"left and right neighbour, as seen     {figures.neighbours_as_seen:.3f}")
    print(f"left and right neighbour, unmasked    {figures.neighbours_true:.3f}")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="How far guesses without context get on the demo data.")
    parser.add_argument(
        "folder", nargs="?", type=Path, help="prepared demo data; default: prepared in a temporary folder"
    )
    folder = parser.parse_args().folder
    if folder is not None:
        print_figures(folder)
        return
    with tempfile.TemporaryDirectory() as temporary:
        prepared = Path(temporary) / "demo"
        prepare_demo_data(prepared)
        print_figures(prepared)


if __name__ == "__main__":
    main()
