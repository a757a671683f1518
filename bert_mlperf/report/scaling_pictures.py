"""The pictures of a scaling report, light or dark. Series are told apart by colour and by mark."""

import io
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from PIL import Image

from bert_mlperf.report.logs import printable
from bert_mlperf.report.scaling import Point, Series
from bert_mlperf.report.scaling_rows import put, replacing

MARKS = "osD^vP*X<>"
LIGHT = {"back": "#ffffff", "front": "#1b1f24", "grid": "#d0d7de", "ideal": "#6e7781"}
DARK = {"back": "#161b22", "front": "#e6edf3", "grid": "#3d444d", "ideal": "#9198a1"}
LIGHT_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#595959", "#8F7200")
DARK_COLOURS = ("#56B4E9", "#E69F00", "#2BC49A", "#E39AC5", "#C9D1D9", "#F0E442")
WIDTH, PANEL_WIDTH, DOTS_PER_INCH = 8.4, 4.2, 110
PANELS = 2  # beside one another


class Charts:
    """The charts of some series in one set of colours."""

    def __init__(self, series: Sequence[Series], *, dark: bool) -> None:
        self._series = list(series)
        self._colours = DARK_COLOURS if dark else LIGHT_COLOURS
        self._theme = DARK if dark else LIGHT

    def draw(self) -> dict[str, bytes]:
        """PNG by name, in the order in which they are to be read; what would be empty is left out."""
        makers: dict[str, Callable[[], Figure | None]] = {
            "efficiency": self._efficiency,
            "split": self._split,
            "throughput": self._throughput,
            "time": self._time,
            "samples": self._samples,
            "runs": self._runs,
        }
        drawn = {}
        with self._style():
            for name, make in makers.items():
                if (figure := make()) is not None:
                    stream = io.BytesIO()
                    figure.savefig(stream, format="png", dpi=DOTS_PER_INCH)
                    drawn[name] = _few_colours(stream)
        return drawn

    @contextmanager
    def _style(self) -> Iterator[None]:
        front, back = self._theme["front"], self._theme["back"]
        texts = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
        faces = ("figure.facecolor", "axes.facecolor", "savefig.facecolor", "legend.facecolor")
        settings: Any = dict.fromkeys(texts, front) | dict.fromkeys(faces, back)
        settings |= {
            "grid.color": self._theme["grid"],
            "legend.edgecolor": self._theme["grid"],
            "text.parse_math": False,
        }
        with matplotlib.rc_context(settings), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing from")  # of a name in another script
            yield

    def _look(self, index: int) -> dict[str, Any]:
        return {"color": self._colours[index % len(self._colours)], "marker": MARKS[index % len(MARKS)]}

    def _scaling(self) -> list[tuple[int, Series]]:
        return [(i, item) for i, item in enumerate(self._series) if len(item.points) > 1]

    def _panels(self, number: int, height: float) -> tuple[Figure, list[Axes]]:
        """A figure with so many axes, two in a row, on one scale."""
        columns = min(PANELS, number)
        lines = -(-number // columns)
        figure = Figure(figsize=(max(WIDTH, PANEL_WIDTH * columns), height * lines + 0.5), layout="constrained")
        axes = figure.subplots(lines, columns, sharey=True, squeeze=False)
        for unused in axes.flat[number:]:
            unused.set_axis_off()
        return figure, list(axes.flat[:number])

    def _efficiency(self) -> Figure | None:
        scaled = [(i, s) for i, s in self._scaling() if any(p.steady_efficiency is not None for p in s.points)]
        if not scaled:
            return None
        figure, panels = self._panels(len(scaled), 3.0)
        least = 1.0
        for axes, (index, series) in zip(panels, scaled, strict=True):
            for name, style in (("steady", "-"), ("total", ":")):
                points = [(p, getattr(p, f"{name}_efficiency")) for p in series.points]
                known = [(devices(p), 100 * value) for p, value in points if value is not None]
                least = min([least, *(value / 100 for _, value in known)])
                axes.plot(
                    *_columns(known), style, label=name, lw=2 if name == "steady" else 1.6, ms=6, **self._look(index)
                )
            self._name_efficiencies(axes, series.points)
            axes.axhline(100, color=self._theme["ideal"], ls="--", lw=1)
            self._devices_axis(axes, series.points, batches=True)
            axes.set_title(_short(series.name, 44), fontsize=10)
            axes.set_ylabel("scaling efficiency (%)")
            axes.legend(loc="lower left", fontsize=9)
        panels[0].set_ylim(min(70.0, 100 * least - 8), 108)
        figure.suptitle("Throughput per accelerator, as a share of the baseline's", fontsize=12)
        return figure

    def _name_efficiencies(self, axes: Axes, points: Sequence[Point]) -> None:
        """The steady efficiency above each point, below it where the line comes down from both sides."""
        known = [(devices(p), p.steady_efficiency) for p in points if p.steady_efficiency is not None]
        for index, (place, value) in enumerate(known):
            beside = [known[k][1] for k in (index - 1, index + 1) if 0 <= k < len(known)]
            below = len(beside) == 2 and value < min(beside)
            look: Any = {"xytext": (0, -10), "va": "top"} if below else {"xytext": (0, 9), "va": "bottom"}
            text, at = f"{value:.1%}", (place, 100 * value)
            axes.annotate(text, at, textcoords="offset points", ha="center", fontsize=9, **look)

    def _split(self) -> Figure | None:
        scaled = [(i, s) for i, s in self._scaling() if split_points(s)]
        if not scaled:
            return None
        figure, panels = self._panels(len(scaled), 3.1)
        for axes, (index, series) in zip(panels, scaled, strict=True):
            points = split_points(series)
            places = range(len(points))
            colour = self._look(index)["color"]
            bars = (
                (
                    "ideal",
                    [p.ideal or 0.0 for p in points],
                    {"fill": False, "edgecolor": self._theme["ideal"], "ls": "--"},
                ),
                ("throughput", [p.speed_part or 0.0 for p in points], {"color": colour, "alpha": 0.5}),
                ("time to train", [p.time_speedup or 0.0 for p in points], {"color": colour}),
            )
            for number, (name, values, look) in enumerate(bars):
                drawn = axes.bar([x + 0.27 * (number - 1) for x in places], values, 0.25, label=name, **look)
                axes.bar_label(drawn, [f"{value:.3g}" for value in values], fontsize=8, padding=2)
            axes.set_xticks(list(places), [f"{devices(p):,}\nbatch {batch(p)}" for p in points], fontsize=9)
            axes.set_xlabel("accelerators")
            axes.set_ylabel("speed-up over the baseline (times)")
            axes.set_title(_short(f"{series.name}", 44), fontsize=10)
            axes.grid(axis="y", alpha=0.6)
            axes.margins(y=0.12)
            axes.set_xlim(-1, max(len(points), 2))
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", fontsize=9, ncols=3)
        figure.suptitle("What throughput gives, and what is left of it in the time to train", fontsize=12)
        return figure

    def _throughput(self) -> Figure | None:
        def steady(point: Point) -> float | None:
            return point.score.steady

        return self._by_devices("steady throughput (samples/s)", "Throughput", steady, slope=1)

    def _time(self) -> Figure | None:
        def minutes(point: Point) -> float | None:
            return point.score.seconds / 60 if math.isfinite(point.score.seconds) else None

        figure = self._by_devices("time to train (minutes)", "Time to train: score, 95% interval", minutes, slope=-1)
        if figure is None:
            return None
        axes = figure.axes[0]
        for index, series in enumerate(self._series):
            for point in series.points:
                low, high = point.score.confidence_s if len(point.score.runs) > 2 else (math.inf, math.inf)
                if math.isfinite(low) and math.isfinite(high):
                    axes.plot(
                        [devices(point)] * 2, [low / 60, high / 60], color=self._look(index)["color"], lw=5, alpha=0.4
                    )
        return figure

    def _by_devices(
        self, label: str, title: str, value: Callable[[Point], float | None], *, slope: int
    ) -> Figure | None:
        """All series over their accelerators on logarithmic axes, each with its ideal line from the baseline on."""
        figure = Figure(figsize=(WIDTH, 5.2), layout="constrained")
        axes = figure.subplots()
        drawn: list[Point] = []
        for index, series in enumerate(self._series):
            known = [(p, v) for p in series.points if (v := value(p)) is not None and v > 0]
            if not known:
                continue
            drawn += [p for p, _ in known]
            places = [(devices(p), v) for p, v in known]
            axes.plot(*_columns(places), "-", label=_short(series.name, 60), ms=8, lw=1.8, **self._look(index))
            (first, start), last = places[0], places[-1][0]
            if last > first:
                ideal = start * (last / first) ** slope
                axes.plot([first, last], [start, ideal], "--", color=self._theme["ideal"], lw=1, zorder=1)
        if not drawn:
            return None
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        self._devices_axis(axes, drawn, batches=False)
        _plain_decades(axes)
        axes.set_ylabel(label)
        axes.set_title(f"{title} (dashed: ideal)", fontsize=12)
        axes.grid(which="both", alpha=0.5)
        figure.legend(loc="outside lower center", fontsize=9, ncols=1 if len(self._series) > 2 else 2)
        return figure

    def _samples(self) -> Figure | None:
        figure = Figure(figsize=(WIDTH, 5.0), layout="constrained")
        axes = figure.subplots()
        sizes = set()
        for index, series in enumerate(self._series):
            known = [
                (size, samples / 1e6)
                for p in series.points
                if (size := p.score.system.global_batch_size) and (samples := p.score.samples_to_target)
            ]
            if known:
                sizes |= {size for size, _ in known}
                axes.plot(*_columns(sorted(known)), "-", label=_short(series.name, 60), ms=8, **self._look(index))
        if not sizes:
            return None
        axes.set_xscale("log", base=2)
        _ticks(axes, sorted(sizes), 1.25)
        axes.set_xlabel("global batch (samples)")
        axes.set_ylabel("samples to the target (millions)")
        axes.set_ylim(0, 1.12 * axes.get_ylim()[1])
        axes.set_title("What convergence costs: samples to the target, mean of the runs that count", fontsize=12)
        axes.grid(alpha=0.5)
        figure.legend(loc="outside lower center", fontsize=9, ncols=1 if len(self._series) > 2 else 2)
        return figure

    def _runs(self) -> Figure | None:
        entries = [(i, p) for i, s in enumerate(self._series) for p in s.points if math.isfinite(p.score.olympic_s)]
        if not entries:
            return None
        figure = Figure(figsize=(WIDTH, 1.6 + 0.42 * len(entries)), layout="constrained")
        axes = figure.subplots()
        for place, (index, point) in enumerate(entries):
            score = point.score
            times = [100 * (t / score.olympic_s - 1) for t in score.times_s if math.isfinite(t)]
            look = self._look(index)
            axes.plot(times, [place] * len(times), look["marker"], color=look["color"], mfc="none", ms=7, ls="none")
        axes.axvline(0, color=self._theme["ideal"], ls="--", lw=1)
        names = [f"{_short(p.score.system.submitter, 14)} {devices(p):,} x, batch {batch(p)}" for _, p in entries]
        axes.set_yticks(range(len(entries)), names, fontsize=9)
        axes.invert_yaxis()
        axes.set_xlabel("time of a run, against the olympic mean (%)")
        axes.set_title("The runs: how much is luck", fontsize=12)
        axes.grid(axis="x", alpha=0.5)
        return figure

    def _devices_axis(self, axes: Axes, points: Sequence[Point], *, batches: bool) -> None:
        names: dict[int, str] = {}
        for point in points:
            names.setdefault(devices(point), f"{devices(point):,}" + (f"\nbatch {batch(point)}" if batches else ""))
        axes.set_xscale("log", base=2)
        _ticks(axes, sorted(names), 1.5 if batches else 1.3)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: names.get(round(value), "")))
        axes.set_xlabel("accelerators")
        axes.margins(x=0.15)


