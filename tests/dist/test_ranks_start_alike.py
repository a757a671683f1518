"""What must be the same on every rank when training starts, and what must not."""

from pathlib import Path

import numpy as np
import pytest
import torch

from bert_mlperf.checkpoint.store import save_weights
from bert_mlperf.comm.control import Control
from bert_mlperf.model.batch import make_batch
from bert_mlperf.model.bert import build_model
from bert_mlperf.train import setup
from tests.dist.ranks import run_ranks
from tests.train.small import small_model, small_run, uneven_samples

CPU = torch.device("cpu")


def loss_with_dropout(control: Control) -> tuple[float, float]:
    """The loss of one and the same batch, with dropout and without."""
    run = small_run(model=small_model(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1))
    model = setup.build_state(run, control, CPU, seed=5, checkpoint=None).model
    batch = make_batch(uneven_samples(12, config=run.model))
    return model.train()(batch).masked_lm_sum.item(), model.eval()(batch).masked_lm_sum.item()


def test_ranks_have_the_same_weights_and_dropout_masks_of_their_own():
    results = run_ranks(3, loss_with_dropout)
    assert len({without for _, without in results}) == 1
    assert len({with_dropout for with_dropout, _ in results}) == 3


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
