"""Every normalizer as an advantage estimator of verl.

Only the translation lives here: verl's token tensors into a `RewardBatch`, and the pipeline's
weights into what verl calls advantages. No formula. Importing this file registers the estimators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from omegaconf import OmegaConf
from verl.trainer.ppo.core_algos import register_adv_est

from rlnorm.advantage import AdvantagePipeline, RewardBatch
from rlnorm.integrations.pipelines import build_pipeline, interruptions

PREFIX = "rlnorm_"

# The names of `configs/advantage` that one reward per response is enough for.
NAMES = (
    "bnpo",
    "dapo",
    "delta_l",
    "dr_grpo",
    "grpo",
    "lite_ppo",
    "maxrl",
    "opo",
    "passk",
    "prompt_mean",
    "reinforce",
    "reinforce_baseline",
    "reinforce_pp",
    "reinforce_pp_baseline",
    "rloo",
    "stratified",
)

# How verl must average the loss over tokens; see `estimator`.
AGG_MODE = "token-mean"
AGG_MODE_KEY = "actor_rollout_ref.actor.loss_agg_mode"

Estimate = Callable[..., tuple[torch.Tensor, torch.Tensor]]


def estimator(advantage: str | Mapping[str, Any] | AdvantagePipeline) -> Estimate:
    """An advantage estimator as verl 0.9 calls it.

    What it returns is weight * T for every trained token, T being the trained tokens of the whole
    batch. verl's `loss_agg_mode: token-mean`, its default, divides the sum over a mini-batch by
    that mini-batch's tokens, so that the policy's loss is the plain sum of weight * surrogate
    when the batch is one mini-batch; when it is several, each is scaled to an estimate of the
    whole. verl's KL and entropy terms stay what they are. For a pipeline whose aggregator is
    `token_mean` the result is the advantage itself.

    Args:
        advantage: a name of `configs/advantage`, a YAML file, a mapping as
            `AdvantagePipeline.from_config` takes it, or a pipeline.

    Raises:
        ValueError: the pipeline keeps a state, which verl would not save in its checkpoints; and
            for everything that is wrong with its settings, in the first call at the latest.
    """

    def estimate(
        token_level_rewards: torch.Tensor,
        response_mask: torch.Tensor,
        config: Any = None,
        index: np.ndarray | None = None,
        **_: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """verl's arguments to `(advantages, returns)`.

        Args:
            token_level_rewards: [B, T] floats; their sum is the response's reward, NaN unscored.
            response_mask: [B, T] 1 for the tokens that the policy sampled.
            config: verl's `algorithm` section.
            index: [B] the prompt's uid, any type.

        Returns:
            [B, T] float32, twice the same (outcome rewards have no values to fit).

        Raises:
            ValueError: no `index`, or another `loss_agg_mode` in the config.
        """
        _check_agg_mode(config)
        if index is None:
            raise ValueError("rlnorm's estimators need verl's `uid` of each prompt")
        pipeline = build_pipeline(advantage, response_mask.shape[-1])
        group = np.unique(np.asarray(index), return_inverse=True)[1]
        length = response_mask.sum(-1).long()
        out = pipeline(
            RewardBatch(
                group=torch.as_tensor(group, device=response_mask.device),
                rewards={"reward": token_level_rewards.sum(-1)},
                length=length,
                stratum=interruptions(response_mask),
            )
        )
        advantages = (out.weight * length.sum())[:, None] * response_mask
        return advantages, advantages

    if any(_states(build_pipeline(advantage, 1))):
        raise ValueError(
            "this advantage pipeline keeps a state from step to step, which verl has no place for "
            "in its checkpoints"
        )
    return estimate


def register(name: str, advantage: str | Mapping[str, Any] | AdvantagePipeline) -> None:
    """Make `algorithm.adv_estimator=NAME` mean a pipeline; see `estimator`.

    Raises:
        ValueError: the name is taken, or the pipeline cannot be used.
    """
    register_adv_est(name)(estimator(advantage))


def _states(pipeline: AdvantagePipeline) -> list[Any]:
    state = pipeline.state_dict()
    return [*state["shaping"], state["normalizer"], state["aggregator"]]


def _check_agg_mode(config: Any) -> None:
    """Refuse a run whose loss would be divided in another way.

    verl hands over its `algorithm` section, and the setting is in another: it can be seen only
    where that section still hangs in the whole config, as it does in verl's trainer.
    """
    if not OmegaConf.is_config(config):
        return
    mode = OmegaConf.select(config, f"..{AGG_MODE_KEY}", throw_on_missing=False)
    if mode is not None and mode != AGG_MODE:
        raise ValueError(
            f"{AGG_MODE_KEY} is {mode!r}, but with an estimator of rlnorm it must be "
            f"{AGG_MODE!r}: how tokens are averaged is the pipeline's aggregator"
        )


for _name in NAMES:
    register(f"{PREFIX}{_name}", _name)
