"""Surrogates: what each token's weight multiplies. Pure functions of log-probs and weights."""

from __future__ import annotations

import torch
from torch import Tensor


def clipped_surrogate(
    logprob: Tensor, old_logprob: Tensor, weight: Tensor, clip_low: float, clip_high: float
) -> tuple[Tensor, Tensor]:
    """PPO's clipped ratio; Schulman et al. 2017, arXiv 1707.06347, equation 7.

    min(rho * w, clip(rho, 1 - clip_low, 1 + clip_high) * w), rho = exp(logprob - old_logprob).
    A clip_high above clip_low is DAPO's clip-higher (arXiv 2503.14476).

    Args:
        logprob: [T] of the policy, with gradient.
        old_logprob: [T] of the policy that is being improved, no gradient.
        weight: [T] signed token weights; their sign is the advantage's.

    Returns:
        [T] terms to be maximised, and [T] bools where the clip took the gradient away.
    """
    ratio = torch.exp(logprob - old_logprob)
    unclipped = ratio * weight
    clipped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * weight
    return torch.minimum(unclipped, clipped), (clipped < unclipped)
