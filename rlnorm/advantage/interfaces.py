"""The three stages' interfaces, which every method of that kind subclasses.

Only the abstract classes and the type that passes between shaping stages live here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from rlnorm.advantage.batch import RewardBatch, Samples
from rlnorm.advantage.segments import Segments


@dataclass(frozen=True)
class Shaped:
    """What passes from one shaping to the next.

    Attributes:
        reward: [N] episode rewards, or [S] step rewards when `per_step`; NaN is unscored.
        per_step: whether the samples are steps.
        scale: [N] or [S] factor on the advantage after the normalizer, or None.
        gamma: discount of later step rewards, where credit is "return_to_go".
    """

    reward: Tensor
    per_step: bool = False
    scale: Tensor | None = None
    gamma: float = 1.0


class Stage(ABC):  # noqa: B024  (a base of abstract classes)
    """Anything the pipeline holds. `name` is set by the registry."""

    name: ClassVar[str] = ""

    @property
    def required_rewards(self) -> tuple[str, ...] | None:
        """Names of the rewards without which an episode is unscored; None: all there are."""
        return ()

    def state_dict(self) -> dict[str, Any]:
        """What must survive a restart; most methods have none."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        if state:
            raise ValueError(f"{self.name} has no state, it was given {sorted(state)}")


class Shaping(Stage):
    """Named rewards, or the previous shaping's result, to one reward per episode or step.

    Attributes:
        starts_chain: it takes named rewards, so it stands first; otherwise it changes the
            result of the shaping before it, and cannot stand first.
        per_step: its result is one reward per step.
    """

    starts_chain: ClassVar[bool] = True
    per_step: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, batch: RewardBatch, shaped: Shaped | None) -> Shaped:
        """`shaped` is None for the first shaping of the chain."""


class Normalizer(Stage):
    """Rewards to advantages.

    Attributes:
        needs_strata: it needs `RewardBatch.stratum`, from an environment that counts something.
    """

    needs_strata: ClassVar[bool] = False

    @property
    def needs_group(self) -> bool:
        """Whether it compares the samples of one prompt, so that one sample teaches nothing."""
        return True

    @property
    def ignores_group_scale(self) -> bool:
        """Whether multiplying all rewards of a group by one factor changes nothing (but eps)."""
        return False

    @abstractmethod
    def __call__(self, samples: Samples) -> Tensor:
        """Scored samples [M], at least one -> advantages [M] in the statistics dtype."""


class Aggregator(Stage):
    """Lengths to the factor x_i that turns an episode's advantage into its token weight."""

    @abstractmethod
    def __call__(self, length: Tensor, group: Segments) -> Tensor:
        """`length` [N'] > 0 of the episodes that count, at least one, their groups -> x [N']."""
