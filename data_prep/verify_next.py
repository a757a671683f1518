"""What to do next, from what is there."""

import json
import os
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from bert_mlperf.data_prep.evaluation import NUM_SAMPLES
from bert_mlperf.data_prep.examples import ExampleOptions
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
from bert_mlperf.data_prep.split import NUM_EVAL_ARTICLES, most_articles, share

_WAY_TO_TRAIN = (TRAIN_SAMPLES, TEXT, "split", "segment", "clean", EXTRACTED, DUMP)  # from the end to the begin
_TITLES = {
    VOCABULARY: "the vocabulary (vocab.txt)",
    TEXT: "the training text (500 parts)",
    EVAL_TEXT: "the evaluation text (eval.txt)",
    CHECKPOINT: "the initial weights (TF1 checkpoint, index and data in one folder)",
}
_WITHHELD = 1 / 20  # of the articles of a small text


@dataclass(frozen=True)
class Use:
    """What to give to the next step."""

    path: str
    options: str = ""  # to give with it
    size: int = 0  # samples


@dataclass(frozen=True)
class NextStep:
    """One line for people."""

    text: str
    wants: str = ""  # the kind of official.json that it asks for


def next_steps(
    have: Mapping[str, Use], others: Mapping[str, Sequence[str]], wrong: Set[str], official: Official
) -> list[NextStep]:
    """What to do, in order: what can be done at once, what has to be got, what an official run wants beside.

    `have` gives what is there and whole: kinds of official.json, and the folders of finished text steps by their name;
    `others` the paths of more data sets of a kind. `wrong` are kinds that are to be mended first; no step builds on
    them."""
    known = have.keys() | wrong
    train = next((kind for kind in _WAY_TO_TRAIN if kind in known), None)
    evaluation = next((kind for kind in (EVAL_SAMPLES, EVAL_TEXT) if kind in known), None)
    wanted = [] if (train, evaluation) == (TRAIN_SAMPLES, EVAL_SAMPLES) else [VOCABULARY]
    wanted += [TEXT] if train is None else []
    if evaluation is None and train in (None, TRAIN_SAMPLES, TEXT):  # the text steps make their own
        wanted.append(EVAL_TEXT)
    to_get = [NextStep(f"get {_TITLES[kind]}: {official.where(kind)}", kind) for kind in wanted if kind not in known]
    commands = {kind: _command(kind, have) for kind in (train, evaluation) if kind is not None and kind in have}
    waiting = {TEXT, EVAL_TEXT} if VOCABULARY not in known else set()
    steps = [NextStep("mend or remove what is wrong, and run prep verify again")] if wrong else []
    if TRAIN_SAMPLES in have and EVAL_SAMPLES in have:
        steps += _data_of_system(have, others)
    steps += [NextStep(command) for kind, command in commands.items() if command and kind not in waiting]
    steps += to_get
    steps += [NextStep(command) for kind, command in commands.items() if command and kind in waiting]
    if CHECKPOINT not in known:
        text = f"for an official run also get {_TITLES[CHECKPOINT]}: {official.where(CHECKPOINT)}"
        steps.append(NextStep(text, CHECKPOINT))
    return steps


def options_for_split(facts: Sequence[Mapping[str, Any]]) -> str:
    """Options with which `prep split` finds enough articles, from the facts of the segmented files; "" for its
    defaults, or if the facts do not tell."""
    articles = [of_file.get("articles") for of_file in facts]
    counts = [count for count in articles if count is not None]
    if len(counts) != len(facts) or not counts:
        return ""
    for wanted in (NUM_EVAL_ARTICLES, max(1, int(sum(counts) * _WITHHELD))):
        if all(share(wanted, index=i, num_files=len(counts)) <= count for i, count in enumerate(counts)):
            return "" if wanted == NUM_EVAL_ARTICLES else f"--eval-articles {wanted}"
    return f"--eval-articles {most_articles(counts)}"


def options_for_eval(articles: int) -> str:
    """Options with which `prep eval` finds enough examples: every article gives one at least whenever the text is gone
    through."""
    certain = articles * ExampleOptions().dupe_factor
    return "" if certain >= NUM_SAMPLES else f"--num-samples {certain}"


def _command(kind: str, have: Mapping[str, Use]) -> str:
    """The step that goes on from what is there, "" if there is none."""
    vocabulary = have.get(VOCABULARY, Use("vocab.txt"))
    commands = {
        TEXT: "bert-mlperf prep examples '{path}' --vocab {vocabulary} --out train",
        EVAL_TEXT: "bert-mlperf prep eval {path} --vocab {vocabulary} --out eval",
        "split": "bert-mlperf prep gather {path}/train --out parts",
        "segment": "bert-mlperf prep split {path} --out split",
        "clean": "bert-mlperf prep segment {path} --out segmented",
        EXTRACTED: "bert-mlperf prep clean '{path}' --out clean",
        DUMP: "extract {path} with WikiExtractor, then bert-mlperf prep clean 'text/*/wiki_??' --out clean",
    }
    command = commands.get(kind, "").format(path=have[kind].path, vocabulary=_joined(vocabulary))
    return f"{command} {have[kind].options}".strip()


def _joined(use: Use) -> str:
    return f"{use.path} {use.options}".strip()


def _data_of_system(have: Mapping[str, Use], others: Mapping[str, Sequence[str]]) -> list[NextStep]:
    kinds = {"train": TRAIN_SAMPLES, "eval": EVAL_SAMPLES, "checkpoint": CHECKPOINT}
    data = {name: os.path.abspath(have[kind].path) for name, kind in kinds.items() if kind in have}
    more = [f"{kind} in {', '.join(paths)}" for kind, paths in others.items() if paths]
    steps = [NextStep(f'in a system file: "data": {json.dumps(data)}')]
    return steps + ([NextStep(f"also here: {'; '.join(more)}")] if more else [])
