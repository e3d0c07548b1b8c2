"""Workers with the extra methods that tests need to look inside, and episodes to give them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from rlnorm.environments import Environment, Transcript
from rlnorm.episode import Episode, EpisodeBlock, StepScalars
from rlnorm.learner import zero
from rlnorm.learner.batching import StepEpisodes
from rlnorm.learner.worker import LearnerWorker, reward_batch


class ProbeLearner(LearnerWorker):
    """A learner whose gradients and log-probs can be looked at."""

    def change(self, **fields: Any) -> None:
        """Set fields of the spec, such as the micro-batch limits."""
        self.spec = replace(self.spec, **fields)

    def gradients(self, scalars: StepScalars, *blocks: EpisodeBlock) -> dict[str, Any]:
        """The whole gradient of one step's objective by parameter name; the step is then undone
        by zeroing the gradients."""
        out = self.pipeline(reward_batch(scalars, self.device))
        episodes = StepEpisodes(list(blocks), out.weight.cpu(), out.factor.cpu())
        (plan,) = self._plans(scalars, episodes)
        self._accumulate(plan, episodes, None, 1.0)
        found = {n: zero.full_gradient(p).cpu().numpy() for n, p in self._named().items()}
        # a step of size 0 lets DeepSpeed clear whatever it holds
        for group in self.engine.optimizer.param_groups:
            group["lr"] = 0.0
        self.engine.step()
        return found

    def token_logprobs(self, *blocks: EpisodeBlock) -> list[Any]:
        """Log-probs of every trainable token, per episode."""
        count = sum(len(block) for block in blocks)
        nothing = torch.zeros(count)
        episodes = StepEpisodes(list(blocks), nothing, nothing)
        plan = [np.asarray([i], dtype=np.int64) for i in range(count)]
        return [values.cpu().numpy() for values in self._logprobs(self.engine, plan, episodes)]

    def masters(self) -> dict[str, Any]:
        """The optimizer's float32 weights."""
        return {n: zero.master_weight(p).cpu().numpy().copy() for n, p in self._named().items()}


@dataclass(frozen=True)
class Flaky(Environment):
    """Fails for two samples of every prompt in training, for one of them after it has begun."""

    async def play(self, transcript: Transcript) -> None:
        if transcript.prompt.sample == 3:
            raise RuntimeError("no luck with sample 3")
        await transcript.sample()
        if transcript.prompt.sample == 7:
            raise RuntimeError("no luck with sample 7")


def random_episodes(
    seed: int, groups: int, samples: int, vocabulary: int, longest: int
) -> tuple[StepScalars, EpisodeBlock]:
    """Episodes of random tokens and lengths: with tokens the environment wrote, an empty
    response, an unscored reward and a group whose rewards are all equal."""
    random = np.random.default_rng(seed)
    episodes = []
    for group in range(groups):
        prompt = random.integers(6, vocabulary, random.integers(2, 9)).tolist()
        for sample in range(samples):
            length = 0 if (group, sample) == (0, 0) else int(random.integers(1, longest))
            mask = (random.random(length) > 0.2).astype(int)
            if length:
                mask[0] = 1
            episodes.append(
                Episode(
                    group=100 + 7 * group,
                    sample=sample,
                    row=group,
                    prompt_ids=prompt,
                    response_ids=random.integers(6, vocabulary, length).tolist(),
                    loss_mask=mask.tolist(),
                    rollout_logprobs=random.normal(-2, 0.3, length).tolist(),
                    response="",
                    answer="",
                )
            )
    rewards = random.integers(0, 2, len(episodes)).astype(float)
    rewards[samples : 2 * samples] = 1.0
    rewards[-1] = np.nan
    block = EpisodeBlock.of(episodes)
    return StepScalars.of(block, {"verifier": rewards}), block


def shuffled(scalars: StepScalars, block: EpisodeBlock, seed: int) -> Any:
    """The same episodes in another order."""
    order = np.random.default_rng(seed).permutation(len(block))
    episodes = [
        Episode(
            group=int(block.group[i]),
            sample=int(block.sample[i]),
            row=int(block.row[i]),
            prompt_ids=block.prompt(i).tolist(),
            response_ids=block.response_ids[block.span(i)].tolist(),
            loss_mask=block.loss_mask[block.span(i)].astype(int).tolist(),
            rollout_logprobs=block.rollout_logprobs[block.span(i)].tolist(),
            response=block.response[i],
            answer=block.answer[i],
        )
        for i in order
    ]
    moved = EpisodeBlock.of(episodes)
    return StepScalars.of(moved, {n: r[order] for n, r in scalars.rewards.items()}), moved