def draw_charts(series: Sequence[Series], folder: Path, *, dark: bool = False) -> list[Path]:
    """Writes <name>.png for every chart into a folder, each whole or not at all."""
    paths = []
    for name, content in Charts(series, dark=dark).draw().items():
        path = folder / f"{name}.png"
        replacing(path).write_bytes(content)
        paths.append(put(path))
    return paths


def devices(point: Point) -> int:
    """Accelerators of a system, which a series always knows."""
    return point.score.system.accelerators or 1


def split_points(series: Series) -> list[Point]:
    """Systems beside the baseline whose speed-up is known."""
    return [p for p in series.points if p.score is not p.baseline and p.time_speedup is not None and p.speed_part]


def batch(point: Point) -> str:
    size = point.score.system.global_batch_size
    return "-" if size is None else f"{size:,}"


def _few_colours(stream: io.BytesIO) -> bytes:
    """A PNG with a palette: a third of the size, and no difference to be seen."""
    smaller = io.BytesIO()
    Image.open(stream).convert("RGB").quantize(128, dither=Image.Dither.NONE).save(smaller, "png", optimize=True)
    return smaller.getvalue()


def _columns(places: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in places], [y for _, y in places]


def _ticks(axes: Axes, places: Sequence[int], ratio: float) -> None:
    """Ticks at the places that are far enough apart to be written beside one another."""
    kept: list[int] = []
    for place in places:
        if not kept or place >= kept[-1] * ratio:
            kept.append(place)
    axes.xaxis.set_major_locator(FixedLocator(kept))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def _plain_decades(axes: Axes) -> None:
    """Numbers on a logarithmic axis as they are written: 1,000 and not a power; between decades 2 and 5."""

    def text(value: float, _: object) -> str:
        digit = round(value / 10 ** math.floor(math.log10(value) + 1e-9))
        return f"{value:,.10g}" if digit in (1, 2, 5) else ""

    axes.yaxis.set_major_formatter(FuncFormatter(text))
    axes.yaxis.set_minor_formatter(FuncFormatter(text))


def _short(text: str, length: int) -> str:
    text = printable(text)
    return text if len(text) <= length else f"{text[: length - 3]}..."
