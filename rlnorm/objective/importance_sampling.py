"""Correction for tokens that were sampled by another engine, or another policy, than trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

# exp(20) is 5e8: no bound lies beyond it, and no sum of log ratios overflows below it
LARGEST_LOG_RATIO = 20.0


@dataclass(frozen=True)
class ImportanceSampling:
    """Truncated (Yao et al. 2025, TIS) or masked (IcePop, MIS) importance sampling.

    Attributes:
        level: "none": weight 1. "token": rho_t = exp(old_logprob - rollout_logprob).
            "sequence": rho = the product over the episode's trainable tokens, for all of them
            (not its geometric mean).
        cap: largest weight.
        mode: "truncate" cuts weights to [floor, cap]; "mask" makes those outside 0, and keeps
            their tokens in the objective's denominators.
        floor: smallest weight.

    The weight carries no gradient and multiplies the policy term only, not the KL term.

    Raises:
        ValueError: an unknown level or mode, or not 0 <= floor <= cap.
    """

    level: Literal["none", "token", "sequence"] = "none"
    cap: float = 2.0
    mode: Literal["truncate", "mask"] = "truncate"
    floor: float = 0.0

    def __post_init__(self) -> None:
        if self.level not in ("none", "token", "sequence"):
            raise ValueError(
                f"importance_sampling.level is {self.level!r}, it must be none, token or sequence"
            )
        if self.mode not in ("truncate", "mask"):
            raise ValueError(
                f"importance_sampling.mode is {self.mode!r}, it must be truncate or mask"
            )
        if not 0 <= self.floor <= self.cap or self.cap == 0:
            raise ValueError(
                f"importance_sampling.floor is {self.floor} and cap {self.cap}, it must be "
                "0 <= floor <= cap and cap above 0"
            )

    def __call__(self, old_logprob: Tensor, rollout_logprob: Tensor, episode: Tensor) -> Tensor:
        """[T] log-probs by learner and rollout engine, [T] episode index -> [T] weights."""
        if self.level == "none":
            return torch.ones_like(old_logprob)
        log_ratio = (old_logprob - rollout_logprob).detach()
        if self.level == "sequence":
            count = int(episode.max()) + 1 if episode.numel() else 0
            total = log_ratio.new_zeros(count).index_add_(0, episode, log_ratio)
            log_ratio = total[episode]
        ratio = log_ratio.clamp(max=LARGEST_LOG_RATIO).exp()
        if self.mode == "truncate":
            return ratio.clamp(self.floor, self.cap)
        return ratio.masked_fill((ratio < self.floor) | (ratio > self.cap), 0.0)
