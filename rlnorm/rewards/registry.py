"""Names to rewards, and the environment's config section to reward objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlnorm.advantage.registry import Registry
from rlnorm.errors import UserError
from rlnorm.rewards.exact_match import ExactMatch
from rlnorm.rewards.interface import Reward
from rlnorm.rewards.math import Math
from rlnorm.rewards.qa import QAF1, QAExactMatch

REWARDS = Registry("reward")
REWARDS.register("exact_match")(ExactMatch)
REWARDS.register("math")(Math)
REWARDS.register("qa_exact_match")(QAExactMatch)
REWARDS.register("qa_f1")(QAF1)


def build_rewards(section: Mapping[str, Any]) -> dict[str, Reward]:
    """Reward objects from environment.rewards; UserError for a mistake in it."""
    rewards: dict[str, Reward] = {}
    for name, settings in section.items():
        try:
            rewards[name] = REWARDS.build(settings)
        except ValueError as error:
            for built in rewards.values():
                built.close()
            raise UserError(f"environment.rewards.{name}: {error}") from None
    return rewards
