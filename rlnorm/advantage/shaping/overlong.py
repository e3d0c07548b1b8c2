"""DAPO's soft punishment of overlong responses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from rlnorm.advantage.batch import RewardBatch
from rlnorm.advantage.interfaces import Shaped, Shaping
from rlnorm.advantage.registry import SHAPINGS


@SHAPINGS.register("overlong")
@dataclass(frozen=True)
class Overlong(Shaping):
    """Adds factor * R_len; Yu et al. 2025 (DAPO), arXiv 2503.14476, equation 13. [N] -> [N].

        R_len = 0 for L <= max_length - cache, (max_length - cache - L) / cache, at least -1

    L is the number of trainable tokens. With step rewards it is added to the episode's last
    step, where the outcome is.

    Attributes:
        max_length: tokens of the longest response (the paper: 20480).
        cache: tokens before it in which the punishment grows (the paper: 4096).
        factor: size of the whole punishment.
    """

    max_length: int
    cache: int
    factor: float = 1.0

    starts_chain: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 < self.cache <= self.max_length:
            raise ValueError(
                f"shaping.cache is {self.cache}, it must be above 0 and at most max_length, "
                f"{self.max_length}"
            )

    def __call__(self, batch: RewardBatch, shaped: Shaped | None) -> Shaped:
        assert shaped is not None
        length = batch.length.to(shaped.reward.dtype)
        punishment = ((self.max_length - self.cache - length) / self.cache).clamp(-1.0, 0.0)
        if shaped.per_step:
            assert batch.step_episode is not None
            punishment = punishment[batch.step_episode] * batch.steps.last
        return replace(shaped, reward=shaped.reward + self.factor * punishment)
