"""Mean over all tokens of the step (DAPO)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rlnorm.advantage.interfaces import Aggregator
from rlnorm.advantage.registry import AGGREGATORS
from rlnorm.advantage.segments import Segments


@AGGREGATORS.register("token_mean")
@dataclass(frozen=True)
class TokenMean(Aggregator):
    """x_i = 1 / sum_j L_j over the whole step; Yu et al. 2025 (DAPO), arXiv 2503.14476.

    Every token counts the same, so long responses weigh more. The denominator is the whole
    step's, never a micro-batch's or one learner's. This, computed per micro-batch, is what TRL
    calls loss_type="bnpo"; it has nothing to do with BNPO.
    """

    def __call__(self, length: Tensor, group: Segments) -> Tensor:
        return torch.ones_like(length) / length.sum()
