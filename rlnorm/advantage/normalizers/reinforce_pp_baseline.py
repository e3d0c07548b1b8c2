"""REINFORCE++-baseline: centred within the group, then whitened over the batch's tokens."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rlnorm.advantage.batch import Samples
from rlnorm.advantage.interfaces import Normalizer
from rlnorm.advantage.normalizers.grpo import GRPO
from rlnorm.advantage.normalizers.reinforce_pp import whitened
from rlnorm.advantage.registry import NORMALIZERS


@NORMALIZERS.register("reinforce_pp_baseline")
@dataclass(frozen=True)
class ReinforcePPBaseline(Normalizer):
    """c_i = r_i - mean of the group, A_i = (c_i - mean) / sqrt(var + eps) over the batch's
    tokens; Hu et al. 2025, arXiv 2501.03262. [M] -> [M].

    Attributes:
        ddof, eps: as in `reinforce_pp`.

    A group without signal has c = 0, but not A = 0: the token-weighted mean of c over the batch
    is not 0 where lengths differ, and is subtracted from every episode, as the paper says.
    """

    ddof: int = 1
    eps: float = 1e-8

    def __post_init__(self) -> None:
        if self.ddof not in (0, 1):
            raise ValueError(f"normalizer.ddof is {self.ddof}, it must be 0 or 1")
        if not self.eps >= 0:
            raise ValueError(f"normalizer.eps is {self.eps}, it must be 0 or more")

    def __call__(self, samples: Samples) -> Tensor:
        centered = GRPO(mean="group", std="none")(samples)
        return whitened(centered, samples.length, self.ddof, self.eps)
