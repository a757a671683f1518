"""How systems of one submitter scale: throughput, time to train, and what of it is speed and what convergence.

A series holds the systems of one submitter with one kind of accelerator, from the smallest to the largest; its baseline
is the smallest, or the one that is asked for. With b the baseline, n the system, D devices, T throughput, S samples to
the target and t time to train: efficiency = (T_n / T_b) / (D_n / D_b), and t_b / t_n = (T_n / T_b) * (S_b / S_n), the
first factor being speed, the second convergence.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from bert_mlperf.errors import UserError
from bert_mlperf.report.score import Score

# Dense 16-bit tensor operations per second of one accelerator, by what its name holds; vendors' data sheets.
PEAK_TFLOPS: tuple[tuple[str, float], ...] = (
    (r"GB200", 2500.0),
    (r"\bB200|Blackwell", 2250.0),
    (r"H200|GH200|H100.*(SXM|HBM3)", 989.4),
    (r"H100.*PCIE", 756.0),
    (r"A100", 312.0),
    (r"\bA30\b", 165.0),
    (r"V100", 125.0),
    (r"MI300X", 1307.4),
)
TOKENS_PER_SAMPLE = 256  # mean of the Wikipedia samples: half of 512 is padding (arXiv 2107.02027)
LAYERS, HIDDEN, INTERMEDIATE, VOCABULARY = 24, 1024, 4096, 30522
PREDICTED_SHARE = 0.15  # of the tokens go through the masked-LM head


def model_flops(tokens: int = TOKENS_PER_SAMPLE) -> float:
    """Floating-point operations of BERT-Large's forward and backward on a sample of so many tokens, none recomputed."""
    layer = 8 * HIDDEN**2 + 4 * HIDDEN * INTERMEDIATE + 4 * tokens * HIDDEN  # of one token
    head = 2 * HIDDEN**2 + 2 * HIDDEN * VOCABULARY  # of one predicted token
    return 3.0 * tokens * (LAYERS * layer + PREDICTED_SHARE * head)


def peak_flops(accelerator: str) -> float | None:
    """Dense 16-bit operations per second of an accelerator by its name; None if it is not in the table."""
    name = accelerator.upper()
    return next((peak * 1e12 for pattern, peak in PEAK_TFLOPS if re.search(pattern.upper(), name)), None)


@dataclass(frozen=True)
class Point:
    """One system of a series, beside its baseline. None where a log or description does not say enough."""

    score: Score
    baseline: Score

    @property
    def ideal(self) -> float | None:
        """Devices over those of the baseline."""
        return _over(self.score.system.accelerators, self.baseline.system.accelerators)

    @property
    def steady_speedup(self) -> float | None:
        return _over(self.score.steady, self.baseline.steady)

    @property
    def total_speedup(self) -> float | None:
        return _over(self.score.total, self.baseline.total)

    @property
    def steady_efficiency(self) -> float | None:
        """A share of the ideal."""
        return _over(self.steady_speedup, self.ideal)

    @property
    def evenly_steady_efficiency(self) -> float | None:
        """`steady_efficiency` with evaluations taken as equally far apart."""
        return _over(_over(self.score.evenly_steady, self.baseline.evenly_steady), self.ideal)

    @property
    def total_efficiency(self) -> float | None:
        return _over(self.total_speedup, self.ideal)

    @property
    def time_speedup(self) -> float | None:
        """Of the time to train, not scaled by the RCP factor."""
        return _over(self.baseline.olympic_s, self.score.olympic_s)

    @property
    def speed_part(self) -> float | None:
        """What throughput contributes to time_speedup, over the counted runs."""
        return _over(self.score.counted_total, self.baseline.counted_total)

    @property
    def convergence_part(self) -> float | None:
        """What samples to the target contribute to time_speedup, over the counted runs; below 1 if they grow."""
        return _over(self.baseline.samples_to_target, self.score.samples_to_target)

    @property
    def steady_per_device(self) -> float | None:
        return _over(self.score.steady, self.score.system.accelerators)

    @property
    def mfu(self) -> float | None:
        """Model operations over the peak of the accelerators, at TOKENS_PER_SAMPLE; None where the peak is unknown."""
        peak = peak_flops(self.score.system.accelerator)
        speed = self.steady_per_device
        return None if peak is None or speed is None else speed * model_flops() / peak


@dataclass(frozen=True)
class Series:
    """Systems of one submitter with one kind of accelerator, ascending in devices."""

    submitter: str
    accelerator: str
    points: tuple[Point, ...]

    @property
    def name(self) -> str:
        return f"{self.submitter}, {self.accelerator}"

    @property
    def baseline(self) -> Score:
        return self.points[0].baseline


def scaling(scores: Sequence[Score], baseline: str | None = None) -> list[Series]:
    """The series of the systems, sorted by submitter. `baseline`: name of the system that all are compared with.

    UserError if no system, or more than one, has that name, or if a description does not say how many devices train.
    """
    for item in scores:
        if item.system.accelerators is None:
            place = item.system.place.description or item.system.place.folder
            raise UserError(
                f"{place}: number_of_nodes and accelerators_per_node are needed for a scaling report, and are not "
                "there as whole numbers above 0; write the system description (bert-mlperf system init)."
            )
    common = None if baseline is None else _named(scores, baseline)
    groups: dict[tuple[str, str], list[Score]] = {}
    for item in scores:
        groups.setdefault((item.system.submitter, kind_of(item.system.accelerator)), []).append(item)
    series = []
    for (submitter, accelerator), members in sorted(groups.items()):
        members.sort(key=lambda item: (item.system.accelerators or 0, item.system.nodes or 0, item.system.name))
        first = common or members[0]
        series.append(Series(submitter, accelerator, tuple(Point(item, first) for item in members)))
    return series


def kind_of(accelerator: str) -> str:
    """An accelerator's name without what differs between two descriptions of the same chip: vendor, power, memory."""
    for pattern in (r"GB200", r"GH200", r"B200", r"H200", r"H100", r"A100", r"A30\b", r"V100", r"MI300X"):
        if match := re.search(pattern, accelerator.upper()):
            form = re.search(r"PCIE|SXM", accelerator.upper())
            return f"{match[0]}-{form[0]}" if form else match[0]
    return accelerator


def _named(scores: Sequence[Score], name: str) -> Score:
    found = [item for item in scores if item.system.name == name]
    if len(found) == 1:
        return found[0]
    names = ", ".join(sorted({item.system.name for item in scores}))
    what = "no system" if not found else f"{len(found)} systems"
    raise UserError(f"--baseline {name}: {what} of this name among the given ones; there are {names}.")


def _over(a: float | None, b: float | None) -> float | None:
    """a / b; None where one is unknown or a run that did not converge makes it infinite."""
    return None if a is None or not b or not (math.isfinite(a) and math.isfinite(b)) else a / b
