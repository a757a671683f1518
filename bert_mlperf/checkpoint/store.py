"""Weights on disk: our own file, and reading of every published initial checkpoint.

Whatever the source, a checkpoint here is a stream of (name in the file, TF name, tensor in TF layout), and
`collect_weights` takes each tensor of the model from it exactly once. Optimizer slots are never read: moments and step
start at zero.
"""

import os
import pickle
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bert_mlperf.checkpoint.convert import pytorch
from bert_mlperf.checkpoint.convert.tf1 import Tf1Reader, find_prefix
from bert_mlperf.config.model import ModelConfig
from bert_mlperf.errors import UserError
from bert_mlperf.model.tensors import TensorSpec, tensor_specs

FORMAT = "bert-mlperf weights"
SCHEMA_VERSION = 1
FILE_NAME = "weights.pt"
SHAPE_KEYS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "type_vocab_size",
)
Stream = Iterable[tuple[str, str, Tensor]]


def save_weights(folder: Path, config: ModelConfig, parameters: Mapping[str, Tensor]) -> Path:
    """Writes `folder`/weights.pt from fp32 parameters by name (our layout); the file appears whole or not at all.

    Each tensor is copied: torch.save would write the whole flat buffer that a view belongs to.
    """
    tensors = {
        s.name: s.in_tf_layout(s.of(parameters)).detach().cpu().clone(memory_format=torch.contiguous_format)
        for s in tensor_specs(config)
    }
    content = {"format": FORMAT, "schema_version": SCHEMA_VERSION, "model": config.model_dump(), "tensors": tensors}
    folder.mkdir(parents=True, exist_ok=True)
    path, partial = folder / FILE_NAME, folder / f".{FILE_NAME}.partial"
    try:
        with open(partial, "wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def load_weights(path: Path, config: ModelConfig) -> dict[str, Tensor]:
    """fp32 tensors by parameter name, in our layout, from any supported checkpoint.

    Raises:
        UserError: the path is no checkpoint, or a tensor is missing, doubled, unknown or misshaped (it is named).
    """
    parameters: dict[str, Tensor] = {}
    by_name = collect_weights(_open_stream(path, config), config, where=path)
    for spec in tensor_specs(config):
        value = spec.in_tf_layout(by_name[spec.name]).float()
        if spec.rows is None:
            parameters[spec.parameter] = value.contiguous()
        else:
            parameters.setdefault(spec.parameter, value.new_empty(3 * value.shape[0], *value.shape[1:]))
            spec.of(parameters).copy_(value)
    return parameters


def check_checkpoint(path: Path, config: ModelConfig) -> None:
    """Everything that `load_weights` would complain about, found before any rank starts."""
    if (prefix := find_prefix(path)) is not None:
        shapes = Tf1Reader(prefix).shapes
        collect_weights(((n, n, torch.empty(s, device="meta")) for n, s in shapes.items()), config, where=path)
    else:
        collect_weights(_open_stream(path, config), config, where=path)


def collect_weights(stream: Stream, config: ModelConfig, *, where: Path) -> dict[str, Tensor]:
    """Takes every tensor of the model from `stream` exactly once, rows that pad the vocabulary cut off."""
    specs = {spec.name: spec for spec in tensor_specs(config)}
    found: dict[str, tuple[str, Tensor]] = {}
    for source, name, tensor in stream:
        if name not in specs:
            raise UserError(f"{where} holds {source}, which is no tensor of {config.name} and no optimizer state")
        if name in found:
            raise UserError(f"{where} holds {name} twice: as {found[name][0]} and as {source}")
        found[name] = source, _fit(tensor, specs[name], config, source=source, where=where)
    missing = [name for name in specs if name not in found]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise UserError(
            f"{where} lacks {missing[0]}{more}: it has {len(found)} of the {len(specs)} tensors of {config.name}"
        )
    return {name: tensor for name, (_, tensor) in found.items()}


def _fit(tensor: Tensor, spec: TensorSpec, config: ModelConfig, *, source: str, where: Path) -> Tensor:
    padded = -(-config.vocab_size // 8) * 8
    has_vocabulary = spec.name in ("bert/embeddings/word_embeddings", "cls/predictions/output_bias")
    if has_vocabulary and tensor.shape == (padded, *spec.shape[1:]):
        tensor = tensor[: config.vocab_size]
    if tuple(tensor.shape) != spec.shape:
        raise UserError(
            f"{where}: {source} has shape {list(tensor.shape)} in TF layout, {config.name} expects {list(spec.shape)}"
        )
    return tensor


def _open_stream(path: Path, config: ModelConfig) -> Iterator[tuple[str, str, Tensor]]:
    if not path.exists() and find_prefix(path) is None:
        raise UserError(f"checkpoint {path} does not exist: set run.data.checkpoint to a file or folder that does")
    if (prefix := find_prefix(path)) is not None:
        yield from Tf1Reader(prefix).tensors()
        return
    file = path / FILE_NAME if path.is_dir() else path
    content = _load_file(file, path)
    if content.get("format") == FORMAT:
        _check_own(content, config, file)
        yield from ((name, name, tensor) for name, tensor in content["tensors"].items())
        return
    state = content["model"]
    pair = pytorch.decoder_of(state)
    if pair is not None and not torch.equal(*pair):
        raise UserError(f"{file}: {pytorch.DECODER} differs from the word embeddings that it must be tied to")
    yield from pytorch.state_dict_tensors(state)


def _check_own(content: dict[str, Any], config: ModelConfig, file: Path) -> None:
    """Raises UserError if our file is of another version or of a model whose weights mean something else."""
    if content.get("schema_version") != SCHEMA_VERSION:
        raise UserError(
            f"{file} has schema version {content.get('schema_version')}, expected {SCHEMA_VERSION}: read it with the "
            "bert-mlperf that wrote it"
        )
    stored = content.get("model")
    for key in SHAPE_KEYS:
        got, expected = stored.get(key) if isinstance(stored, dict) else None, getattr(config, key)
        if got != expected:
            raise UserError(
                f"{file} holds a model whose {key} is {got}, {config.name} has {expected}: set run.model to the model "
                "that the weights were saved from, or run.data.checkpoint to weights of this one"
            )


def _load_file(file: Path, path: Path) -> dict[str, Any]:
    expected = f"expected a TF1 checkpoint, {{'model': state_dict}} as published, or a folder with our {FILE_NAME}"
    if not file.is_file():
        raise UserError(f"{path} is no checkpoint: {expected}")
    try:
        # the format before torch 1.6 is no zip file and cannot be memory-mapped
        content = torch.load(file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file))
    except pickle.UnpicklingError as error:
        raise UserError(f"{file} is no file of tensors, or holds code, which is never run: {expected}") from error
    except Exception as error:  # a damaged pickle can raise anything
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{file} cannot be read as a checkpoint ({reason}): {expected}") from error
    if not isinstance(content, dict) or not ("model" in content or content.get("format") == FORMAT):
        raise UserError(f"{file} holds {type(content).__name__} without 'model': {expected}")
    weights = content.get("tensors") if content.get("format") == FORMAT else content["model"]
    named = isinstance(weights, dict) and all(isinstance(n, str) and isinstance(t, Tensor) for n, t in weights.items())
    if not named:
        raise UserError(f"{file} holds no dictionary of tensors by name: {expected}")
    return content
