"""The official TF1 checkpoint (model.ckpt-28252.{index,data-00000-of-00001}); needs the optional extra `tf`."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bert_mlperf.errors import UserError

# Optimizer slots and counters of the reference and of its ancestors: never loaded, moments and step start at zero.
OPTIMIZER_STATE = re.compile(r"(/LAMB(_\d+)?|/adam_[mv]|/GradientAccumulator)$|^(beta[12]_power|global_step)$")


def find_prefix(path: Path) -> Path | None:
    """The checkpoint prefix that `path` means: the prefix itself, its .index file, or the folder that holds it."""
    if path.is_dir():
        indices = sorted(path.glob("*.index"))
        if len(indices) > 1:
            raise UserError(
                f"{path} holds {len(indices)} TF1 checkpoints: give one of them, e.g. {indices[0].with_suffix('')}"
            )
        return indices[0].with_suffix("") if indices else None
    if path.suffix == ".index" and path.is_file():
        return path.with_suffix("")
    return path if path.with_name(path.name + ".index").is_file() else None


class Tf1Reader:
    """Model variables of one checkpoint; optimizer state is left out."""

    def __init__(self, prefix: Path) -> None:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        try:
            import tensorflow
        except ImportError as error:
            raise UserError(
                f"the TF1 checkpoint {prefix} can only be read with TensorFlow, which is not installed: "
                "run pip install 'bert-mlperf[tf]', or give the published model.ckpt-28252.pt instead"
            ) from error
        self.prefix = prefix
        # a data file that is cut short gives IndexError
        self._read_errors = (tensorflow.errors.OpError, IndexError, RuntimeError, ValueError)
        try:
            self._reader = tensorflow.train.load_checkpoint(str(prefix))
            shapes = self._reader.get_variable_to_shape_map()
            self._reader.get_tensor(max(shapes))  # stored last: fails where the data file is missing or cut short
        except self._read_errors as error:
            raise self._damaged(error) from error
        self.shapes = {n: tuple(s) for n, s in sorted(shapes.items()) if not OPTIMIZER_STATE.search(n)}

    def tensors(self) -> Iterator[tuple[str, str, Tensor]]:
        """(name in the file, TF name, fp32 tensor in TF layout) of each model variable."""
        for name in self.shapes:
            try:
                value = np.asarray(self._reader.get_tensor(name), dtype=np.float32)
            except self._read_errors as error:
                raise self._damaged(error) from error
            yield name, name, torch.from_numpy(value)

    def _damaged(self, error: Exception) -> UserError:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        return UserError(
            f"the TF1 checkpoint {self.prefix} cannot be read ({reason}): fetch it again and compare its md5"
        )
