"""Each named reward normalized by itself, then combined (BNPO's decomposition, GDPO)."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from rlnorm.advantage.batch import Samples
from rlnorm.advantage.interfaces import Normalizer
from rlnorm.advantage.normalizers.grpo import GRPO
from rlnorm.advantage.registry import NORMALIZERS


@NORMALIZERS.register("decomposed")
@dataclass(frozen=True)
class Decomposed(Normalizer):
    """A_i = sum_k w_k A_k(r_ik) over the K named rewards, divided by K for "mean". [M] -> [M].

    "mean" is the advantage decomposition of BNPO (arXiv 2506.02864), "sum" with `batch_norm`
    is GDPO (arXiv 2601.05242). It takes the named rewards themselves, so no shaping goes before.

    Attributes:
        inner: the normalizer of each reward, a mapping with its name and settings.
        weights: name -> w_k. Empty (the default): 1 for every reward of the batch.
        combine: "mean" or "sum".
        batch_norm: standardize the result over the batch's samples (n - 1). Then groups without
            signal are 0 only where the batch's mean is.
        eps: added to that standard deviation.

    An episode that lacks one of the rewards is unscored.
    """

    inner: dict[str, Any]
    weights: dict[str, float] = field(default_factory=dict)
    combine: Literal["mean", "sum"] = "mean"
    batch_norm: bool = False
    eps: float = 1e-6

    def __post_init__(self) -> None:
        if self.inner.get("name") == self.name:
            raise ValueError("normalizer.inner cannot be 'decomposed' itself")
        GRPO(eps=self.eps)  # refuses what it refuses
        _ = self.normalizer  # a mistake in `inner` shows here, not at the first batch

    @cached_property
    def normalizer(self) -> Normalizer:
        """The inner normalizer."""
        return NORMALIZERS.build(self.inner)

    @property
    def needs_strata(self) -> bool:  # type: ignore[override]
        return self.normalizer.needs_strata

    @property
    def needs_group(self) -> bool:
        return self.normalizer.needs_group

    @property
    def required_rewards(self) -> tuple[str, ...] | None:
        return tuple(self.weights) or None

    def __call__(self, samples: Samples) -> Tensor:
        total = torch.zeros_like(samples.reward)
        for name, reward in samples.named.items():
            advantage = self.normalizer(samples.with_reward(reward))
            total = total + self.weights.get(name, 1.0) * advantage
        if self.combine == "mean":
            total = total / len(samples.named)
        if self.batch_norm:
            total = GRPO(mean="batch", std="batch", eps=self.eps)(samples.with_reward(total))
        return total
