"""Estimators of KL(policy || reference) from one sampled token each (Schulman 2020)."""

from __future__ import annotations

import torch
from torch import Tensor

KL_ESTIMATORS = ("k1", "k2", "k3")


def kl_penalty(logprob: Tensor, reference_logprob: Tensor, estimator: str) -> Tensor:
    """[T] KL terms, with d = logprob - reference_logprob.

    k1 = d: unbiased value, high variance, its gradient has mean 0 as a loss.
    k2 = d^2 / 2: biased value, its gradient is that of the KL on-policy.
    k3 = exp(-d) - 1 + d: unbiased value, never negative (GRPO's choice, arXiv 2402.03300, eq. 4).

    Raises:
        ValueError: another estimator's name.
    """
    difference = logprob - reference_logprob
    if estimator == "k1":
        return difference
    if estimator == "k2":
        return difference.square() / 2
    if estimator == "k3":
        return torch.expm1(-difference) + difference
    raise ValueError(f"objective.kl is {estimator!r}, it must be one of {', '.join(KL_ESTIMATORS)}")
