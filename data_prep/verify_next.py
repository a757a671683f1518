"""What to do next, from what is there."""

import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

from bert_mlperf.data_prep.official import (
    CHECKPOINT,
    DUMP,
    EVAL_SAMPLES,
    EVAL_TEXT,
    EXTRACTED,
    TEXT,
    TRAIN_SAMPLES,
    VOCABULARY,
    load_official,
)

_TEXT_STEPS = ("clean", "segment", "split", "gather")


def next_steps(have: Mapping[str, str]) -> list[str]:
    """Lines for people. `have` gives the path of what is there and whole: kinds of official.json, and the folders of
    finished text steps by their name."""
    steps = [*_train_steps(have), *_eval_steps(have)]
    if CHECKPOINT not in have:
        steps.append(f"initial weights (TF1 checkpoint): {_where(CHECKPOINT)}")
    if TRAIN_SAMPLES in have and EVAL_SAMPLES in have:
        data = {"train": have[TRAIN_SAMPLES], "eval": have[EVAL_SAMPLES]}
        data |= {"checkpoint": str(Path(have[CHECKPOINT]).parent)} if CHECKPOINT in have else {}
        steps.insert(0, f'in a system file: "data": {json.dumps(data)}')
    return steps


def _train_steps(have: Mapping[str, str]) -> list[str]:
    if TRAIN_SAMPLES in have:
        return []
    if TEXT in have:
        return _with_vocabulary(have, f"bert-mlperf prep examples '{have[TEXT]}' --vocab {{vocab}} --out train")
    for step, following in reversed(list(pairwise(_TEXT_STEPS))):
        if step in have:
            folder = f"{have[step]}/train" if step == "split" else have[step]
            return [f"bert-mlperf prep {following} {folder} --out {following}"]
    if EXTRACTED in have:
        return [f"bert-mlperf prep clean '{have[EXTRACTED]}' --out clean"]
    if DUMP in have:
        return [f"extract {have[DUMP]} with WikiExtractor, then bert-mlperf prep clean 'text/*/wiki_??' --out clean"]
    return [f"training text (500 parts): {_where(TEXT)}"]


def _eval_steps(have: Mapping[str, str]) -> list[str]:
    if EVAL_SAMPLES in have:
        return []
    if EVAL_TEXT in have:
        return _with_vocabulary(have, f"bert-mlperf prep eval {have[EVAL_TEXT]} --vocab {{vocab}} --out eval")
    if any(kind in have for kind in ("clean", "segment", EXTRACTED, DUMP)) and TRAIN_SAMPLES not in have:
        return []  # the text steps will make it
    return [f"evaluation text (eval.txt): {_where(EVAL_TEXT)}"]


def _with_vocabulary(have: Mapping[str, str], command: str) -> list[str]:
    if VOCABULARY in have:
        return [command.format(vocab=have[VOCABULARY])]
    return [f"vocabulary (vocab.txt): {_where(VOCABULARY)}; then {command.format(vocab='vocab.txt')}"]


def _where(kind: str) -> str:
    official = load_official()
    return "get it from " + next(entry.where for entry in (*official.files, *official.sets) if entry.kind == kind)
