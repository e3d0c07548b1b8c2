"""REINFORCE: the reward itself."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rlnorm.advantage.batch import Samples
from rlnorm.advantage.interfaces import Normalizer
from rlnorm.advantage.registry import NORMALIZERS


@NORMALIZERS.register("reinforce")
@dataclass(frozen=True)
class Reinforce(Normalizer):
    """A_i = r_i; Williams 1992. [M] -> [M]. Nothing is subtracted, so no set is ever silent."""

    @property
    def needs_group(self) -> bool:
        return False

    def __call__(self, samples: Samples) -> Tensor:
        return samples.reward
