"""Tokens of each rank in one global batch, with and without balance."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from bert_mlperf.report.charts import BLUE, DOTS_PER_INCH, GRAY, ORANGE, SIZE_INCHES


def draw_balance(path: Path, tokens: Mapping[str, Sequence[int]]) -> Path:
    """Draws `tokens` (of each rank, by the name of the deal) as bars to the PNG `path` and returns it. The step lasts
    as long as the tallest bar."""
    figure = Figure(figsize=SIZE_INCHES, dpi=DOTS_PER_INCH, layout="constrained")
    panels = figure.subplots(len(tokens), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    figure.suptitle("Tokens of each rank in one global batch", fontsize=13)
    for panel, (name, of_ranks) in zip(panels, tokens.items(), strict=True):
        values = np.asarray(of_ranks)
        mean, most = values.mean(), int(values.argmax())
        colors = [ORANGE if rank == most else BLUE for rank in range(len(values))]
        panel.bar(np.arange(len(values)), values, width=0.8, color=colors)
        panel.axhline(mean, color=GRAY, linewidth=1, linestyle="--")
        panel.set_title(
            f"{name}: the largest (rank {most}) is {values[most] / mean - 1:.2%} above the mean of {mean:,.0f}",
            fontsize=10,
        )
        panel.set_ylabel("tokens")
        panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        panel.margins(x=0.01)
    panels[-1].set_xlabel("rank")
    figure.savefig(path)
    return path
