"""Run with verl on the path, by test_verl.py: what its estimators give, as JSON on standard output.

In a process of its own, because verl's wheel also has a package named `tests`.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import torch
from omegaconf import OmegaConf
from verl.trainer.ppo.core_algos import get_adv_estimator_fn

CONFIG: dict[str, Any] = {
    "algorithm": {"adv_estimator": "rlnorm_bnpo", "gamma": 1.0},
    "actor_rollout_ref": {"actor": {"loss_agg_mode": "token-mean"}},
}


def main(asked: dict[str, Any]) -> dict[str, Any]:
    if asked["real"]:
        get_adv_estimator_fn("rlnorm_bnpo")  # registered by verl's plugins alone

    import rlnorm.integrations.verl as integration

    rewards = torch.tensor(asked["token_level_rewards"])
    mask = torch.tensor(asked["response_mask"])
    uid = np.array(asked["uid"], dtype=object)
    config = OmegaConf.create(CONFIG)

    def estimate(name: str, **kwargs: Any) -> torch.Tensor:
        # the call in verl.trainer.ppo.ray_trainer.compute_advantage
        given = {
            "token_level_rewards": rewards,
            "response_mask": mask,
            "config": config.algorithm,
            "index": uid,
        }
        advantages, returns = get_adv_estimator_fn(name)(**{**given, **kwargs})
        assert advantages.shape == returns.shape == mask.shape
        return advantages

    def refusal(action: Any) -> str:
        try:
            action()
        except ValueError as error:
            return str(error)
        return "not refused"

    integration.register(
        "mine", {"normalizer": {"name": "grpo", "mean": "batch"}, "aggregator": {"name": "delta_l"}}
    )
    config_of_another = OmegaConf.create(CONFIG)
    config_of_another.actor_rollout_ref.actor.loss_agg_mode = "seq-mean-token-sum"
    hero = {
        "shaping": [{"name": "hero", "sigma_bar": "ema"}],
        "normalizer": {"name": "dr_grpo"},
    }
    answer: dict[str, Any] = {
        "names": list(integration.NAMES),
        "ours": {name: estimate(f"rlnorm_{name}").tolist() for name in integration.NAMES},
        "mine": estimate("mine").tolist(),
        "refused": {
            "agg_mode": refusal(
                lambda: estimate("rlnorm_bnpo", config=config_of_another.algorithm)
            ),
            "state": refusal(lambda: integration.register("hero", hero)),
            "taken": refusal(lambda: integration.register("rlnorm_bnpo", "bnpo")),
            "unknown": refusal(lambda: integration.register("x", "bmpo")),
        },
    }
    if asked["real"]:
        answer |= real(asked, estimate, rewards, mask, uid, config)
    return answer


def real(
    asked: dict[str, Any],
    estimate: Any,
    rewards: torch.Tensor,
    mask: torch.Tensor,
    uid: np.ndarray,
    config: Any,
) -> dict[str, Any]:
    """What only verl itself can tell: its own estimators, its trainer's call, its loss."""
    import verl
    from verl import DataProto
    from verl.trainer.ppo.core_algos import compute_policy_loss_vanilla
    from verl.trainer.ppo.ray_trainer import compute_advantage
    from verl.workers.config import ActorConfig

    data = DataProto.from_dict(
        tensors={"token_level_rewards": rewards, "response_mask": mask},
        non_tensors={"uid": uid},
    )
    called = compute_advantage(data, adv_estimator="rlnorm_bnpo", config=config.algorithm)
    actor = ActorConfig(
        strategy="fsdp",
        rollout_n=4,
        ppo_micro_batch_size_per_gpu=4,
        loss_agg_mode=CONFIG["actor_rollout_ref"]["actor"]["loss_agg_mode"],
    )
    actor.global_batch_info.update(
        dp_size=1,
        batch_num_tokens=int(mask.sum()),
        global_batch_size=len(mask),
        loss_scale_factor=None,
    )
    gradients = {}
    for name in asked["loss_of"]:
        log_probs = torch.full(mask.shape, -1.0, requires_grad=True)
        loss, _ = compute_policy_loss_vanilla(
            old_log_prob=log_probs.detach(),
            log_prob=log_probs,
            advantages=estimate(f"rlnorm_{name}"),
            response_mask=mask,
            loss_agg_mode=actor.loss_agg_mode,
            config=actor,
        )
        loss.backward()
        assert log_probs.grad is not None
        gradients[name] = log_probs.grad.tolist()
    return {
        "version": verl.__version__,
        "theirs": {name: estimate(name).tolist() for name in asked["theirs"]},
        "called": called.batch["advantages"].tolist(),
        "gradients": gradients,
    }


if __name__ == "__main__":
    print(json.dumps(main(json.load(sys.stdin))))
