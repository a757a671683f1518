"""Records one step of a run, and the forward of the step behind it, under which its weights are gathered."""

from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

from bert_mlperf.report.timeline import Span, draw_timeline, write_trace
from bert_mlperf.train.step import TrainState


@dataclass
class StepTrace:
    """Writes trace.json and timeline.png of step `step` (0-based; None: of no step) into `folder`, from rank 0."""

    step: int | None
    folder: Path

    def before(self, state: TrainState) -> None:
        """Called before every step."""
        if state.step == self.step:
            state.recorder.start()

    def after(self, state: TrainState) -> None:
        """Called after every step; every rank hands in what it recorded."""
        if self.step is None or state.step != self.step + 2:
            return
        own = [Span(state.control.rank, s.lane, s.name, s.start, s.end) for s in state.recorder.stop()]
        everyone: list[list[Span]] = [own]
        if state.control.world_size > 1:
            everyone = [[] for _ in range(state.control.world_size)]
            dist.all_gather_object(everyone, own)
        if state.control.rank == 0:
            spans = [span for of_rank in everyone for span in of_rank]
            write_trace(self.folder, spans)
            draw_timeline(self.folder, spans, title=f"step {self.step} and forward of step {self.step + 1}")
