"""The estimators that rlnorm registers in verl.

launch/test.sh installs verl into .venv/for-tests/verl, apart from everything else (see
tests/requirements-verl.txt). Where it is not there, a package with the two functions of verl's
registry as published in 0.9.1 takes its place, and what only verl can tell is skipped.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rlnorm.advantage import AdvantagePipeline, RewardBatch
from rlnorm.config_loading import load_advantage, shipped_configs

REPOSITORY = Path(__file__).resolve().parents[2]
REAL = REPOSITORY / ".venv/for-tests/verl"

REGISTRY = """
REGISTERED = {}

def register_adv_est(name):
    def decorator(fn):
        if name in REGISTERED and REGISTERED[name] != fn:
            raise ValueError(f"Adv estimator {name} has already been registered")
        REGISTERED[name] = fn
        return fn
    return decorator

def get_adv_estimator_fn(name):
    return REGISTERED[name]
"""

# verl's own name -> the one of configs/advantage that is the same
SAME = {
    "grpo": "dapo",
    "rloo": "rloo",
    "opo": "opo",
    "reinforce_plus_plus": "reinforce_pp",
    "reinforce_plus_plus_baseline": "reinforce_pp_baseline",
}
# they take more than one reward, or rewards of steps
NOT_OFFERED = {"hero", "renorm", "gdpo"}

GROUPS, SAMPLES, WIDTH = 4, 6, 9


def batch() -> dict[str, Any]:
    """Rewards of 0 and 1, mixed in every group, on the last token; responses with holes."""
    generator = torch.Generator().manual_seed(11)
    size = GROUPS * SAMPLES
    mask = torch.zeros(size, WIDTH)
    rewards = torch.zeros(size, WIDTH)
    for i in range(size):
        length = int(torch.randint(4, WIDTH + 1, (), generator=generator))
        mask[i, :length] = 1
        if i % 3 == 0:
            mask[i, 1] = 0
        right = (i // GROUPS) % 2 if i // GROUPS < 2 else torch.rand((), generator=generator) > 0.7
        rewards[i, length - 1] = float(right)
    return {
        "token_level_rewards": rewards.tolist(),
        "response_mask": mask.tolist(),
        "uid": [f"prompt {i % GROUPS}" for i in range(size)],  # not in a row
    }


@pytest.fixture(scope="module")
def is_real() -> bool:
    return (REAL / "verl").is_dir()


@pytest.fixture(scope="module")
def asked() -> dict[str, Any]:
    return batch()


@pytest.fixture(scope="module")
def answer(
    asked: dict[str, Any], is_real: bool, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    place = REAL
    if not is_real:
        place = tmp_path_factory.mktemp("published")
        (place / "verl/trainer/ppo").mkdir(parents=True)
        for folder in ("verl", "verl/trainer", "verl/trainer/ppo"):
            (place / folder / "__init__.py").touch()
        (place / "verl/trainer/ppo/core_algos.py").write_text(REGISTRY, encoding="utf-8")
    request = {**asked, "real": is_real, "theirs": list(SAME), "loss_of": ["bnpo", "delta_l"]}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("verl_probe.py"))],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(place)},
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def weights(asked: dict[str, Any], config: dict[str, Any]) -> Tensor:
    """[B, T] the pipeline's weight of every trained token."""
    mask = torch.tensor(asked["response_mask"])
    uid = asked["uid"]
    holes = (mask[:, 1] == 0).long()
    pipeline = AdvantagePipeline.from_config(config, max_response_length=WIDTH)
    out = pipeline(
        RewardBatch(
            group=torch.tensor([sorted(set(uid)).index(one) for one in uid]),
            rewards={"r": torch.tensor(asked["token_level_rewards"]).sum(1)},
            length=mask.sum(1).long(),
            stratum=holes,
        )
    )
    return out.weight[:, None] * mask


def test_every_config_that_one_reward_is_enough_for(answer: dict[str, Any]) -> None:
    shipped = {path.stem for path in (shipped_configs() / "advantage").glob("*.yaml")}
    assert set(answer["names"]) == shipped - NOT_OFFERED


def test_advantages_are_weights_times_the_batchs_tokens(
    asked: dict[str, Any], answer: dict[str, Any]
) -> None:
    tokens = torch.tensor(asked["response_mask"]).sum()
    for name in answer["names"]:
        right = weights(asked, load_advantage(name))
        assert right.abs().max() > 0, name
        torch.testing.assert_close(torch.tensor(answer["ours"][name]) / tokens, right, msg=name)
    mine = {"normalizer": {"name": "grpo", "mean": "batch"}, "aggregator": {"name": "delta_l"}}
    torch.testing.assert_close(torch.tensor(answer["mine"]) / tokens, weights(asked, mine))


@pytest.mark.parametrize(
    "case, words",
    [
        ("agg_mode", ["loss_agg_mode", "seq-mean-token-sum", "token-mean"]),
        ("state", ["state", "checkpoints"]),
        ("taken", ["rlnorm_bnpo"]),
        ("unknown", ["bmpo", "bnpo"]),
    ],
)
def test_refused(answer: dict[str, Any], case: str, words: list[str]) -> None:
    for word in words:
        assert word in answer["refused"][case]


def test_equal_to_verls_own_estimators(answer: dict[str, Any], is_real: bool) -> None:
    if not is_real:
        pytest.skip("verl is not installed")
    for theirs, ours in SAME.items():
        torch.testing.assert_close(
            torch.tensor(answer["ours"][ours]),
            torch.tensor(answer["theirs"][theirs]),
            rtol=1e-4,
            atol=1e-5,
            msg=lambda text, theirs=theirs: f"{theirs}: {text}",
        )


def test_verls_trainer_calls_it_and_its_loss_is_the_plain_sum(
    asked: dict[str, Any], answer: dict[str, Any], is_real: bool
) -> None:
    """At ratio 1 the loss's derivative by a log-prob is minus that token's weight."""
    if not is_real:
        pytest.skip("verl is not installed")
    assert answer["called"] == answer["ours"]["bnpo"]
    for name, found in answer["gradients"].items():
        torch.testing.assert_close(-torch.tensor(found), weights(asked, load_advantage(name)))
