"""Does context decide the demo task? The model of systems/local-cpu.json, whole and with attention cut to +-1 token.

    python -m tests.figures.attention_cut [SAMPLES]

Trains both from the same seed on the demo data for SAMPLES samples (default 40,000; one process, all cores) and prints
their accuracy on the evaluation set every 3,200 samples.
"""

import sys
from dataclasses import replace
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from bert_mlperf.comm.control import Control
from bert_mlperf.comm.process_group import RankInfo
from bert_mlperf.config.system import Run, load_system
from bert_mlperf.kernels.attention import AttentionRows
from bert_mlperf.kernels.dropout import StepDropout
from bert_mlperf.launch_data import demo_folder
from bert_mlperf.model.batch import Batch
from bert_mlperf.model.encoder import Encoder
from bert_mlperf.train import loading, setup
from bert_mlperf.train.evaluate import evaluate
from bert_mlperf.train.step import train_step

SEED = 1
EVALUATE_EVERY = 3200


class CutEncoder(Encoder):
    """Every layer computes all tokens."""

    def forward(self, x_TH: Tensor, batch: Batch, dropout: StepDropout | None) -> Tensor:
        for layer in self.layers:
            x_TH = layer(x_TH, batch, dropout)
        return x_TH.index_select(0, batch.query_tokens_Q)


def cut_attention(packed_T3ND: Tensor, rows: AttentionRows, **_: object) -> Tensor:
    """Attention of a token to itself and its two neighbours only; no probability is dropped."""
    found = []
    for start, end in pairwise(rows.key_bounds):
        steps = torch.arange(end - start)
        band_SS = (steps[:, None] - steps).abs() <= 1
        q_NSD, k_NSD, v_NSD = packed_T3ND[start:end].permute(1, 2, 0, 3)
        found.append(F.scaled_dot_product_attention(q_NSD, k_NSD, v_NSD, attn_mask=band_SS).transpose(0, 1))
    return torch.cat(found)


def accuracies(run: Run, samples: int, *, cut: bool) -> list[float]:
    """Accuracy after every 3,200 samples."""
    data, device, info = demo_folder("demo"), torch.device("cpu"), RankInfo(0, 0, 1)
    state = setup.build_state(run, Control(rank=0, world_size=1), device, seed=SEED, checkpoint=None)
    if cut:
        state.model.encoder.__class__ = CutEncoder
        for layer in state.model.encoder.layers:
            layer.kernels = replace(layer.kernels, attention=cut_attention)
    batches = loading.evaluation_batches(run, loading.open_shards(run, data / "eval"), info)
    found = []
    shards = loading.open_shards(run, data / "train")
    with loading.open_loader(run, shards, info, state.device, order_seed=SEED) as loader:
        for step in loader:
            train_step(state, step)
            if state.samples % EVALUATE_EVERY == 0:
                found.append(evaluate(state.model, batches, state.control, device).value)
            if state.samples >= samples:
                return found
    return found


def main(samples: int) -> None:
    overrides = ["run.ranks_per_node=1", "run.micro_batch_size=32"]
    run = load_system("systems/local-cpu.json", overrides).run
    print("samples   whole   cut to +-1")
    whole, cut = accuracies(run, samples, cut=False), accuracies(run, samples, cut=True)
    for index, (a, b) in enumerate(zip(whole, cut, strict=True), start=1):
        print(f"{index * EVALUATE_EVERY:7,}  {a:.4f}  {b:.4f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 40_000)
