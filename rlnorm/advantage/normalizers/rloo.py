"""RLOO: REINFORCE with a leave-one-out baseline."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rlnorm.advantage.batch import Samples
from rlnorm.advantage.interfaces import Normalizer
from rlnorm.advantage.normalizers.grpo import GRPO
from rlnorm.advantage.registry import NORMALIZERS


@NORMALIZERS.register("rloo")
@dataclass(frozen=True)
class RLOO(Normalizer):
    """A_i = r_i - mean of the others in the group; Ahmadian et al. 2024, arXiv 2402.14740.

    [M] -> [M]. A group of one has no others and gives 0, never the raw reward.
    """

    def __call__(self, samples: Samples) -> Tensor:
        return GRPO(mean="group", std="none", leave_one_out=True)(samples)
