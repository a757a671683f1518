"""Real Wikipedia examples in a published layout, read as they are and trained on. `tests.figures.wikipedia` goes on to
50 steps of 64."""

import math

import pytest
import torch

from bert_mlperf.comm.control import Control
from bert_mlperf.comm.process_group import RankInfo
from bert_mlperf.config.system import load_system
from bert_mlperf.train import loading, setup
from bert_mlperf.train.step import train_step

BATCH, STEPS = 8, 6


@pytest.mark.reference
def test_training_on_the_published_variable_length_file_starts_at_a_uniform_guess_and_falls(reference_dir, monkeypatch):
    monkeypatch.setenv("WIKIPEDIA", "unused")
    file = reference_dir / "golden" / "dataprep" / "part0_varlength_first2500.hdf5"
    overrides = {
        "run.ranks_per_node": 1, "run.gradient_accumulation_steps": 1, "run.micro_batch_size": BATCH,
        "recipe.global_batch_size": BATCH, "recipe.warmup_steps": 0, "run.precision": "fp32",
    }  # fmt: skip
    run = load_system("systems/cpu-wikipedia.json", [f"{key}={value}" for key, value in overrides.items()]).run
    alone, device = Control(rank=0, world_size=1), torch.device("cpu")
    state = setup.build_state(run, alone, device, seed=1, checkpoint=None)
    losses = []
    shards = loading.open_shards(run, file)
    with loading.open_loader(run, shards, RankInfo(0, 0, 1), state.device, order_seed=1) as loader:
        for _ in range(STEPS):
            result = train_step(state, next(loader))
            losses.append((result.masked_lm_loss.item(), result.next_sentence_loss.item()))
    assert losses[0][0] == pytest.approx(math.log(run.model.vocab_size), abs=0.1)
    assert losses[0][1] == pytest.approx(math.log(2), abs=0.1)
    assert losses[-1][0] < losses[0][0] - 0.3
