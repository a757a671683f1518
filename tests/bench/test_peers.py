"""The comparison with torch's own: all ways do the same work, and a way that does not is noticed."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from bert_mlperf.bench import peers
from bert_mlperf.bench.peer_ranks import BUILDERS, Memory, mlperf_like_samples, step_samples
from bert_mlperf.bench.peers import COMPUTE, OURS, Result, Settings, check_losses, measure
from bert_mlperf.cli import main
from bert_mlperf.errors import UserError

TINY = Settings(layers=2, hidden=64, vocabulary=100, samples=4, max_length=40, rounds=2, steps=3)


@pytest.fixture(scope="module")
def results() -> dict[str, Result]:
    return measure(TINY)


def test_all_ways_train_alike(results):
    assert list(results) == [OURS, "DDP + ZeRO", "FSDP2", "FSDP2, resharding", COMPUTE] == list(BUILDERS)
    check_losses(results)
    for name, result in results.items():
        assert len(result.losses) == 9 and len(result.seconds) == len(result.cpu_seconds) == 2
        assert result.memory.peak > result.memory.before > 0
        if name != COMPUTE:
            assert result.losses == pytest.approx(results[OURS].losses, rel=peers.LOSS_TOLERANCE)
            moved = peers.largest_difference(result, results[COMPUTE])  # which never updates
            assert moved > 100 * peers.LOSS_TOLERANCE


def test_a_way_that_does_not_do_the_same_work_is_noticed(results):
    losses = [*results["FSDP2"].losses[:-1], results["FSDP2"].losses[-1] * (1 + 1e-4)]
    with pytest.raises(UserError, match=r"losses of FSDP2 are 1\.0e-04"):
        check_losses(results | {"FSDP2": replace(results["FSDP2"], losses=losses)})
    with pytest.raises(UserError, match="do not do the same work"):
        check_losses(results | {"FSDP2": replace(results["FSDP2"], losses=[float("nan")] * 9)})


def test_the_table_names_the_faster_peer_and_its_share(capsys):
    def made(seconds: float) -> Result:
        return Result([seconds, seconds], [seconds, seconds], [1.0], Memory(10**6, 2 * 10**6))

    seconds = {OURS: 0.8, "DDP + ZeRO": 1.2, "FSDP2": 1.0, "FSDP2, resharding": 0.9, COMPUTE: 0.6}
    peers.show(TINY, {name: made(s) for name, s in seconds.items()}, where="a machine")
    printed = " ".join(capsys.readouterr().out.split())
    assert "communication and update are 40% of the step of FSDP2" in printed
    assert "ours takes 0.800 of its time" in printed


def test_ranks_get_other_samples_of_the_same_lengths():
    run = replace(TINY, samples=64, max_length=512).run()
    steps = [step_samples(run, 3, rank=rank, world_size=2) for rank in range(2)]
    one, other = (step.micro_batches[0] for step in steps)
    assert torch.equal(one.offsets_B1, other.offsets_B1) and not torch.equal(one.input_ids_T, other.input_ids_T)
    assert one.num_tokens + other.num_tokens == steps[0].global_tokens == steps[1].global_tokens
    assert one.num_masked + other.num_masked == steps[0].global_masked
    assert steps[0].global_samples == run.recipe.global_batch_size


def test_lengths_are_mlperf_like():
    samples = mlperf_like_samples(20_000, max_length=512, vocab_size=100, seed=0)
    assert np.mean(samples.lengths == 512) == pytest.approx(0.23, abs=0.02)
    assert samples.lengths.mean() == pytest.approx(256, rel=0.03)
    assert samples.lengths.min() == 20


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("layers", 0, "1 to 48; give another number"),
        ("hidden", 0, "64 to 4,096; give another number"),
        ("hidden", 100, "a multiple of 64, the width of a head; give another"),
        ("vocabulary", -5, "100 to 1,000,000; give another number"),
        ("samples", 0, "1 to 1,024; give another number"),
        ("max-length", 1, "32 to 4,096; give another number"),
        ("rounds", 0, "1 to 1,000; give another number"),
        ("steps", 0, "1 to 1,000; give another number"),
    ],
)
def test_bad_sizes_are_refused(option, value, expected, capsys):
    assert main(["bench", "peers", f"--{option}", str(value)]) == 2
    assert capsys.readouterr().err == f"error: --{option} is {value}, expected {expected}.\n"


def test_a_rank_that_fails_is_named(monkeypatch):
    bad = replace(TINY, rounds=1)
    run = bad.run()
    broken = run.model_copy(update={"model": run.model.model_copy(update={"num_attention_heads": 3})})
    monkeypatch.setattr(Settings, "run", lambda self: broken)
    with pytest.raises(UserError, match="rank 0 of ours failed"):
        measure(bad)
