"""BERT for pre-training on padded batches, written from the equations with the reference's tensor names.

Everything is computed for every position, padding included, with -10000 added to the scores of padded keys.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def layer_norm(x: Tensor, w: dict[str, Tensor], name: str) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], w[f"{name}/gamma"], w[f"{name}/beta"], eps=1e-12)


def dense(x: Tensor, w: dict[str, Tensor], name: str) -> Tensor:
    return x @ w[f"{name}/kernel"] + w[f"{name}/bias"]


def gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def attention(x: Tensor, mask: Tensor, w: dict[str, Tensor], name: str, heads: int) -> Tensor:
    q, k, v = (
        dense(x, w, f"{name}/{role}").unflatten(-1, (heads, -1)).transpose(1, 2) for role in ("query", "key", "value")
    )
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + (1 - mask[:, None, None, :].to(x.dtype)) * -10000.0
    return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


def losses(w: dict[str, Tensor], batch: dict[str, Tensor], *, layers: int, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """(MLM sum, NSP sum, correct masked tokens) of a padded batch: ids, mask and segments [B, S], prediction slots
    [B, P] with weights, labels [B]."""
    ids = batch["input_ids"]
    x = w["bert/embeddings/word_embeddings"][ids]
    x = x + w["bert/embeddings/token_type_embeddings"][batch["segment_ids"]]
    x = x + w["bert/embeddings/position_embeddings"][: ids.shape[1]]
    x = layer_norm(x, w, "bert/embeddings/LayerNorm")
    for index in range(layers):
        name = f"bert/encoder/layer_{index}"
        context = attention(x, batch["input_mask"], w, f"{name}/attention/self", heads)
        x = layer_norm(x + dense(context, w, f"{name}/attention/output/dense"), w, f"{name}/attention/output/LayerNorm")
        inner = gelu(dense(x, w, f"{name}/intermediate/dense"))
        x = layer_norm(x + dense(inner, w, f"{name}/output/dense"), w, f"{name}/output/LayerNorm")
    picked = torch.gather(x, 1, batch["masked_lm_positions"][:, :, None].expand(-1, -1, x.shape[-1]))
    picked = layer_norm(
        gelu(dense(picked, w, "cls/predictions/transform/dense")), w, "cls/predictions/transform/LayerNorm"
    )
    logits = picked @ w["bert/embeddings/word_embeddings"].t() + w["cls/predictions/output_bias"]
    labels, weights = batch["masked_lm_ids"], batch["masked_lm_weights"]
    per_slot = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view_as(labels)
    pooled = torch.tanh(dense(x[:, 0], w, "bert/pooler/dense"))
    next_logits = pooled @ w["cls/seq_relationship/output_weights"].t() + w["cls/seq_relationship/output_bias"]
    next_sum = F.cross_entropy(next_logits, batch["next_sentence_labels"], reduction="sum")
    correct = ((logits.argmax(-1) == labels) & (weights == 1)).sum()
    return (per_slot * weights).sum(), next_sum, correct
