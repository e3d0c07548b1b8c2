"""MaxRL: centred within the group and divided by its mean."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rlnorm.advantage.batch import Samples
from rlnorm.advantage.interfaces import Normalizer
from rlnorm.advantage.registry import NORMALIZERS


@NORMALIZERS.register("maxrl")
@dataclass(frozen=True)
class MaxRL(Normalizer):
    """A_i = (r_i - mean) / (mean + eps) over the group; arXiv 2602.02710. [M] -> [M].

    With binary rewards it approaches the gradient of log p (maximum likelihood) as the group
    grows: rare successes weigh 1 / p.

    Attributes:
        eps: added to the mean.

    Groups without signal give exactly 0. A negative reward is a ValueError that names the
    episode: the mean would not be a size.
    """

    eps: float = 1e-6

    def __post_init__(self) -> None:
        if not self.eps >= 0:
            raise ValueError(f"normalizer.eps is {self.eps}, it must be 0 or more")

    @property
    def ignores_group_scale(self) -> bool:
        return True

    def __call__(self, samples: Samples) -> Tensor:
        reward, group = samples.reward, samples.group
        negative = reward < 0
        if bool(negative.any()):
            first = int(negative.nonzero()[0])
            raise ValueError(
                f"maxrl: the reward of episode {int(samples.row[first])} is "
                f"{float(reward[first])}, it must be 0 or more"
            )
        mean = group.spread(group.mean(reward))
        advantage = (reward - mean) / (mean + self.eps)
        return advantage.masked_fill(group.spread(group.without_signal(reward)), 0.0)
