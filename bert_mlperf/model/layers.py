"""Linear and embedding modules that leave their weights undrawn: `build_model` draws all weights of a model once."""

from torch import nn


class Linear(nn.Linear):
    """nn.Linear with uninitialised parameters."""

    def reset_parameters(self) -> None:
        """Nothing: see the module."""


class Embedding(nn.Embedding):
    """nn.Embedding with uninitialised weights."""

    def reset_parameters(self) -> None:
        """Nothing: see the module."""
