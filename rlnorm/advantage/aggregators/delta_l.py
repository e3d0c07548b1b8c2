"""Delta-L normalization: unbiased up to a constant, and of small variance."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rlnorm.advantage.interfaces import Aggregator
from rlnorm.advantage.registry import AGGREGATORS
from rlnorm.advantage.segments import Segments


@AGGREGATORS.register("delta_l")
@dataclass(frozen=True)
class DeltaL(Aggregator):
    """x_i = L_i^-alpha / (M sum_j L_j^-alpha) over the whole step; He et al. 2025,
    arXiv 2509.07558. [N'] -> [N'].

    The x_i sum to 1 / M whatever the lengths, so the gradient's expectation is that of Dr. GRPO
    for every alpha. Where an episode's gradient has variance proportional to its length,
    alpha = 1 has the least variance, and alpha = 0 is `seq_mean_token_sum`.

    Attributes:
        alpha: 0 to 1; the authors use 0.75, and 1 for CountDown.
        norm_length: M in tokens; None is the longest response allowed.

    Empty responses do not count (the official code divides by zero there).
    """

    alpha: float = 0.75
    norm_length: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"aggregator.alpha is {self.alpha}, it must be from 0 to 1")
        if self.norm_length is not None and self.norm_length <= 0:
            raise ValueError(
                f"aggregator.norm_length is {self.norm_length}, it must be above 0 tokens"
            )

    def __call__(self, length: Tensor, group: Segments) -> Tensor:
        assert self.norm_length is not None
        share = length.pow(-self.alpha)
        return share / (self.norm_length * share.sum())
