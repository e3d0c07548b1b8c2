"""Credit of step rewards: each step's own reward, or its return to go."""

from __future__ import annotations

import torch
from torch import Tensor

from rlnorm.advantage.batch import StepOrder


def return_to_go(reward: Tensor, steps: StepOrder, gamma: float) -> Tensor:
    """[S] step rewards (NaN: unscored) -> [S] sum over k >= t of gamma^(k - t) r_k.

    The sum is over the scored steps of the same episode, k and t count all of its steps; an
    unscored step stays unscored (NaN). At gamma 1 this is GAE at gamma = lambda = 1 without its
    value baseline, which the authors of ReNorm train with.

    A suffix scan of log2(longest episode) passes. Unlike a difference of cumulative sums over
    the whole batch, equal step rewards give bitwise equal returns in every episode, which the
    rule "all equal is exactly 0" needs.
    """
    total = reward[steps.order].nan_to_num(nan=0.0)
    longest = int(steps.remaining.max()) + 1 if total.numel() else 0
    reach = 1
    while reach < longest:
        later = torch.zeros_like(total)
        later[:-reach] = total[reach:]
        total = total + gamma**reach * later.masked_fill(steps.remaining < reach, 0.0)
        reach *= 2
    returns = torch.empty_like(total)
    returns[steps.order] = total
    return returns.masked_fill(reward.isnan(), torch.nan)
