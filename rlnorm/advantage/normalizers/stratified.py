"""Stratified GRPO: standardized inside strata of the prompt's group (SAN)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from rlnorm.advantage.batch import Samples
from rlnorm.advantage.interfaces import Normalizer
from rlnorm.advantage.normalizers.grpo import GRPO
from rlnorm.advantage.registry import NORMALIZERS


@NORMALIZERS.register("stratified")
@dataclass(frozen=True)
class Stratified(Normalizer):
    """A = alpha A_SAN + (1 - alpha) A_GRPO; arXiv 2510.06214. [M] -> [M].

    A_SAN = (r - mean) / (std + eps) inside (group, stratum), A_GRPO the same inside the whole
    group. GRPO compares episodes across strata, and carries (mean of the stratum - mean of the
    group) / std as a bias that is one constant per stratum; SAN is rid of it.

    Attributes:
        alpha: 1 is pure SAN, 0 is GRPO.
        eps: added to the stds.
        ddof: 1 divides the squares by n - 1, 0 by n.

    A stratum without signal, or of one member, gives exactly 0 in A_SAN (other trainers give
    NaN, or the raw reward). A batch without strata is refused (ValueError).
    """

    alpha: float = 0.8
    eps: float = 1e-6
    ddof: int = 1

    needs_strata: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"normalizer.alpha is {self.alpha}, it must be from 0 to 1")
        GRPO(ddof=self.ddof, eps=self.eps)  # refuses what it refuses

    @property
    def ignores_group_scale(self) -> bool:
        return True

    def __call__(self, samples: Samples) -> Tensor:
        if samples.stratum is None:
            raise ValueError(
                "normalizer 'stratified' needs RewardBatch.stratum, and this batch has none"
            )
        grpo = GRPO(ddof=self.ddof, eps=self.eps)
        inside = grpo(replace(samples, group=samples.stratum))
        return self.alpha * inside + (1 - self.alpha) * grpo(samples)
