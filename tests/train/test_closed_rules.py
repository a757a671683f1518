"""A real run of a 24-layer model, from shards to the end of its log, judged by the official closed rules.

The closed division is for BERT-Large alone; only here its name is put into the log of another model.
"""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from bert_mlperf.comm.process_group import RankInfo
from bert_mlperf.config import rules
from bert_mlperf.config.system import ResolvedSystem, load_system
from bert_mlperf.data.samples import Samples
from bert_mlperf.data.shards import write_shard
from bert_mlperf.mlperf.check import check_log
from bert_mlperf.mlperf.log import MlperfLog
from bert_mlperf.train.context import RunContext
from bert_mlperf.train.run import run_rank
from tests.config import files
from tests.mlperf.logs import variables, without
from tests.mlperf.test_official import texts as official_errors

ROUNDS_THAT_CHECK_NAMES = ("1.1.0", "2.0.0", "2.1.0")
CLS, FIRST_WORD, VOCABULARY = 2, 4, 16
LENGTH, PREDICTIONS = 8, 3
NOISE = 0.1  # share of labels that are drawn at random
BATCH, STEPS = 64, 200


@dataclass(frozen=True)
class FinishedRun:
    """The log of a run and what it says."""

    log: Path
    records: list[dict]
    cap: float  # share of the evaluation labels that follow the rule: nothing can learn the others

    def values(self, key: str) -> list:
        return [record["value"] for record in self.records if record["key"] == key]


def rule(words: np.ndarray) -> np.ndarray:
    """The label of a word is the fifth word behind it, in a circle."""
    return FIRST_WORD + (words - FIRST_WORD + 5) % (VOCABULARY - FIRST_WORD)


def noisy_samples(count: int, *, seed: int) -> tuple[Samples, float]:
    """[CLS] and seven random words, three of them with a label to predict; and the share of labels that follow the
    rule. The words stay visible: what is tested is the run, not what attention can learn."""
    generator = np.random.default_rng(seed)
    ids = generator.integers(FIRST_WORD, VOCABULARY, (count, LENGTH))
    ids[:, 0] = CLS
    positions = np.sort(1 + generator.random((count, LENGTH - 1)).argsort(1)[:, :PREDICTIONS])
    ruled = rule(np.take_along_axis(ids, positions, axis=1))
    noise = generator.random(ruled.shape) < NOISE
    labels = np.where(noise, generator.integers(FIRST_WORD, VOCABULARY, ruled.shape), ruled)
    samples = Samples(
        input_ids=ids.reshape(-1).astype(np.uint16),
        segment_ids=np.zeros(count * LENGTH, np.uint8),
        offsets=np.arange(count + 1) * LENGTH,
        masked_positions=positions.reshape(-1).astype(np.uint16),
        masked_ids=labels.reshape(-1).astype(np.uint16),
        masked_offsets=np.arange(count + 1) * PREDICTIONS,
        next_sentence_labels=generator.integers(0, 2, count).astype(np.uint8),
    )
    return samples, float((labels == ruled).mean())


def system_of(folder: Path) -> ResolvedSystem:
    """24 layers of width 16 on one rank, evaluated every 20 steps."""
    content = files.small()
    content["run"] = {
        "model": {
            "name": "bert-24-layers-of-width-16",
            "vocab_size": VOCABULARY,
            "hidden_size": 16,
            "num_hidden_layers": 24,
            "num_attention_heads": 2,
            "intermediate_size": 32,
            "max_position_embeddings": LENGTH,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
        },
        "recipe": {"global_batch_size": BATCH, "base_learning_rate": 0.02, "training_steps": STEPS},
        "data": {"train": str(folder / "train"), "eval": str(folder / "eval")},
        "micro_batch_size": BATCH // 2,
        "gradient_accumulation_steps": 2,
        "precision": "fp32",
        "device": "cpu",
        "eval_interval_samples": 20 * BATCH,
        "max_samples": STEPS * BATCH,
    }
    return load_system(files.write(folder, content))


