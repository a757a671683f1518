"""Dynamic loss scale for fp16: the loss is multiplied by it so that small gradients do not vanish.

    a gradient that is not finite    the step is skipped, the scale halved, but not below FLOOR
    GROWTH_INTERVAL good steps       the scale is doubled, but not above CEILING

Everything stays on the device. After MOST_SKIPS skipped steps in a row the run is given up (`LossScale.skips_in_row`).
Start, growth and back-off are those of the published fp16 submissions.
"""

import torch
from torch import Tensor

START, FLOOR, CEILING = 4096.0, 1.0, 2.0**24
GROWTH_INTERVAL = 2000  # steps
MOST_SKIPS = 20  # in a row: from START to FLOOR it takes 12


class LossScale:
    """`value` (0-dimensional fp32) is the scale of the next step. Where it is not `dynamic` it is 1 and stays 1."""

    def __init__(self, device: torch.device, *, dynamic: bool) -> None:
        self.dynamic = dynamic
        self.value = torch.tensor(START if dynamic else 1.0, device=device)
        self.good_steps = torch.zeros((), dtype=torch.int64, device=device)  # since the scale was changed
        self.skips = torch.zeros((), dtype=torch.int64, device=device)  # of the run
        self.skips_in_row = torch.zeros((), dtype=torch.int64, device=device)

    def update(self, skipped: Tensor) -> None:
        """After each step: `skipped` (bool, 0-dimensional) tells whether its gradient was not finite."""
        if not self.dynamic:
            return
        self.skips += skipped
        self.skips_in_row.add_(1).mul_(skipped)
        self.good_steps.add_(1).mul_(~skipped)
        is_due = self.good_steps >= GROWTH_INTERVAL
        grown = torch.where(is_due, (self.value * 2).clamp(max=CEILING), self.value)
        self.value = torch.where(skipped, (self.value / 2).clamp(min=FLOOR), grown)
        self.good_steps.mul_(~is_due)

    def reset(self) -> None:
        """As at the start (after a warm-up)."""
        self.value.fill_(START if self.dynamic else 1.0)
        for count in (self.good_steps, self.skips, self.skips_in_row):
            count.zero_()
