"""Mean over episodes of the mean over tokens (GRPO)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rlnorm.advantage.interfaces import Aggregator
from rlnorm.advantage.registry import AGGREGATORS
from rlnorm.advantage.segments import Segments


@AGGREGATORS.register("seq_mean_token_mean")
@dataclass(frozen=True)
class SeqMeanTokenMean(Aggregator):
    """x_i = 1 / (N L_i); Shao et al. 2024 (GRPO), arXiv 2402.03300, equation 3.

    Every episode counts the same; a token of a long response weighs less.
    """

    def __call__(self, length: Tensor, group: Segments) -> Tensor:
        return 1.0 / (length.shape[0] * length)
