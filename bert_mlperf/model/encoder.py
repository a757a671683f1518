"""Embeddings and Transformer layers on unpadded tokens (post-LN, tanh GELU, LayerNorm epsilon 1e-12).

Biases, dropout, residuals and LayerNorm are parts of kernels; a linear layer here is its matrix product alone.

Legend: T tokens, Q query rows, R rows (T or Q), H hidden, N heads, D head size, F feed-forward, V vocabulary.
"""

from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bert_mlperf.config.model import ModelConfig
from bert_mlperf.kernels.attention import AttentionRows
from bert_mlperf.kernels.dropout import Site, StepDropout
from bert_mlperf.kernels.registry import Kernels
from bert_mlperf.model.batch import Batch
from bert_mlperf.model.layers import Embedding, Linear

LAYER_NORM_EPSILON = 1e-12
RECOMPUTE_NONE, RECOMPUTE_ATTENTION = "none", "attention"
Recompute = int | str  # "none", "attention", or n: every n-th layer


class Embeddings(nn.Module):
    """LayerNorm(word + position + segment), then dropout."""

    def __init__(self, config: ModelConfig, kernels: Kernels) -> None:
        super().__init__()
        self.word = Embedding(config.vocab_size, config.hidden_size)
        self.token_type = Embedding(config.type_vocab_size, config.hidden_size)
        self.position = Embedding(config.max_position_embeddings, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=LAYER_NORM_EPSILON)
        self.dropout = config.hidden_dropout_prob
        self.kernels = kernels

    def forward(self, word_VH: Tensor, batch: Batch, dropout: StepDropout | None) -> Tensor:
        """[T, H]. `word_VH` is the word embeddings' weight, or what `tie` made of it."""
        return self.kernels.embedding_layer_norm(
            word_VH,
            self.position.weight,
            self.token_type.weight,
            self.norm.weight,
            self.norm.bias,
            batch.input_ids_T,
            batch.positions_T,
            batch.segment_ids_T,
            epsilon=LAYER_NORM_EPSILON,
            dropout=dropout and dropout.at(0, Site.EMBEDDINGS, self.dropout),
        )


class EncoderLayer(nn.Module):
    """One Transformer layer. The query, key and value projections are one matrix: rows [0, H), [H, 2H), [2H, 3H)."""

    def __init__(self, config: ModelConfig, kernels: Kernels, index: int, recompute: Recompute) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.heads, self.index, self.kernels = config.num_attention_heads, index, kernels
        self.qkv = Linear(hidden, 3 * hidden)
        self.attention_output = Linear(hidden, hidden)
        self.attention_norm = nn.LayerNorm(hidden, eps=LAYER_NORM_EPSILON)
        self.intermediate = Linear(hidden, config.intermediate_size)
        self.output = Linear(config.intermediate_size, hidden)
        self.output_norm = nn.LayerNorm(hidden, eps=LAYER_NORM_EPSILON)
        self.hidden_dropout = config.hidden_dropout_prob
        self.attention_dropout = config.attention_probs_dropout_prob
        self.recomputes_attention = recompute == RECOMPUTE_ATTENTION

    def forward(self, x_TH: Tensor, batch: Batch, dropout: StepDropout | None, *, queries_only: bool = False) -> Tensor:
        """[T, H] -> [T, H], or with `queries_only` (the last layer) -> [Q, H] for [CLS] and the masked tokens."""
        if queries_only:
            context_QND, x_TH, dropout = self._attention_of_queries(x_TH, batch, dropout)
        else:
            packed_T3ND = F.linear(x_TH, self.qkv.weight, self.qkv.bias).unflatten(-1, (3, self.heads, -1))
            context_QND = self._attention(packed_T3ND, batch.token_rows, dropout)
        a_QH = F.linear(context_QND.flatten(1), self.attention_output.weight)
        y_QH = self._add_and_norm(
            a_QH, self.attention_output, x_TH, self.attention_norm, dropout, Site.ATTENTION_OUTPUT
        )
        z_QF = self.kernels.bias_gelu(F.linear(y_QH, self.intermediate.weight), self.intermediate.bias)
        o_QH = F.linear(z_QF, self.output.weight)
        return self._add_and_norm(o_QH, self.output, y_QH, self.output_norm, dropout, Site.OUTPUT)

    def _attention_of_queries(
        self, x_TH: Tensor, batch: Batch, dropout: StepDropout | None
    ) -> tuple[Tensor, Tensor, StepDropout | None]:
        """Context of the query rows, their inputs, and the dropout of these rows."""
        hidden = x_TH.shape[-1]
        packed_T2H = F.linear(x_TH, self.qkv.weight[hidden:], self.qkv.bias[hidden:])
        x_QH = x_TH.index_select(0, batch.query_tokens_Q)
        queries_QH = F.linear(x_QH, self.qkv.weight[:hidden], self.qkv.bias[:hidden])
        dropout = dropout and dropout.of_rows(batch.query_tokens_Q)
        context_QND = self._attention(
            packed_T2H.unflatten(-1, (2, self.heads, -1)),
            batch.query_rows,
            dropout,
            queries_QND=queries_QH.unflatten(-1, (self.heads, -1)),
        )
        return context_QND, x_QH, dropout

    def _attention(
        self, packed: Tensor, rows: AttentionRows, dropout: StepDropout | None, queries_QND: Tensor | None = None
    ) -> Tensor:
        masks = dropout and dropout.at(self.index, Site.ATTENTION, self.attention_dropout)
        function = partial(self.kernels.attention, rows=rows, dropout=masks)
        if self.recomputes_attention:
            return _recomputed(function, packed, queries_QND=queries_QND)
        return function(packed, queries_QND=queries_QND)

    def _add_and_norm(
        self,
        x_RH: Tensor,
        linear: Linear,
        residual_RH: Tensor,
        norm: nn.LayerNorm,
        dropout: StepDropout | None,
        site: Site,
    ) -> Tensor:
        return self.kernels.dropout_add_layer_norm(
            x_RH,
            linear.bias,
            residual_RH,
            norm.weight,
            norm.bias,
            epsilon=LAYER_NORM_EPSILON,
            dropout=dropout and dropout.at(self.index, site, self.hidden_dropout),
        )


class Encoder(nn.Module):
    """All layers; the last one gives the rows [CLS] and masked tokens only, in the batch's query order."""

    def __init__(self, config: ModelConfig, kernels: Kernels, recompute: Recompute) -> None:
        super().__init__()
        layers = (EncoderLayer(config, kernels, index, recompute) for index in range(config.num_hidden_layers))
        self.layers = nn.ModuleList(layers)
        self.recompute = recompute

    def forward(self, x_TH: Tensor, batch: Batch, dropout: StepDropout | None) -> Tensor:
        last = len(self.layers) - 1
        for index, layer in enumerate(self.layers):
            arguments: dict[str, Any] = {"batch": batch, "dropout": dropout, "queries_only": index == last}
            if isinstance(self.recompute, int) and index % self.recompute == self.recompute - 1:
                x_TH = _recomputed(layer, x_TH, **arguments)
            else:
                x_TH = layer(x_TH, **arguments)
        return x_TH


def _recomputed(function: Any, *arguments: Any, **options: Any) -> Tensor:
    """What `function` gives; in backward it is called again instead of keeping what is inside. Its dropout comes from
    counters, so there is no random state to bring back."""
    return checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=False, **options)
