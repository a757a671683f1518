"""One weight in two places: the word embeddings, and the decoder that is tied to them.

Legend: V vocabulary, H hidden.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bert_mlperf.kernels.embedding_layer_norm import add_rows


def tie(word_VH: Tensor) -> tuple[Tensor, Tensor]:
    """The weight for the embeddings and for the decoder.

    The decoder's gradient has all rows, the embeddings' is a sparse one of the tokens' rows. They are added in place:
    by itself autograd would make a third tensor of the size of the vocabulary.
    """
    return _Tie.apply(word_VH)


class _Tie(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, word_VH: Tensor) -> tuple[Tensor, Tensor]:
        return word_VH.view_as(word_VH), word_VH.view_as(word_VH)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_embeddings: Tensor, of_decoder: Tensor) -> Tensor:
        if not of_embeddings.is_sparse:
            return of_decoder.add_(of_embeddings)
        return add_rows(of_decoder, of_embeddings._indices()[0], of_embeddings._values())
