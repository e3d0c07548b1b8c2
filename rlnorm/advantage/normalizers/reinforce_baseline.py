"""REINFORCE with a mean-reward baseline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from rlnorm.advantage.batch import Samples
from rlnorm.advantage.interfaces import Normalizer
from rlnorm.advantage.normalizers.grpo import GRPO
from rlnorm.advantage.registry import NORMALIZERS


@NORMALIZERS.register("reinforce_baseline")
@dataclass(frozen=True)
class ReinforceBaseline(Normalizer):
    """A_i = r_i - mean; Williams 1992. [M] -> [M].

    Attributes:
        baseline: the mean is the prompt's "group" or the whole "batch".

    A set whose rewards are all equal gives exactly 0.
    """

    baseline: Literal["group", "batch"] = "group"

    @property
    def needs_group(self) -> bool:
        return self.baseline == "group"

    def __call__(self, samples: Samples) -> Tensor:
        return GRPO(mean=self.baseline, std="none")(samples)
