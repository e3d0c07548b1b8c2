"""REINFORCE++: the batch whitened over its tokens."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rlnorm.advantage.batch import Samples
from rlnorm.advantage.interfaces import Normalizer
from rlnorm.advantage.registry import NORMALIZERS


@NORMALIZERS.register("reinforce_pp")
@dataclass(frozen=True)
class ReinforcePP(Normalizer):
    """A_i = (r_i - mean) / sqrt(var + eps) over the batch's tokens; Hu et al. 2025,
    arXiv 2501.03262. [M] -> [M].

    Episode i counts L_i times, as in verl's masked whitening. Its KL term is the objective's.

    Attributes:
        ddof: 1 divides the squares by the number of tokens - 1 (verl), 0 by it (OpenRLHF).
        eps: added to the variance, not the std.

    A batch whose tokens all have one reward, or that has one token or none, gives exactly 0.
    """

    ddof: int = 1
    eps: float = 1e-8

    def __post_init__(self) -> None:
        if self.ddof not in (0, 1):
            raise ValueError(f"normalizer.ddof is {self.ddof}, it must be 0 or 1")
        if not self.eps >= 0:
            raise ValueError(f"normalizer.eps is {self.eps}, it must be 0 or more")

    @property
    def needs_group(self) -> bool:
        return False

    def __call__(self, samples: Samples) -> Tensor:
        return whitened(samples.reward, samples.length, self.ddof, self.eps)


def whitened(value: Tensor, length: Tensor, ddof: int, eps: float) -> Tensor:
    """[M] values standardized as if each stood there length [M] times; 0 if those are equal."""
    counted = value[length > 0]
    tokens = length.sum()
    if counted.numel() == 0 or tokens <= ddof or counted.min() == counted.max():
        return value.new_zeros(value.shape)
    # in two steps, so that a large offset of all rewards costs no digits
    centered = value - counted.mean()
    centered = centered - (length * centered).sum() / tokens
    variance = (length * centered.square()).sum() / (tokens - ddof)
    return centered / (variance + eps).sqrt()
