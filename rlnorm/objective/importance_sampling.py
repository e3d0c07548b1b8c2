"""Correction for tokens that were sampled by another engine, or another policy, than trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor


@dataclass(frozen=True)
class ImportanceSampling:
    """Truncated importance sampling; Yao et al. 2025, and methods.md A 5.

    Attributes:
        level: "none": weight 1. "token": rho_t = exp(old_logprob - rollout_logprob).
            "sequence": rho = the product over the episode's trainable tokens, for all of them.
        cap: weights are cut at this value.

    The weight carries no gradient and multiplies the policy term only, not the KL term.
    """

    level: Literal["none", "token", "sequence"] = "none"
    cap: float = 2.0

    def __call__(self, old_logprob: Tensor, rollout_logprob: Tensor, episode: Tensor) -> Tensor:
        """[T] log-probs by learner and rollout engine, [T] episode index -> [T] weights."""
        if self.level == "none":
            return torch.ones_like(old_logprob)
        log_ratio = (old_logprob - rollout_logprob).detach()
        if self.level == "sequence":
            count = int(episode.max()) + 1 if episode.numel() else 0
            total = log_ratio.new_zeros(count).index_add_(0, episode, log_ratio)
            log_ratio = total[episode]
        # exp of a large sum overflows; beyond the cap the value does not matter
        return log_ratio.clamp(max=20.0).exp().clamp(max=self.cap)
