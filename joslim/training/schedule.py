"""Learning-rate schedules. A decay maps progress in [0, 1) to a factor of the highest rate."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from joslim.errors import UserError, unknown

SCHEDULES: dict[str, Callable[[float], float]] = {
    "cosine": lambda progress: 0.5 * (1 + math.cos(math.pi * progress)),
    "linear": lambda progress: 1 - progress,
    "constant": lambda progress: 1.0,
}


@dataclass(frozen=True)
class Schedule:
    """A linear rise from zero over the share `warmup` of the training, then a decay."""

    decay: str = "cosine"
    warmup: float = 0.0
    highest: float = 1.0

    def __post_init__(self) -> None:
        if self.decay not in SCHEDULES:
            raise unknown("schedule", str(self.decay), SCHEDULES)
        if not 0 <= self.warmup < 1:
            raise UserError(f"warmup: {self.warmup} is outside [0, 1), the share of the training")

    def __call__(self, step: int, total_steps: int) -> float:
        """Return the rate at this step. It is above 0 in the first step of a warm-up."""
        rising = self.warmup * total_steps
        if step < rising:
            return self.highest * (step + 1) / (rising + 1)
        return self.highest * SCHEDULES[self.decay]((step - rising) / (total_steps - rising))
