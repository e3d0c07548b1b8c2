"""BNPO: the success rate's own Beta density as the normalizer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rlnorm.advantage.batch import Samples
from rlnorm.advantage.interfaces import Normalizer
from rlnorm.advantage.registry import NORMALIZERS

SMALLEST_VARIANCE = 1e-12


@NORMALIZERS.register("bnpo")
@dataclass(frozen=True)
class BNPO(Normalizer):
    """A_i = (s_i - p) / f(p; alpha, beta); Xiao, Zhang, Cao 2025, arXiv 2506.02864. [M] -> [M].

    s is the reward scaled to [0, 1], p its mean over the group, f the Beta density. With mu and
    v the mean and the variance (n - 1) of p over the groups, by the method of moments

        c = mu (1 - mu) / v - 1,    a = c mu,    b = c (1 - mu)      (p is about Beta(a, b))
        alpha = max(1, 1 + a / 3),  beta = max(1, 1 + b / 3)         (least gradient variance)

    alpha = beta = 1 is REINFORCE with the group's mean as baseline (Dr. GRPO's advantage);
    alpha = beta = 3/2 is GRPO with the population std, times pi / 8. Nothing is kept from step
    to step.

    Attributes:
        min_value, max_value: the rewards' range. One outside is a ValueError that names the
            episode; split such rewards with `decomposed`.
        max_weight: bound of 1 / f, which explodes far from the bulk of a narrow distribution:
            31 prompts at p = 1/2 and one at 1/16 give 1 / f = 3742 there.

    Groups with fewer than two members are left out of the moments. alpha = beta = 1 where the
    moments fix no density: variance of p at most 1e-12, mu 0 or 1, or fewer than two groups.
    Groups without signal give exactly 0.
    """

    min_value: float = 0.0
    max_value: float = 1.0
    max_weight: float = 1e6

    def __post_init__(self) -> None:
        if not self.min_value < self.max_value:
            raise ValueError(
                f"normalizer.min_value is {self.min_value}, it must be below max_value, "
                f"{self.max_value}"
            )
        if not self.max_weight > 0:
            raise ValueError(f"normalizer.max_weight is {self.max_weight}, it must be above 0")

    def __call__(self, samples: Samples) -> Tensor:
        self._check(samples)
        group = samples.group
        success = (samples.reward - self.min_value) / (self.max_value - self.min_value)
        rate = group.mean(success)
        alpha, beta = beta_normalizer(rate[group.size > 1])
        log_density = (
            torch.special.xlogy(alpha - 1, rate)
            + torch.special.xlog1py(beta - 1, -rate)
            + torch.lgamma(alpha + beta)
            - torch.lgamma(alpha)
            - torch.lgamma(beta)
        )
        weight = (-log_density).exp().clamp(max=self.max_weight)
        weight = weight.masked_fill(group.without_signal(success), 0.0)
        return group.spread(weight) * (success - group.spread(rate))

    def _check(self, samples: Samples) -> None:
        low, high = samples.reward.aminmax()
        if low < self.min_value or high > self.max_value:
            wrong = (samples.reward < self.min_value) | (samples.reward > self.max_value)
            first = int(wrong.nonzero()[0])
            raise ValueError(
                f"bnpo: the reward of episode {int(samples.row[first])} is "
                f"{float(samples.reward[first])}, it must be from min_value {self.min_value:g} "
                f"to max_value {self.max_value:g}"
            )


def beta_normalizer(rate: Tensor) -> tuple[Tensor, Tensor]:
    """Success rates [K] of the groups -> (alpha, beta) of the density that normalizes."""
    one = rate.new_ones(())
    if rate.shape[0] < 2:
        return one, one
    mean = rate.mean()
    variance = rate.var(correction=1)
    if variance <= SMALLEST_VARIANCE or mean <= 0 or mean >= 1:
        return one, one
    concentration = mean * (1 - mean) / variance - 1
    alpha = 1 + concentration * mean / 3
    beta = 1 + concentration * (1 - mean) / 3
    return alpha.clamp(min=1.0), beta.clamp(min=1.0)
