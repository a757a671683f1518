"""Embeddings and Transformer layers on unpadded tokens (post-LN, tanh GELU, LayerNorm epsilon 1e-12).

Legend: T tokens, Q query rows, H hidden, N heads, D head size, F feed-forward.
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from bert_mlperf.config.model import ModelConfig
from bert_mlperf.kernels.attention import RaggedRows, attention
from bert_mlperf.model.batch import Batch
from bert_mlperf.model.layers import Embedding, Linear

LAYER_NORM_EPSILON = 1e-12


class Embeddings(nn.Module):
    """LayerNorm(word + position + segment), then dropout."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.word = Embedding(config.vocab_size, config.hidden_size)
        self.token_type = Embedding(config.type_vocab_size, config.hidden_size)
        self.position = Embedding(config.max_position_embeddings, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=LAYER_NORM_EPSILON)
        self.dropout = config.hidden_dropout_prob

    def forward(self, batch: Batch) -> Tensor:
        # the decoder, tied to them, makes a gradient of all rows; a sparse one of the tokens' rows is added to it
        is_sparse = self.word.weight.device.type == "cpu"
        word_TH = F.embedding(batch.input_ids_T, self.word.weight, sparse=is_sparse)
        x_TH = word_TH + self.token_type(batch.segment_ids_T) + self.position(batch.positions_T)
        return F.dropout(self.norm(x_TH), self.dropout, self.training)


@dataclass(frozen=True)
class AttentionRows:
    """The dense layout of one batch for the attention of all layers."""

    tokens: RaggedRows
    queries: RaggedRows  # of the last layer
    key_mask: Tensor | None

    @classmethod
    def from_batch(cls, batch: Batch) -> "AttentionRows":
        tokens = RaggedRows.from_offsets(batch.offsets_B1, batch.num_tokens, batch.max_length)
        queries = RaggedRows.from_offsets(
            batch.query_offsets_B1, batch.num_samples + batch.num_masked, batch.max_queries
        )
        return cls(tokens=tokens, queries=queries, key_mask=tokens.key_mask())


class EncoderLayer(nn.Module):
    """One Transformer layer. The query, key and value projections are one matrix: rows [0, H), [H, 2H), [2H, 3H)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.heads = config.num_attention_heads
        self.qkv = Linear(hidden, 3 * hidden)
        self.attention_output = Linear(hidden, hidden)
        self.attention_norm = nn.LayerNorm(hidden, eps=LAYER_NORM_EPSILON)
        self.intermediate = Linear(hidden, config.intermediate_size)
        self.output = Linear(config.intermediate_size, hidden)
        self.output_norm = nn.LayerNorm(hidden, eps=LAYER_NORM_EPSILON)
        self.hidden_dropout = config.hidden_dropout_prob
        self.attention_dropout = config.attention_probs_dropout_prob

    def forward(self, x_TH: Tensor, rows: AttentionRows, query_tokens_Q: Tensor | None = None) -> Tensor:
        """[T, H] -> [T, H], or with `query_tokens_Q` (the last layer) -> [Q, H] for these tokens only."""
        if query_tokens_Q is None:
            q_QH, k_TH, v_TH = self.qkv(x_TH).chunk(3, dim=-1)
            queries = rows.tokens
        else:
            hidden = x_TH.shape[-1]
            k_TH, v_TH = F.linear(x_TH, self.qkv.weight[hidden:], self.qkv.bias[hidden:]).chunk(2, dim=-1)
            x_TH = x_TH.index_select(0, query_tokens_Q)
            q_QH = F.linear(x_TH, self.qkv.weight[:hidden], self.qkv.bias[:hidden])
            queries = rows.queries
        context_QH = attention(
            self._split_heads(q_QH),
            self._split_heads(k_TH),
            self._split_heads(v_TH),
            queries=queries,
            keys=rows.tokens,
            key_mask=rows.key_mask,
            dropout=self.attention_dropout if self.training else 0.0,
        ).flatten(1)
        y_QH = self.attention_norm(x_TH + self._dropout(self.attention_output(context_QH)))
        z_QF = F.gelu(self.intermediate(y_QH), approximate="tanh")
        return self.output_norm(y_QH + self._dropout(self.output(z_QF)))

    def _split_heads(self, x_RH: Tensor) -> Tensor:
        return x_RH.unflatten(-1, (self.heads, -1))

    def _dropout(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.hidden_dropout, self.training)


class Encoder(nn.Module):
    """All layers; the last one gives the rows [CLS] and masked tokens only, in the batch's query order."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.num_hidden_layers))

    def forward(self, x_TH: Tensor, batch: Batch) -> Tensor:
        rows = AttentionRows.from_batch(batch)
        for layer in self.layers[:-1]:
            x_TH = layer(x_TH, rows)
        return self.layers[-1](x_TH, rows, batch.query_tokens_Q)
