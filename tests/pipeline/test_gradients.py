"""The same episodes give the same gradient, whatever is sharded, split, packed or shuffled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlnorm.episode import EpisodeBlock, StepScalars
from tests.pipeline.conftest import Ranks, tiny_config
from tests.pipeline.probe import random_episodes, shuffled

# real engines start in a minute on an idle machine, and in several on a busy one
pytestmark = pytest.mark.timeout(1800)
VOCABULARY = 100
Gradient = dict[str, np.ndarray[Any, Any]]


@pytest.fixture(scope="module")
def episodes() -> tuple[StepScalars, EpisodeBlock]:
    return random_episodes(seed=3, groups=6, samples=4, vocabulary=VOCABULARY, longest=12)


@pytest.fixture(scope="module")
def reference(tiny: Path, episodes: tuple[StepScalars, EpisodeBlock]) -> Gradient:
    """GRPO with mean of token means, written as loops over episodes and full float64 logits.

    On-policy the ratio is 1, and the gradient of the clipped surrogate is that of w * log-prob.
    """
    from transformers import AutoModelForCausalLM

    scalars, block = episodes
    model = AutoModelForCausalLM.from_pretrained(tiny / "model", dtype=torch.float64)
    rewards = scalars.rewards["verifier"]
    scored = [i for i in range(len(block)) if np.isfinite(rewards[i])]
    counted = [i for i in scored if scalars.length[i] > 0]
    loss = torch.zeros((), dtype=torch.float64)
    for i in counted:
        same = [rewards[j] for j in scored if scalars.group[j] == scalars.group[i]]
        if len(set(same)) == 1:
            continue
        advantage = (rewards[i] - np.mean(same)) / (np.std(same, ddof=1) + 1e-6)
        prompt, response = block.prompt(i), block.response_ids[block.span(i)]
        ids = torch.tensor(np.concatenate([prompt, response]))[None]
        logprobs = torch.log_softmax(model(input_ids=ids).logits[0], -1)
        mask = block.loss_mask[block.span(i)]
        chosen = [
            logprobs[len(prompt) - 1 + t, response[t]] for t in range(len(response)) if mask[t]
        ]
        loss = loss - advantage * torch.stack(chosen).sum() / (len(counted) * len(chosen))
    loss.backward()
    return {name: p.grad.numpy() for name, p in model.named_parameters()}


def relative_difference(one: Gradient, other: Gradient) -> float:
    """Norm of the difference over the norm, over all parameters together."""
    assert one.keys() == other.keys()
    difference = sum(float(((one[n] - other[n]) ** 2).sum()) for n in one)
    return (difference / sum(float((other[n] ** 2).sum()) for n in other)) ** 0.5


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("stage", [0, 2, 3])
def test_gradient_is_the_same(
    count: int,
    stage: int,
    tiny: Path,
    episodes: tuple[StepScalars, EpisodeBlock],
    reference: Gradient,
    ranks: Callable[..., Ranks],
) -> None:
    group = ranks(tiny_config(tiny, f"learner.ranks={count}", f"learner.zero_stage={stage}"))
    for limit in (1, 4, None):
        group.all("change", micro_batch_episodes=limit, logit_chunk_tokens=7 if limit else 1024)
        found = group.all("gradients", episodes[0], episodes[1])
        assert relative_difference(found, reference) <= 1e-5, f"micro-batches of {limit}"
    found = group.all("gradients", *shuffled(*episodes, seed=9))
    assert relative_difference(found, reference) <= 1e-5, "shuffled"
    group.all("change", micro_batch_episodes=1)
    # more ranks than episodes with tokens: some have nothing to do
    few = random_episodes(seed=5, groups=1, samples=2, vocabulary=VOCABULARY, longest=4)
    assert all(np.isfinite(g).all() for g in group.all("gradients", *few).values())


def test_updates_do_not_depend_on_ranks_and_stage(
    tiny: Path, episodes: tuple[StepScalars, EpisodeBlock], ranks: Callable[..., Ranks]
) -> None:
    """Mini-batches, epochs, clipping, KL and importance sampling together, two steps each."""
    settings = [
        "learner.mini_batches=2",
        "trainer.prompts_per_step=6",
        "rollout.samples_per_prompt=4",
        "learner.epochs=2",
        "learner.lr=1e-3",
        "learner.warmup_steps=0",
        "learner.grad_clip=0.5",
        "objective.kl_coef=0.1",
        "objective.importance_sampling=token",
    ]
    found = []
    for count, stage in ((1, 0), (2, 2), (2, 3)):
        group = ranks(
            tiny_config(tiny, *settings, f"learner.ranks={count}", f"learner.zero_stage={stage}")
        )
        before = group.all("masters")
        results = [group.all("update", step, *episodes) for step in (1, 2)]
        after = group.all("masters")
        moved = {n: after[n] - before[n] for n in after}
        found.append((moved, results))
    for moved, results in found[1:]:
        # AdamW divides by the root of tiny second moments, which enlarges rounding
        assert relative_difference(moved, found[0][0]) <= 1e-3
        for result, first in zip(results, found[0][1], strict=True):
            np.testing.assert_array_equal(result.weight, first.weight)
            for name, value in first.metrics.items():
                if not name.startswith("time/"):
                    assert result.metrics[name] == pytest.approx(value, rel=2e-3, abs=1e-5), name
    assert found[0][1][1].metrics["policy/kl"] > 0


def test_bfloat16_weights_move_at_a_small_learning_rate(
    tiny: Path, episodes: tuple[StepScalars, EpisodeBlock], ranks: Callable[..., Ranks]
) -> None:
    """The optimizer's copy is float32: steps too small for bfloat16 add up."""
    group = ranks(
        tiny_config(
            tiny,
            "learner.dtype=bfloat16",
            "learner.zero_stage=2",
            "learner.lr=1e-6",
            "learner.warmup_steps=0",
        )
    )
    before = group.all("masters")
    for step in range(1, 4):
        group.all("update", step, *episodes)
    after = group.all("masters")
    moved = np.concatenate([(after[n] - before[n]).ravel() for n in after])
    # AdamW moves every weight with a gradient by about lr per step
    assert 1e-6 < np.quantile(np.abs(moved), 0.9) < 4e-6
