"""The two pre-training heads.

Legend: B samples, M masked tokens, H hidden, V vocabulary.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bert_mlperf.config.model import ModelConfig
from bert_mlperf.kernels.registry import Kernels
from bert_mlperf.model.encoder import LAYER_NORM_EPSILON
from bert_mlperf.model.layers import Linear


class MaskedLmHead(nn.Module):
    """logits = LayerNorm(gelu(dense(x))) @ word_embeddings^T + bias: the decoder is tied to the word embeddings."""

    def __init__(self, config: ModelConfig, kernels: Kernels) -> None:
        super().__init__()
        self.transform = Linear(config.hidden_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=LAYER_NORM_EPSILON)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.kernels = kernels

    def forward(self, x_MH: Tensor) -> Tensor:
        """[M, H]: what the decoder, the transposed word embeddings and `bias`, is applied to."""
        h_MH = self.kernels.bias_gelu(F.linear(x_MH, self.transform.weight), self.transform.bias)
        return self.kernels.dropout_add_layer_norm(
            h_MH, None, None, self.norm.weight, self.norm.bias, epsilon=LAYER_NORM_EPSILON, dropout=None
        )


class NextSentenceHead(nn.Module):
    """logits = dense(tanh(pooler([CLS]))), class 0 = real next segment, 1 = random."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.pooler = Linear(config.hidden_size, config.hidden_size)
        self.classifier = Linear(config.hidden_size, 2)

    def forward(self, cls_BH: Tensor) -> Tensor:
        """[B, 2] in the compute dtype."""
        return self.classifier(torch.tanh(self.pooler(cls_BH)))
