"""Dr. GRPO: GRPO without the division by the standard deviation."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rlnorm.advantage.batch import Samples
from rlnorm.advantage.interfaces import Normalizer
from rlnorm.advantage.normalizers.grpo import GRPO
from rlnorm.advantage.registry import NORMALIZERS


@NORMALIZERS.register("dr_grpo")
@dataclass(frozen=True)
class DrGRPO(Normalizer):
    """A_i = r_i - mean of the group; Liu et al. 2025, arXiv 2503.20783. [M] -> [M].

    The paper also sums over tokens and divides by a constant: that half is the aggregator
    `seq_mean_token_sum`. Groups without signal give exactly 0.
    """

    def __call__(self, samples: Samples) -> Tensor:
        return GRPO(mean="group", std="none")(samples)
