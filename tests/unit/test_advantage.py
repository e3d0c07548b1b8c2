"""The pipeline's rules that hold whatever the method: unscored, silent, empty, unknown."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from rlnorm.advantage import AdvantagePipeline, RewardBatch
from rlnorm.advantage.interfaces import Normalizer

NAN = math.nan


def run(rewards: list[float], group: list[int], length: Any = None, **config: Any) -> Any:
    pipeline = AdvantagePipeline.from_config(
        {"normalizer": {"name": "grpo", "eps": 0.0}, **config}, max_response_length=100
    )
    return pipeline(
        RewardBatch(
            group=torch.tensor(group),
            rewards={"r": torch.tensor(rewards, dtype=torch.float64)},
            length=torch.tensor(length or [3] * len(rewards)),
        )
    )


@pytest.mark.parametrize("missing", [NAN, math.inf, -math.inf])
def test_unscored_reward_leaves_the_statistics(missing: float) -> None:
    out = run([1, 0, missing, 1, 1, missing, missing], [0, 0, 0, 0, 5, 5, 9])
    want = [0.5773503, -1.1547005, 0, 0.5773503, 0, 0, 0]
    torch.testing.assert_close(out.advantage, torch.tensor(want))
    assert out.metrics["unscored_episodes"] == 3
    # weights: N counts the scored episodes only
    assert out.weight.tolist()[2] == 0 and out.factor.tolist()[5] == 0


@pytest.mark.parametrize("value", [0.1, 0.2, 0.3, 0.7, 0.9, 1 / 3])
@pytest.mark.parametrize("count", range(1, 17))
def test_equal_rewards_give_exactly_zero(value: float, count: int) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        reward = torch.full((count,), value, dtype=dtype)
        batch = RewardBatch(torch.zeros(count, dtype=torch.long), {"r": reward}, torch.ones(count))
        for name in ("grpo", "dr_grpo", "rloo", "reinforce_baseline"):
            out = AdvantagePipeline.from_config({"normalizer": {"name": name}})(batch)
            assert out.advantage.tolist() == [0.0] * count
            assert out.metrics["zero_signal_group_frac"] == 1.0


def test_groups_are_found_by_id() -> None:
    assert run([1, 0, 1, 0], [7, -3, 7, -3]).advantage.tolist() == [0.0] * 4
    out = run([0, 1, 1, 5, 5], [2, 2, 2, 1, 1])
    torch.testing.assert_close(
        out.advantage, torch.tensor([-1.1547005, 0.5773503, 0.5773503, 0, 0])
    )


def test_empty_response_counts_in_rewards_and_weighs_nothing() -> None:
    out = run([1, 0], [0, 0], [0, 4], aggregator={"name": "seq_mean_token_mean"})
    torch.testing.assert_close(out.advantage, torch.tensor([0.70710678, -0.70710678]))
    torch.testing.assert_close(out.weight, torch.tensor([0.0, -0.70710678 / 4]))
    assert torch.isfinite(run([1, 0], [0, 0], [0, 0]).weight).all()


def test_whole_batch_unscored() -> None:
    out = run([NAN, NAN], [0, 1])
    assert out.weight.tolist() == [0, 0] and out.metrics["unscored_episodes"] == 2


@dataclass(frozen=True)
class Median(Normalizer):
    """The README's example."""

    scale: float = 1.0

    def __call__(self, samples: Any) -> torch.Tensor:
        return self.scale * (samples.reward - torch.median(samples.reward))


def test_own_normalizer_by_import_path() -> None:
    out = run([1, 5, 2], [0, 0, 0], normalizer={"name": f"{__name__}:Median", "scale": "2"})
    assert out.advantage.tolist() == [-2.0, 6.0, 0.0]
    with pytest.raises(ValueError, match="normalizer.scales is not a setting of .* 'scale'"):
        run([1], [0], normalizer={"name": f"{__name__}:Median", "scales": 2})
    with pytest.raises(ValueError, match="cannot be imported"):
        run([1], [0], normalizer={"name": "no.such.module:Median"})


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"normaliser": {}}, "advantage.normaliser is not known; did you mean 'normalizer'"),
        ({"normalizer": {"name": "grpo", "ddof": 2}}, "normalizer.ddof is 2, it must be 0 or 1"),
        ({"normalizer": {"name": "grpo", "ddof": 0.5}}, "it must be a whole number"),
        ({"normalizer": {"name": "grpo", "std": "prompt"}}, "must be one of none, group, batch"),
        ({"normalizer": {"name": "grpo", "eps": "x"}}, "normalizer.eps is 'x', it must be a num"),
        ({"normalizer": "grpo"}, "must be a mapping; write normalizer.name=grpo"),
        ({"normalizer": {"eps": 1}}, "normalizer needs a mapping with a name"),
        ({"shaping": {"name": "sum"}}, "must be a list"),
    ],
)
def test_wrong_settings(config: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        AdvantagePipeline.from_config({"normalizer": {"name": "grpo"}, **config})


def test_missing_normalizer_and_norm_length() -> None:
    with pytest.raises(ValueError, match="advantage.normalizer is missing"):
        AdvantagePipeline.from_config({})
    config = {"normalizer": {"name": "grpo"}, "aggregator": {"name": "seq_mean_token_sum"}}
    with pytest.raises(ValueError, match="norm_length"):
        AdvantagePipeline.from_config(config)


def test_sum_of_weights() -> None:
    batch = RewardBatch(
        group=torch.tensor([0, 0]),
        rewards={"a": torch.tensor([1.0, NAN]), "b": torch.tensor([2.0, 3.0])},
        length=torch.tensor([1, 1]),
    )
    config = {"normalizer": {"name": "reinforce"}}
    assert AdvantagePipeline.from_config(config)(batch).advantage.tolist() == [3.0, 0.0]
    config["shaping"] = [{"name": "sum", "weights": {"b": 0.5}}]  # type: ignore[assignment]
    assert AdvantagePipeline.from_config(config)(batch).advantage.tolist() == [1.0, 1.5]
    config["shaping"] = [{"name": "sum", "weights": {"c": 1}}]  # type: ignore[assignment]
    with pytest.raises(ValueError, match="the batch has no reward 'c'"):
        AdvantagePipeline.from_config(config)(batch)


def test_wrong_shapes() -> None:
    with pytest.raises(ValueError, match="length has shape"):
        RewardBatch(torch.zeros(2), {"r": torch.zeros(2)}, torch.zeros(3))
    with pytest.raises(ValueError, match="together"):
        RewardBatch(torch.zeros(2), {"r": torch.zeros(2)}, torch.zeros(2), step_end=torch.ones(1))


def test_advantage_and_objective_import_torch_only() -> None:
    code = (
        "import sys, rlnorm.advantage, rlnorm.objective\n"
        "heavy = {'ray', 'vllm', 'deepspeed', 'transformers', 'datasets', 'pandas', 'omegaconf'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
