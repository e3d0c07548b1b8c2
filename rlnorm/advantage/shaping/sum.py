"""Weighted sum of named rewards."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from rlnorm.advantage.batch import RewardBatch
from rlnorm.advantage.interfaces import Shaped, Shaping
from rlnorm.advantage.registry import SHAPINGS


@SHAPINGS.register("sum")
@dataclass(frozen=True)
class Sum(Shaping):
    """r_i = sum_k w_k r_ik over the named rewards; [N].

    Attributes:
        weights: name -> factor. Empty (the default): 1 for every reward of the batch.

    An episode is unscored if any reward with a weight is missing (NaN or infinite). A weight
    for a reward that the batch does not have is refused (ValueError).
    """

    weights: dict[str, float] = field(default_factory=dict)

    @property
    def required_rewards(self) -> tuple[str, ...] | None:
        return tuple(self.weights) or None

    def __call__(self, batch: RewardBatch, shaped: Shaped | None) -> Shaped:
        weights = self.weights or dict.fromkeys(batch.rewards, 1.0)
        total = torch.zeros(batch.size, dtype=batch.statistics_dtype, device=batch.device)
        for name, weight in weights.items():
            total = total + weight * batch.reward(name, f"shaping.weights.{name}")
        return Shaped(total)
