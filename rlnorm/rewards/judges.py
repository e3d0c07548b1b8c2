"""Names to judges of steps, and the environment's config section to a judge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlnorm.advantage.registry import Registry
from rlnorm.errors import UserError
from rlnorm.rewards.principle_judge import PrincipleJudge
from rlnorm.rewards.process import StepJudge
from rlnorm.rewards.rule_judge import RuleJudge

JUDGES = Registry("judge")
JUDGES.register("principle")(PrincipleJudge)
JUDGES.register("rules")(RuleJudge)


def build_judge(settings: Mapping[str, Any]) -> StepJudge:
    """The judge of environment.judge, {"name": ..., settings...}; UserError for a mistake in it."""
    if not isinstance(settings, Mapping) or "name" not in settings:
        # the value is not repeated: a mapping without a name may hold a key under any name
        wrong = "has no name" if isinstance(settings, Mapping) else "is no mapping"
        raise UserError(
            f"environment.judge: it {wrong}; set environment.judge.name to one of "
            f"{', '.join(JUDGES.names())}"
        )
    try:
        judge = JUDGES.build(settings)
    except ValueError as error:
        raise UserError(f"environment.judge: {str(error).removeprefix('judge.')}") from None
    if not isinstance(judge, StepJudge):
        raise UserError(
            f"environment.judge: name is {settings['name']!r}, which is no subclass of StepJudge"
        )
    return judge
