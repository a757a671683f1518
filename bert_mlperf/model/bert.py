"""BERT for pre-training as the MLPerf reference defines it, on unpadded batches.

Legend: B samples, M masked tokens, Q = B + M rows, H hidden, V vocabulary.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bert_mlperf.config.model import ModelConfig
from bert_mlperf.kernels.dropout import StepDropout
from bert_mlperf.kernels.registry import Kernels, select
from bert_mlperf.model.batch import Batch
from bert_mlperf.model.encoder import RECOMPUTE_NONE, Embeddings, Encoder, Recompute
from bert_mlperf.model.heads import MaskedLmHead, NextSentenceHead
from bert_mlperf.model.tie import tie

MASKED_LM_EPSILON = 1e-5


@dataclass(frozen=True)
class Losses:
    """Sums over the samples of one micro-batch (0-dimensional fp32 tensors)."""

    masked_lm_sum: Tensor
    next_sentence_sum: Tensor

    def of_global_batch(self, num_masked: int, num_samples: int) -> Tensor:
        """This micro-batch's share of the loss: MLM sum / (masked tokens + 1e-5) + NSP sum / samples, counts of the
        global batch. Summed over all ranks and micro-batches it is the reference's loss on one replica."""
        return self.masked_lm_sum / (num_masked + MASKED_LM_EPSILON) + self.next_sentence_sum / num_samples


@dataclass(frozen=True)
class DropoutSeed:
    """What the dropout masks of one step are made from, beside the samples' own counters."""

    seed: int  # of the run, 63 bits
    step: int


class BertForPreTraining(nn.Module):
    """Embeddings, encoder and the two heads. The weights are undrawn: `build_model` makes a model to train.

    `kernels` are the operations that it calls (default: the references), `recompute` what backward computes again
    instead of keeping it: "none", "attention", or n for every n-th layer.
    """

    def __init__(
        self, config: ModelConfig, *, kernels: Kernels | None = None, recompute: Recompute = RECOMPUTE_NONE
    ) -> None:
        super().__init__()
        self.config = config
        self.kernels = kernels = kernels or select(torch.device("cpu"), "reference")
        self.embeddings = Embeddings(config, kernels)
        self.encoder = Encoder(config, kernels, recompute)
        self.masked_lm = MaskedLmHead(config, kernels)
        self.next_sentence = NextSentenceHead(config)

    def units(self) -> dict[nn.Module, list[str]]:
        """The parts of the model that are computed one after the other, in the order of forward, with the names of
        their parameters."""
        parts = [self.embeddings, *self.encoder.layers, self.masked_lm, self.next_sentence]
        return {part: self._names_of(part) for part in parts}

    def gradient_units(self) -> list[list[str]]:
        """Names of the parameters whose gradients are complete together, in the order of backward."""
        parts: list[nn.Module] = [self.embeddings]
        parts += [part for layer in self.encoder.layers for part in layer.children()]
        parts += [self.masked_lm, self.next_sentence]
        return [self._names_of(part) for part in parts[::-1]]

    def _names_of(self, part: nn.Module) -> list[str]:
        own = {id(p) for p in part.parameters()}
        return [name for name, p in self.named_parameters() if id(p) in own]

    def forward(self, batch: Batch, dropout: DropoutSeed | None = None) -> Losses:
        """Both losses as fp32 sums of -log softmax(logits)[label]; 0 for a batch without masked tokens. Without
        `dropout` nothing is dropped."""
        word_VH, decoder_VH = tie(self.embeddings.word.weight)
        h_MH, next_B2 = self._heads(word_VH, batch, dropout)
        return Losses(
            masked_lm_sum=self.kernels.linear_cross_entropy(
                h_MH, decoder_VH, self.masked_lm.bias, batch.masked_labels_M
            ),
            next_sentence_sum=F.cross_entropy(next_B2.float(), batch.next_sentence_labels_B, reduction="sum"),
        )

    def count_correct(self, batch: Batch) -> Tensor:
        """Masked tokens whose arg-max is the label, as int64 (0-dimensional). Nothing is dropped."""
        word_VH = self.embeddings.word.weight
        h_MH, _ = self._heads(word_VH, batch, None)
        return self.kernels.count_correct(h_MH, word_VH, self.masked_lm.bias, batch.masked_labels_M)

    def logits(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Masked-LM logits [M, V] and next-sentence logits [B, 2] in the compute dtype, to be looked at."""
        word_VH = self.embeddings.word.weight
        h_MH, next_B2 = self._heads(word_VH, batch, None)
        return F.linear(h_MH, word_VH, self.masked_lm.bias), next_B2

    def _heads(self, word_VH: Tensor, batch: Batch, dropout: DropoutSeed | None) -> tuple[Tensor, Tensor]:
        """Masked tokens in front of the decoder [M, H] and next-sentence logits [B, 2]."""
        masks = dropout and StepDropout(dropout.seed, dropout.step, batch.samples_T, batch.positions_T.int())
        x_QH = self.encoder(self.embeddings(word_VH, batch, masks), batch, masks)
        h_MH = self.masked_lm(x_QH.index_select(0, batch.masked_rows_M))
        return h_MH, self.next_sentence(x_QH.index_select(0, batch.cls_rows_B))


def build_model(
    config: ModelConfig, *, seed: int, kernels: Kernels | None = None, recompute: Recompute = RECOMPUTE_NONE
) -> BertForPreTraining:
    """A model in fp32 with weights drawn as the reference draws them: matrices and embeddings from a normal
    distribution of standard deviation `initializer_range` cut at two standard deviations, biases 0, LayerNorm 1 and 0.
    """
    model = BertForPreTraining(config, kernels=kernels, recompute=recompute)
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Linear | nn.Embedding):
            truncated_normal_(module.weight.data, config.initializer_range, generator)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)
    nn.init.zeros_(model.masked_lm.bias)
    return model


def truncated_normal_(x: Tensor, deviation: float, generator: torch.Generator) -> None:
    """Fills `x` from N(0, deviation^2) and draws every number beyond two deviations again, as tf.truncated_normal."""
    flat = x.view(-1).normal_(0, deviation, generator=generator)
    outside = (flat.abs() > 2 * deviation).nonzero().view(-1)
    while outside.numel() > 0:
        again = flat.new_empty(outside.numel()).normal_(0, deviation, generator=generator)
        flat[outside] = again
        outside = outside[again.abs() > 2 * deviation]
