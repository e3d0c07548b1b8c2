"""REINFORCE++-baseline: centred within the group, then whitened over the batch's tokens."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rlnorm.advantage.batch import Samples
from rlnorm.advantage.normalizers.grpo import GRPO
from rlnorm.advantage.normalizers.reinforce_pp import ReinforcePP
from rlnorm.advantage.registry import NORMALIZERS


@NORMALIZERS.register("reinforce_pp_baseline")
@dataclass(frozen=True)
class ReinforcePPBaseline(ReinforcePP):
    """c_i = r_i - mean of the group, A_i = (c_i - mean) / sqrt(var + eps) over the batch's
    tokens; Hu et al. 2025, arXiv 2501.03262. [M] -> [M].

    Attributes:
        ddof, eps: as in `reinforce_pp`.

    A group without signal has c = 0, but not A = 0: the token-weighted mean of c over the batch
    is not 0 where lengths differ, and is subtracted from every episode, as the paper says.
    """

    @property
    def needs_group(self) -> bool:
        return True

    def __call__(self, samples: Samples) -> Tensor:
        centered = GRPO(mean="group", std="none")(samples)
        return super().__call__(samples.with_reward(centered))
