"""The published PyTorch checkpoint model.ckpt-28252.pt: {'model': state_dict} with PyTorch BERT's usual names."""

import re
from collections.abc import Iterator, Mapping

from torch import Tensor

# Each rule turns a part of a PyTorch name into the TF spelling; kernels are stored transposed.
RULES = (
    (re.compile(r"^module\."), ""),
    (re.compile(r"dense_act\b"), "dense"),
    (re.compile(r"\blayer\.(\d+)\b"), r"layer_\1"),
    (re.compile(r"^(.*LayerNorm)\.weight$"), r"\1.gamma"),
    (re.compile(r"^(.*LayerNorm)\.bias$"), r"\1.beta"),
    (re.compile(r"^(.*_embeddings)\.weight$"), r"\1"),
    (re.compile(r"^cls\.predictions\.bias$"), "cls.predictions.output_bias"),
    (re.compile(r"^cls\.seq_relationship\.weight$"), "cls.seq_relationship.output_weights"),
    (re.compile(r"^cls\.seq_relationship\.bias$"), "cls.seq_relationship.output_bias"),
    (re.compile(r"^(.*)\.weight$"), r"\1.kernel"),
)
DECODER = "cls.predictions.decoder.weight"  # tied to the word embeddings: the same numbers under a second name
NO_WEIGHTS = ("bert.embeddings.position_ids",)


def tf_name(name: str) -> str:
    """TF name of a PyTorch name: bert.encoder.layer.0.output.dense.bias is bert/encoder/layer_0/output/dense/bias."""
    for pattern, replacement in RULES:
        name = pattern.sub(replacement, name)
    return name.replace(".", "/")


def state_dict_tensors(state: Mapping[str, Tensor]) -> Iterator[tuple[str, str, Tensor]]:
    """(name in the file, TF name, tensor in TF layout) of each weight; the tied decoder is left out."""
    for name, tensor in state.items():
        bare = name.removeprefix("module.")
        if bare in NO_WEIGHTS or bare == DECODER:
            continue
        converted = tf_name(name)
        transposed = converted.endswith("/kernel") and tensor.dim() == 2
        yield name, converted, tensor.t() if transposed else tensor


def decoder_of(state: Mapping[str, Tensor]) -> tuple[Tensor, Tensor] | None:
    """(decoder, word embeddings) when the state holds both: they must be the same numbers."""
    by_bare_name = {name.removeprefix("module."): tensor for name, tensor in state.items()}
    embeddings = by_bare_name.get("bert.embeddings.word_embeddings.weight")
    decoder = by_bare_name.get(DECODER)
    return None if decoder is None or embeddings is None else (decoder, embeddings)
