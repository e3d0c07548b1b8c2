"""The learning rate as a function of the optimizer step: no state, nothing to restore."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class LearningRate:
    """Linear warm-up to `peak`, then constant, linear to 0 or half a cosine to 0.

    Attributes:
        peak: largest value.
        warmup: optimizer steps of warm-up.
        total: optimizer steps of the whole run.
        schedule: constant, linear or cosine.
    """

    peak: float
    warmup: int
    total: int
    schedule: str

    def at(self, step: int) -> float:
        """Learning rate of optimizer step `step`, counted from 1."""
        if step <= self.warmup:
            return self.peak * step / self.warmup
        done = min(1.0, (step - 1 - self.warmup) / max(1, self.total - self.warmup))
        if self.schedule == "linear":
            return self.peak * (1.0 - done)
        if self.schedule == "cosine":
            return self.peak * 0.5 * (1.0 + math.cos(math.pi * done))
        return self.peak
