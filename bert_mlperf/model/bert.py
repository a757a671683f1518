"""BERT for pre-training as the MLPerf reference defines it, on unpadded batches.

Legend: B samples, M masked tokens, Q = B + M rows, H hidden, V vocabulary.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bert_mlperf.config.model import ModelConfig
from bert_mlperf.model.batch import Batch
from bert_mlperf.model.encoder import Embeddings, Encoder
from bert_mlperf.model.heads import MaskedLmHead, NextSentenceHead

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


class BertForPreTraining(nn.Module):
    """Embeddings, encoder and the two heads. The weights are undrawn: `build_model` makes a model to train."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config)
        self.encoder = Encoder(config)
        self.masked_lm = MaskedLmHead(config)
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

    def logits(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Masked-LM logits [M, V] and next-sentence logits [B, 2] in the compute dtype."""
        x_QH = self.encoder(self.embeddings(batch), batch)
        masked_MV = self.masked_lm(x_QH.index_select(0, batch.masked_rows_M), self.embeddings.word.weight)
        next_B2 = self.next_sentence(x_QH.index_select(0, batch.cls_rows_B))
        return masked_MV, next_B2

    def forward(self, batch: Batch) -> Losses:
        """Both losses as fp32 sums of -log softmax(logits)[label]; 0 for a batch without masked tokens."""
        masked_MV, next_B2 = self.logits(batch)
        return Losses(
            masked_lm_sum=F.cross_entropy(masked_MV.float(), batch.masked_labels_M, reduction="sum"),
            next_sentence_sum=F.cross_entropy(next_B2.float(), batch.next_sentence_labels_B, reduction="sum"),
        )

    def count_correct(self, batch: Batch) -> Tensor:
        """Masked tokens whose arg-max is the label, as int64 (0-dimensional)."""
        masked_MV, _ = self.logits(batch)
        return (masked_MV.argmax(-1) == batch.masked_labels_M).sum()


def build_model(config: ModelConfig, *, seed: int) -> BertForPreTraining:
    """A model in fp32 with weights drawn as the reference draws them: matrices and embeddings from a normal
    distribution of standard deviation `initializer_range` cut at two standard deviations, biases 0, LayerNorm 1 and 0.
    """
    model = BertForPreTraining(config)
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
