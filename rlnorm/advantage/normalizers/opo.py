"""OPO: the length-weighted optimal baseline."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rlnorm.advantage.batch import Samples
from rlnorm.advantage.interfaces import Normalizer
from rlnorm.advantage.registry import NORMALIZERS


@NORMALIZERS.register("opo")
@dataclass(frozen=True)
class OPO(Normalizer):
    """A_i = r_i - sum_j L_j r_j / sum_j L_j over the group; Hao et al. 2025, arXiv 2505.23585.

    [M] -> [M]. The baseline of least variance where the squared norm of an episode's gradient
    grows with its length. Groups without signal, and groups without a token, give exactly 0.
    """

    def __call__(self, samples: Samples) -> Tensor:
        group = samples.group
        centered = group.centered(samples.reward)
        tokens = group.sum(samples.length)
        offset = group.sum(samples.length * centered) / tokens.clamp(min=1.0)
        silent = group.without_signal(samples.reward) | (tokens == 0)
        return (centered - group.spread(offset)).masked_fill(group.spread(silent), 0.0)
