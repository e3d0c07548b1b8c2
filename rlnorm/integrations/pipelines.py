"""What the integrations share: a pipeline from what a user gives, and strata from a token mask.

No trainer is imported here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from rlnorm.advantage import AdvantagePipeline
from rlnorm.config_loading import load_advantage
from rlnorm.errors import UserError


def build_pipeline(
    advantage: str | Mapping[str, Any] | AdvantagePipeline, max_response_length: int
) -> AdvantagePipeline:
    """The pipeline for a trainer that scores whole responses.

    Args:
        advantage: a name of `configs/advantage` (such as "bnpo"), a YAML file, a mapping as
            `AdvantagePipeline.from_config` takes it, or a pipeline.
        max_response_length: tokens, for aggregators with a constant divisor.

    Raises:
        ValueError: no such name, wrong settings, or a pipeline of step rewards.
    """
    if isinstance(advantage, str):
        try:
            advantage = load_advantage(advantage)
        except UserError as error:
            raise ValueError(str(error)) from None
    if not isinstance(advantage, AdvantagePipeline):
        advantage = AdvantagePipeline.from_config(
            advantage, max_response_length=max_response_length
        )
    if advantage.per_step:
        raise ValueError(
            f"shaping {advantage.shapings[0].name!r} takes rewards of steps, and this trainer has "
            "one reward per response"
        )
    return advantage


def interruptions(trained: Tensor) -> Tensor:
    """How often somebody else (a tool, a search engine) spoke in the middle of each response.

    The stratum of Stratified GRPO (arXiv 2510.06214) where the environment counts nothing itself:
    with a search tool it is the number of searches after which the policy went on.

    Args:
        trained: [B, T] 1 where the policy sampled the token; 0 elsewhere, padding included.

    Returns:
        [B] integers, the number of runs of zeros that have a one before and after them.
    """
    sampled = trained > 0
    starts = sampled.clone()
    starts[:, 1:] &= ~sampled[:, :-1]
    return (starts.sum(1) - 1).clamp(min=0)
