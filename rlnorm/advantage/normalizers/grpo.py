"""GRPO and its family: mean and std as two independent settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from rlnorm.advantage.batch import Samples
from rlnorm.advantage.interfaces import Normalizer
from rlnorm.advantage.registry import NORMALIZERS
from rlnorm.advantage.segments import Segments

Level = Literal["none", "group", "batch"]


@NORMALIZERS.register("grpo")
@dataclass(frozen=True)
class GRPO(Normalizer):
    """A_i = (r_i - mean) / (std + eps); Shao et al. 2024, arXiv 2402.03300, section 4.1.2.

    [M] rewards -> [M] advantages.

    Attributes:
        mean: set whose mean is subtracted: the prompt's group, the whole batch, or none.
        std: set whose standard deviation divides. "none" with mean "group" is Dr. GRPO
            (arXiv 2503.20783); mean "group" with std "batch" is LitePPO (arXiv 2508.08221).
        ddof: 1 divides the squares by n - 1 (verl, TRL, OpenRLHF), 0 by n. The paper leaves it
            open; at 8 samples the two differ by 7 %.
        eps: added to the std. TRL uses 1e-4, verl 1e-6, OpenRLHF 1e-9.
        leave_one_out: subtract the mean of the *others* in the set (RLOO, arXiv 2402.14740).
            The std never leaves one out: that of identical others is 0, and advantages explode.

    A set whose rewards are all equal, or that has one member, gives exactly 0, be it the set of
    the mean or of the std. The std is of the raw rewards over its own set.
    """

    mean: Level = "group"
    std: Level = "group"
    ddof: int = 1
    eps: float = 1e-6
    leave_one_out: bool = False

    def __post_init__(self) -> None:
        if self.ddof not in (0, 1):
            raise ValueError(f"normalizer.ddof is {self.ddof}, it must be 0 or 1")
        if not self.eps >= 0:
            raise ValueError(f"normalizer.eps is {self.eps}, it must be 0 or more")
        if self.leave_one_out and self.mean == "none":
            raise ValueError("normalizer.leave_one_out needs normalizer.mean group or batch")

    @property
    def needs_group(self) -> bool:
        return "group" in (self.mean, self.std)

    @property
    def ignores_group_scale(self) -> bool:
        return self.std == "group"

    def __call__(self, samples: Samples) -> Tensor:
        reward = samples.reward
        levels: dict[Level, Segments] = {
            level: _level(samples, level) for level in (self.mean, self.std) if level != "none"
        }
        centered = {level: segments.centered(reward) for level, segments in levels.items()}
        # what an advantage is multiplied by, per segment: 0 exactly where there is no signal
        factor = {
            level: (~segments.without_signal(reward)).to(reward.dtype)
            for level, segments in levels.items()
        }
        if self.leave_one_out:
            # r - mean of the others = n / (n - 1) * (r - mean of all)
            size = levels[self.mean].size
            factor[self.mean] = factor[self.mean] * (size / (size - 1).clamp(min=1))
        if self.std != "none":
            deviation = levels[self.std].std_of_centered(centered[self.std], self.ddof)
            factor[self.std] = factor[self.std] / (deviation + self.eps).where(
                factor[self.std] > 0, 1.0
            )
        advantage = centered.get(self.mean, reward)
        for level, segments in levels.items():
            advantage = advantage * segments.spread(factor[level])
        return advantage


def _level(samples: Samples, level: Level) -> Segments:
    return samples.group if level == "group" else Segments.whole(samples.reward)