def context_of(resolved: ResolvedSystem, folder: Path) -> RunContext:
    return RunContext(
        system=resolved.system.model_dump(by_alias=True),
        train_data=resolved.run.data.train,
        eval_data=resolved.run.data.eval,
        checkpoint=None,
        evaluation_points=resolved.evaluation_points,
        threads_per_rank=1,
        seed=1,
        run_dir=str(folder / "run"),
        result_file=str(folder / "result_0.txt"),
        cache_cleared=False,
        cache_note="a test",
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    folder, threads = tmp_path_factory.mktemp("closed_rules"), torch.get_num_threads()
    for part, count in (("train", 4096), ("eval", 512)):
        (folder / part).mkdir()
        samples, cap = noisy_samples(count, seed=count)
        write_shard(folder / part / "part-0.hdf5", samples, vocab_size=VOCABULARY)
    (folder / "run").mkdir()
    context = context_of(system_of(folder), folder)
    path = Path(context.result_file)
    try:
        with MlperfLog(path, division="closed") as log:
            run_rank(context, RankInfo(rank=0, local_rank=0, world_size=1), log)
    finally:
        torch.set_num_threads(threads)
    records = [json.loads(line.removeprefix(":::MLLOG ")) for line in path.read_text().splitlines()]
    return FinishedRun(path, records, cap)


@pytest.mark.parametrize("round_name", rules.ROUNDS)
def test_the_log_passes_the_closed_rules(finished: FinishedRun, round_name: str):
    assert official_errors(finished.log, round_name) == []
    verdict = check_log(finished.log, round_name)
    # a small task, not the real one: our lint sees that, and nothing else
    assert {f.rule for f in verdict.findings if f.severity == "error"} == {
        "max_sequence_length", "max_predictions_per_seq", "eval_samples"
    }  # fmt: skip
    assert verdict.target_met


def test_the_accuracy_is_learned_and_capped_by_the_noise(finished: FinishedRun):
    accuracies = finished.values("eval_accuracy")
    assert 0.72 <= accuracies[-1] < 0.95
    assert finished.cap < 0.95
    assert accuracies[0] < 0.72 and len(accuracies) >= 2  # it was not there from the start
    assert all(round(a * 512 * PREDICTIONS) == pytest.approx(a * 512 * PREDICTIONS) for a in accuracies)
    (stop,) = (record for record in finished.records if record["key"] == "run_stop")
    assert stop["metadata"]["status"] == "success"
    assert finished.values("train_samples") == [stop["metadata"]["epoch_num"]] == [len(accuracies) * 20 * BATCH]
    assert finished.values("eval_samples") == [512]


def test_the_log_names_the_398_variables_before_the_clock_starts(finished: FinishedRun):
    lines = [record for record in finished.records if record["key"] == "weights_initialization"]
    names = [record["metadata"]["tensor"] for record in lines]
    assert Counter(names) == Counter(variables())
    assert len(names) == 398
    keys = [record["key"] for record in finished.records]
    assert keys.index("init_start") < keys.index("weights_initialization") < keys.index("init_stop")
    assert keys.index("init_stop") < keys.index("run_start") < keys.index("block_start")


@pytest.mark.parametrize("round_name", rules.ROUNDS)
def test_without_run_stop_the_log_fails(finished: FinishedRun, round_name: str):
    errors = official_errors(without(finished.log, "run_stop"), round_name)
    assert errors == ["run_stop: expected exactly one line, found none"]


@pytest.mark.parametrize("round_name", rules.ROUNDS)
def test_with_an_accuracy_below_the_target_the_log_fails(finished: FinishedRun, round_name: str, tmp_path: Path):
    text = finished.log.read_text()
    for accuracy in finished.values("eval_accuracy"):
        text = text.replace(f'"key": "eval_accuracy", "value": {accuracy}', '"key": "eval_accuracy", "value": 0.71')
    assert text.count('"value": 0.71,') == len(finished.values("eval_accuracy"))
    path = tmp_path / "result_0.txt"
    path.write_text(text)
    (error,) = official_errors(path, round_name)
    assert error.startswith("eval_accuracy: expected at least one value >= ")


@pytest.mark.parametrize("round_name", ROUNDS_THAT_CHECK_NAMES)
def test_one_variable_less_fails_where_names_are_checked(finished: FinishedRun, round_name: str, tmp_path: Path):
    lines = finished.log.read_text().splitlines(True)
    path = tmp_path / "result_0.txt"
    path.write_text("".join(line for line in lines if "bert/encoder/layer_23/output/dense/bias" not in line))
    expected = "each of 398 variables once, found 1 missing (first: bert/encoder/layer_23/output/dense/bias)"
    assert official_errors(path, round_name) == [f"weights_initialization: expected {expected}"]
