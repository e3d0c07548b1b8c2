"""Sum over tokens divided by a constant (Dr. GRPO)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rlnorm.advantage.interfaces import Aggregator
from rlnorm.advantage.registry import AGGREGATORS
from rlnorm.advantage.segments import Segments


@AGGREGATORS.register("seq_mean_token_sum")
@dataclass(frozen=True)
class SeqMeanTokenSum(Aggregator):
    """x_i = 1 / (N M); Liu et al. 2025 (Dr. GRPO), arXiv 2503.20783.

    Attributes:
        norm_length: M in tokens; None is the longest response allowed.
    """

    norm_length: int | None = None

    def __post_init__(self) -> None:
        if self.norm_length is not None and self.norm_length <= 0:
            raise ValueError(
                f"aggregator.norm_length is {self.norm_length}, it must be above 0 tokens"
            )

    def __call__(self, length: Tensor, group: Segments) -> Tensor:
        assert self.norm_length is not None
        return torch.full_like(length, 1.0 / (length.shape[0] * self.norm_length))
