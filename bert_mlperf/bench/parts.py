"""What a step without overlap is made of, and what it would take if communication were hidden: pure functions.

    forward | backward of some layers | reduce 0 | backward of more layers | reduce 1 | ... | update | gather n ... 0

Without overlap a bucket is reduced inside the span of backward, as soon as its gradients are there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from bert_mlperf.report.timeline import Span


@dataclass(frozen=True)
class Parts:
    """Seconds of one step of one rank, without overlap."""

    forward: float
    backward: float  # without the reductions inside
    reduce: float
    update: float
    gather: float
    other: float  # the rest of the step
    last_reduced: float  # backward and reduction together if each bucket is reduced as soon as it can be

    @property
    def step(self) -> float:
        return self.forward + self.backward + self.reduce + self.update + self.gather + self.other

    @property
    def ideal(self) -> float:
        """The step if communication could begin at once: it hides under compute, or compute under it."""
        return max(self.forward, self.gather) + max(self.backward, self.reduce) + self.update + self.other

    @property
    def scheduled(self) -> float:
        """The same, but a bucket waits for its gradients and for the bucket before it."""
        return max(self.forward, self.gather) + self.last_reduced + self.update + self.other


def parts_of_steps(spans: Sequence[Span], starts: Sequence[float]) -> list[Parts]:
    """The parts of each step without overlap; step i lasts from `starts[i]` to `starts[i + 1]`."""
    return [_parts([s for s in spans if start <= s.start < end], end - start) for start, end in pairwise(starts)]


def seconds_of(spans: Sequence[Span], kind: str) -> float:
    """How long all spans of a kind ("forward", "reduce", ...) took together."""
    return sum(s.end - s.start for s in spans if s.name.split()[0] == kind)


def _parts(spans: Sequence[Span], step: float) -> Parts:
    forward, reduce, update, gather = (seconds_of(spans, kind) for kind in ("forward", "reduce", "update", "gather"))
    whole = [s for s in spans if s.name == "backward"]
    reductions = sorted((s for s in spans if s.lane == "reduce"), key=lambda s: s.start)
    inside = sum(r.end - r.start for r in reductions if any(b.start <= r.start < b.end for b in whole))
    backward = seconds_of(spans, "backward") - inside
    return Parts(
        forward=forward,
        backward=backward,
        reduce=reduce,
        update=update,
        gather=gather,
        other=step - forward - backward - reduce - update - gather,
        last_reduced=_last_reduced(whole[0].start, backward, reductions),
    )


def _last_reduced(begin: float, backward: float, reductions: Sequence[Span]) -> float:
    """Seconds from the begin of backward to the end of the last reduction, if they were beside it."""
    end, before = 0.0, 0.0  # of the lane; what the reductions so far took
    for span in reductions:
        ready = span.start - begin - before
        end = max(end, ready) + span.end - span.start
        before += span.end - span.start
    return max(end, backward)
