"""What must be the same on every rank when training starts, and what must not."""

from pathlib import Path

import numpy as np
import pytest
import torch

from bert_mlperf.checkpoint.store import save_weights
from bert_mlperf.comm.control import Control
from bert_mlperf.model.batch import make_batch
from bert_mlperf.model.bert import DropoutSeed, build_model
from bert_mlperf.train import setup
from tests.dist.ranks import run_ranks
from tests.train.small import small_model, small_run, uneven_samples

CPU = torch.device("cpu")


def losses_of_a_batch(control: Control) -> list[float]:
    """Of the same samples without dropout, with it, and with it at other places of the global batch."""
    run = small_run(model=small_model(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1))
    state = setup.build_state(run, control, CPU, seed=5, checkpoint=None)
    samples, seed = uneven_samples(12, config=run.model), DropoutSeed(state.dropout_seed, 0)
    calls = [(make_batch(samples), None), (make_batch(samples), seed), (make_batch(samples, np.arange(12) + 1), seed)]
    return [state.model(*call).masked_lm_sum.item() for call in calls]


def test_ranks_have_the_same_weights_and_masks_and_a_mask_belongs_to_a_place_in_the_global_batch():
    results = run_ranks(3, losses_of_a_batch)
    assert results[0] == results[1] == results[2]
    assert len(set(results[0])) == 3


def weights_of_state(control: Control, path: Path, precision: str) -> tuple[np.ndarray, np.ndarray]:
    state = setup.build_state(small_run(precision=precision), control, CPU, seed=5, checkpoint=str(path))
    masters, parameters = state.weights.in_fp32(), dict(state.model.named_parameters())
    flat_masters = torch.cat([masters[name].flatten() for name in parameters])
    return flat_masters.numpy(), torch.cat([p.detach().float().flatten() for p in parameters.values()]).numpy()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_checkpoint_reaches_master_and_model_weights_of_every_rank(tmp_path, precision):
    model = build_model(small_model(), seed=99)
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    save_weights(tmp_path, model.config, parameters)
    expected = torch.cat([p.flatten() for p in parameters.values()])
    rounded = expected.bfloat16().float() if precision == "bf16" else expected
    for master, weights in run_ranks(2, weights_of_state, tmp_path, precision):
        assert np.array_equal(master, expected.numpy())
        assert np.array_equal(weights, rounded.numpy())
