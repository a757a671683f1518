"""The two pre-training heads.

Legend: B samples, M masked tokens, H hidden, V vocabulary.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bert_mlperf.config.model import ModelConfig
from bert_mlperf.model.encoder import LAYER_NORM_EPSILON
from bert_mlperf.model.layers import Linear


class MaskedLmHead(nn.Module):
    """logits = LayerNorm(gelu(dense(x))) @ word_embeddings^T + bias: the decoder is tied to the word embeddings."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.transform = Linear(config.hidden_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=LAYER_NORM_EPSILON)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, x_MH: Tensor, word_embeddings_VH: Tensor) -> Tensor:
        h_MH = self.norm(F.gelu(self.transform(x_MH), approximate="tanh"))
        return F.linear(h_MH, word_embeddings_VH, self.bias)


class NextSentenceHead(nn.Module):
    """logits = dense(tanh(pooler([CLS]))), class 0 = real next segment, 1 = random."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.pooler = Linear(config.hidden_size, config.hidden_size)
        self.classifier = Linear(config.hidden_size, 2)

    def forward(self, cls_BH: Tensor) -> Tensor:
        return self.classifier(torch.tanh(self.pooler(cls_BH)))
