"""The whole objective of a micro-batch: surrogate, importance sampling and KL, as a plain sum."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rlnorm.objective.importance_sampling import ImportanceSampling
from rlnorm.objective.kl import KL_ESTIMATORS, kl_penalty
from rlnorm.objective.surrogate import (
    SURROGATES,
    cispo_surrogate,
    clipped_surrogate,
    gspo_surrogate,
    policy_gradient_surrogate,
)


@dataclass(frozen=True)
class TokenBatch:
    """The trainable tokens of a micro-batch, flat; every field is [T].

    Attributes:
        logprob: by the policy, with gradient.
        entropy: of the policy's distribution at the token, in nats, no gradient.
        old_logprob: by the policy before this step's first update; None: this is the step's
            only update, so the policy is its own old policy and the ratio is 1 by construction.
        rollout_logprob: by the rollout engine.
        reference_logprob: by the reference model, or None without a KL term.
        weight: advantage times aggregator factor.
        factor: aggregator factor, which weighs the KL term.
        episode: index of the token's episode within the micro-batch; an episode's trainable
            tokens are all in one micro-batch.
    """

    logprob: Tensor
    entropy: Tensor
    old_logprob: Tensor | None
    rollout_logprob: Tensor
    reference_logprob: Tensor | None
    weight: Tensor
    factor: Tensor
    episode: Tensor


@dataclass(frozen=True)
class Objective:
    """loss = sum_t -is_t * surrogate_t(weight_t) + kl_coef * factor_t * KL_t.

    Attributes:
        clip_low, clip_high: the ratio is kept in [1 - clip_low, 1 + clip_high].
        kl_coef: factor of the KL term; 0 needs no reference model.
        kl: its estimator, k1, k2 or k3.
        importance_sampling: correction for the gap between rollout and learner.
        surrogate: clipped (PPO, GRPO), gspo, cispo or policy_gradient; see `surrogate.py`.
        dual_clip: bound of clipped and gspo for negative weights, above 1; None: off.

    Raises:
        ValueError: an unknown surrogate or KL estimator, or a bound out of range.
    """

    clip_low: float = 0.2
    clip_high: float = 0.2
    kl_coef: float = 0.0
    kl: str = "k3"
    importance_sampling: ImportanceSampling = ImportanceSampling()
    surrogate: str = "clipped"
    dual_clip: float | None = None

    def __post_init__(self) -> None:
        if self.surrogate not in SURROGATES:
            raise ValueError(
                f"objective.surrogate is {self.surrogate!r}, it must be one of "
                f"{', '.join(SURROGATES)}"
            )
        if self.kl not in KL_ESTIMATORS:
            raise ValueError(
                f"objective.kl is {self.kl!r}, it must be one of {', '.join(KL_ESTIMATORS)}"
            )
        if self.dual_clip is not None and not self.dual_clip > 1:
            raise ValueError(f"objective.dual_clip is {self.dual_clip}, it must be above 1")

    def __call__(self, tokens: TokenBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Scalar loss, and sums over the tokens for the metrics (`*_max` are maxima)."""
        old = tokens.logprob.detach() if tokens.old_logprob is None else tokens.old_logprob
        terms, clipped = self._surrogate(tokens, old)
        correction = self.importance_sampling(old, tokens.rollout_logprob, tokens.episode)
        loss = -(correction * terms).sum()
        with torch.no_grad():
            gap = (old - tokens.rollout_logprob).abs()
            sums = {
                "tokens": torch.tensor(float(gap.numel()), device=gap.device),
                "entropy": tokens.entropy.sum(),
                "clip_frac": clipped.sum(),
                "ratio": torch.exp(tokens.logprob - old).sum(),
                "importance_weight": correction.sum(),
                "rollout_gap": gap.sum(),
                "rollout_gap_max": gap.max() if gap.numel() else gap.sum(),
            }
        if self.kl_coef > 0.0:
            assert tokens.reference_logprob is not None
            kl = kl_penalty(tokens.logprob, tokens.reference_logprob, self.kl)
            loss = loss + self.kl_coef * (tokens.factor * kl).sum()
            sums["kl"] = kl.detach().sum()
        return loss, sums

    def _surrogate(self, tokens: TokenBatch, old: Tensor) -> tuple[Tensor, Tensor]:
        logprob, weight = tokens.logprob, tokens.weight
        if self.surrogate == "policy_gradient":
            return policy_gradient_surrogate(logprob, weight)
        if self.surrogate == "cispo":
            return cispo_surrogate(logprob, old, weight, self.clip_low, self.clip_high)
        if self.surrogate == "gspo":
            return gspo_surrogate(
                logprob,
                old,
                weight,
                tokens.episode,
                self.clip_low,
                self.clip_high,
                self.dual_clip,
            )
        return clipped_surrogate(
            logprob, old, weight, self.clip_low, self.clip_high, self.dual_clip
        )
