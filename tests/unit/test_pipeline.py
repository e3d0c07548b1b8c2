"""The pipeline's own decisions: refusals, messages, state, step outputs, shipped configs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from rlnorm.advantage import AdvantagePipeline, RewardBatch

CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "advantage"


def batch(**rewards: list[float]) -> RewardBatch:
    """Two groups of two episodes, each of 10 tokens, in two strata, with two steps each."""
    return RewardBatch(
        group=torch.tensor([7, 7, -3, -3]),
        rewards={name: torch.tensor(values) for name, values in rewards.items()},
        length=torch.full((4,), 10),
        stratum=torch.tensor([0, 0, 5, 5]),
        step_episode=torch.tensor([0, 0, 1, 1, 2, 2, 3, 3]),
        step_end=torch.tensor([5, 10] * 4),
        step_reward=torch.full((8,), 0.5),
    )


def build(normalizer: str | dict[str, Any], *shaping: dict[str, Any], **keys: Any) -> Any:
    settings = {"name": normalizer} if isinstance(normalizer, str) else normalizer
    return AdvantagePipeline.from_config(
        {"normalizer": settings, "shaping": list(shaping) or None, **keys}
    )


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_configs_run(path: Path) -> None:
    """Every file builds, names its paper in its first line, and gives finite weights."""
    assert path.read_text().startswith("# ")
    run = AdvantagePipeline.from_config(yaml.safe_load(path.read_text()), max_response_length=100)
    ones = [1.0, 0.0, 1.0, 1.0]
    out = (
        run(batch(verifier=ones, reward_model=[0.3, 1.0, 2.0, -1.0], outcome=ones))
        if (run.required_rewards)
        else run(batch(verifier=ones))
    )
    assert out.weight.shape == ((8,) if run.per_step else (4,))
    assert out.weight.isfinite().all() and out.weight.dtype == torch.float32


@pytest.mark.parametrize(
    ("normalizer", "rewards", "words"),
    [
        ("bnpo", [0.0, 1.0, float("nan"), 1.5], "episode 3 is 1.5"),
        ("maxrl", [0.0, float("nan"), -0.25, 1.0], "episode 2 is -0.25"),
    ],
)
def test_reward_out_of_range_names_its_episode(
    normalizer: str, rewards: list[float], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        build(normalizer)(batch(reward=rewards))


def test_process_score_out_of_range_names_its_episode() -> None:
    steps = batch(outcome=[1.0, 0.0, 1.0, 0.0])
    assert steps.step_reward is not None
    run = build("reinforce", {"name": "renorm"})
    steps.step_reward[5] = 9.0  # the last step of an episode: its score is ignored
    run(steps)
    steps.step_reward[4] = 9.0
    with pytest.raises(ValueError, match="episode 2 .* is 9"):
        run(steps)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"normalizer": "grpo", "credit": "return_to_go"}, "needs step rewards"),
        ({"normalizer": "grpo", "credit": "returns"}, "it must be one of step, return_to_go"),
        (
            {"normalizer": {"name": "decomposed", "inner": {"name": "grpo"}}, "shaping": ["hero"]},
            "leave shaping out",
        ),
        ({"normalizer": "grpo", "shaping": ["sum", "hero"]}, "must be the first"),
        ({"normalizer": "grpo", "shaping": ["overlong"]}, "must be first"),
        ({"normalizer": {"name": "decomposed", "inner": {"name": "gpro"}}}, "did you mean 'grpo'"),
        ({"normalizer": "passk"}, "'k'"),
        ({"normalizer": {"name": "stratified", "alpha": 1.5}}, "from 0 to 1"),
        ({"normalizer": "grpo", "aggregator": {"name": "delta_l"}}, "norm_length"),
    ],
)
def test_refusals(settings: dict[str, Any], words: str) -> None:
    shapings = {"overlong": {"max_length": 10, "cache": 2}}
    shaping = [{"name": name, **shapings.get(name, {})} for name in settings.pop("shaping", [])]
    with pytest.raises(ValueError, match=words):
        build(settings.pop("normalizer"), *shaping, **settings)


def test_hero_refuses_bands_that_overlap() -> None:
    for alpha, beta in ((0.5, 0.5), (0.9, 0.2)):
        with pytest.raises(ValueError, match="below 1"):
            build("dr_grpo", {"name": "hero", "alpha": alpha, "beta": beta})


def test_stratified_without_strata_is_refused() -> None:
    run = build("stratified")
    assert run.normalizer.needs_strata
    with pytest.raises(ValueError, match="RewardBatch.stratum"):
        run(RewardBatch(torch.zeros(2), {"r": torch.zeros(2)}, torch.ones(2)))


def test_missing_reward_is_named_with_the_nearest() -> None:
    for shaping in (
        {"name": "hero", "verifier": "verifer"},
        {"name": "renorm", "outcome": "verifer"},
        {"name": "sum", "weights": {"verifer": 1.0}},
    ):
        with pytest.raises(ValueError, match="did you mean 'verifier'"):
            build("reinforce", shaping)(batch(verifier=[0.0] * 4, reward_model=[0.0] * 4))


def test_required_rewards() -> None:
    assert build("grpo").required_rewards is None
    assert build("grpo", {"name": "sum", "weights": {"a": 1, "b": 2}}).required_rewards == (
        "a",
        "b",
    )
    assert build("grpo", {"name": "hero"}).required_rewards == ("verifier", "reward_model")
    assert build("grpo", {"name": "renorm"}).required_rewards == ("outcome",)


def test_hero_running_mean_is_frozen_in_a_step_and_survives_a_restart() -> None:
    """sigma of the two groups is 1 and 3 in the first step (mean 2), 2 and 4 in the second: the
    running mean is 2, then 0.9 * 2 + 0.1 * 3 = 2.1, and the weights are those of that number."""

    def hero(sigma_bar: str | float) -> Any:
        return build("reinforce", {"name": "hero", "sigma_bar": sigma_bar})

    verdict = [1.0, 0.0, 1.0, 0.0]
    first = batch(verifier=verdict, reward_model=[1.0, -1.0, 3.0, -3.0])
    second = batch(verifier=verdict, reward_model=[2.0, -2.0, 4.0, -4.0])
    run = hero("ema")
    assert torch.equal(run(first).advantage, hero(2.0)(first).advantage)
    saved = run.state_dict()
    resumed = hero("ema")
    resumed.load_state_dict(saved)
    for pipeline in (run, resumed):
        torch.testing.assert_close(pipeline(second).advantage, hero(2.1)(second).advantage)
    assert resumed.state_dict() == run.state_dict()
    with pytest.raises(ValueError, match="state"):
        hero(1.0).load_state_dict(saved)


def test_hero_group_without_scores_counts_in_the_mean_of_sigma() -> None:
    """sigma 2 and, for a group with no score, 0: their mean is 1."""
    nan = float("nan")
    scores = batch(verifier=[1.0, 0.0, 1.0, 0.0], reward_model=[2.0, -2.0, nan, nan])
    got = build("reinforce", {"name": "hero"})(scores).advantage
    want = build("reinforce", {"name": "hero", "sigma_bar": 1.0})(scores).advantage
    torch.testing.assert_close(got, want)
    assert got[2:].tolist() == [0.0, 0.0]


def test_overlong_is_added_to_the_last_step() -> None:
    run = build("reinforce", {"name": "renorm"}, {"name": "overlong", "max_length": 12, "cache": 4})
    out = run(batch(outcome=[1.0, 1.0, 0.0, 0.0]))
    # length 10: (12 - 4 - 10) / 4 = -0.5
    assert out.advantage.tolist() == [0.5, 0.5, 0.5, 0.5, -0.5, -0.5, -0.5, -0.5]


def test_step_weights_are_of_the_episode_and_steps_keep_their_order() -> None:
    """An episode with one scored step counts, one with none does not."""
    nan = float("nan")
    steps = batch(outcome=[1.0, 1.0, nan, 1.0])
    run = build("reinforce", {"name": "renorm"}, aggregator={"name": "seq_mean_token_mean"})
    out = run(steps)
    assert out.advantage.tolist() == [0.5, 1.0, 0.5, 1.0, 0.0, 0.0, 0.5, 1.0]
    torch.testing.assert_close(out.weight, out.advantage / 30)  # N = 3, L = 10
    torch.testing.assert_close(out.factor, torch.tensor([1.0, 1.0, 0.0, 1.0]) / 30)
    assert out.metrics["unscored_episodes"] == 1
    assert out.metrics["steps"] == 8 and out.metrics["unscored_steps"] == 2


def test_nothing_scored_gives_zeros() -> None:
    nan = float("nan")
    for aggregator in ("token_mean", "seq_mean_token_mean", "prompt_mean"):
        for normalizer in ("grpo", "bnpo", "reinforce_pp", "stratified"):
            out = build(normalizer, aggregator={"name": aggregator})(batch(r=[nan] * 4))
            assert not out.advantage.any() and not out.weight.any() and not out.factor.any()
            assert out.metrics["unscored_episodes"] == 4
