"""What to do next, from what is there."""

import json
from collections.abc import Mapping, Set
from dataclasses import dataclass

from bert_mlperf.data_prep.official import (
    CHECKPOINT,
    DUMP,
    EVAL_SAMPLES,
    EVAL_TEXT,
    EXTRACTED,
    TEXT,
    TRAIN_SAMPLES,
    VOCABULARY,
    Official,
)

_WAY_TO_TRAIN = (TRAIN_SAMPLES, TEXT, "split", "segment", "clean", EXTRACTED, DUMP)  # from the end to the begin
_TITLES = {
    VOCABULARY: "the vocabulary (vocab.txt)",
    TEXT: "the training text (500 parts)",
    EVAL_TEXT: "the evaluation text (eval.txt)",
    CHECKPOINT: "the initial weights (TF1 checkpoint, index and data in one folder)",
}


@dataclass(frozen=True)
class NextStep:
    """One line for people."""

    text: str
    wants: str = ""  # the kind of official.json that it asks for


def next_steps(have: Mapping[str, str], wrong: Set[str], official: Official) -> list[NextStep]:
    """What to do, in order. `have` gives the path of what is there and whole: kinds of official.json, and the folders
    of finished text steps by their name. `wrong` are kinds that are to be mended first; no step builds on them."""
    known = have.keys() | wrong
    train = next((kind for kind in _WAY_TO_TRAIN if kind in known), None)
    evaluation = next((kind for kind in (EVAL_SAMPLES, EVAL_TEXT) if kind in known), None)
    wanted = [] if (train, evaluation) == (TRAIN_SAMPLES, EVAL_SAMPLES) else [VOCABULARY]
    wanted += [TEXT] if train is None else []
    if evaluation is None and train in (None, TRAIN_SAMPLES, TEXT):  # the text steps make their own
        wanted.append(EVAL_TEXT)
    steps = [NextStep("mend or remove what is wrong, and run prep verify again")] if wrong else []
    if TRAIN_SAMPLES in have and EVAL_SAMPLES in have:
        steps.append(NextStep(f'in a system file: "data": {_data_of_system(have)}'))
    for kind in (*wanted, CHECKPOINT):
        if kind not in known:
            steps.append(NextStep(f"get {_TITLES[kind]}: {official.where(kind)}", kind))
    commands = [_command(kind, have) for kind in (train, evaluation) if kind in have]
    return steps + [NextStep(command) for command in commands if command]


def _command(kind: str | None, have: Mapping[str, str]) -> str:
    """The step that goes on from what is there, "" if there is none."""
    vocabulary = have.get(VOCABULARY, "vocab.txt")
    commands = {
        TEXT: "bert-mlperf prep examples '{path}' --vocab {vocabulary} --out train",
        EVAL_TEXT: "bert-mlperf prep eval {path} --vocab {vocabulary} --out eval",
        "split": "bert-mlperf prep gather {path}/train --out parts",
        "segment": "bert-mlperf prep split {path} --out split",
        "clean": "bert-mlperf prep segment {path} --out segmented",
        EXTRACTED: "bert-mlperf prep clean '{path}' --out clean",
        DUMP: "extract {path} with WikiExtractor, then bert-mlperf prep clean 'text/*/wiki_??' --out clean",
    }
    return commands.get(kind or "", "").format(path=have[kind or ""], vocabulary=vocabulary)


def _data_of_system(have: Mapping[str, str]) -> str:
    kinds = {"train": TRAIN_SAMPLES, "eval": EVAL_SAMPLES, "checkpoint": CHECKPOINT}
    return json.dumps({name: have[kind] for name, kind in kinds.items() if kind in have})
