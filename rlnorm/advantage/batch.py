"""What goes into and what comes out of the advantage pipeline: scalars of one whole step.

Only the data types live here, with the order of their rows; no statistics and no method.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from rlnorm.advantage.registry import nearest
from rlnorm.advantage.segments import Segments


@dataclass(frozen=True)
class RewardBatch:
    """The scalars of every episode of one training step, on one device.

    Shapes: N episodes, S steps over all of them (process rewards only).

    Attributes:
        group: [N] integers, the prompt's id. Any values, any order, unequal group sizes.
        rewards: name -> [N] floats. NaN, +inf and -inf mean "not scored".
        length: [N] integers >= 0, the number of trainable (policy-sampled) tokens.
        stratum: [N] integers, what the environment counted (such as search calls), or None.
        truncated: [N] bools, the response hit its length limit, or None.
        step_episode: [S] integers, the episode (row) a step belongs to, or None.
        step_end: [S] integers, the response position just past the step's last token, or None.
        step_reward: [S] floats, the step's process reward (NaN: not scored), or None.

    Raises:
        ValueError: a field has the wrong shape, or a step names an episode that is not there.
    """

    group: Tensor
    rewards: dict[str, Tensor]
    length: Tensor
    stratum: Tensor | None = None
    truncated: Tensor | None = None
    step_episode: Tensor | None = None
    step_end: Tensor | None = None
    step_reward: Tensor | None = None

    def __post_init__(self) -> None:
        n = self.group.shape
        if len(n) != 1:
            raise ValueError(f"RewardBatch.group must be one-dimensional, it has shape {tuple(n)}")
        if not self.rewards:
            raise ValueError("RewardBatch.rewards names no reward")
        per_episode = {
            "length": self.length,
            "stratum": self.stratum,
            "truncated": self.truncated,
            **{f"rewards[{name!r}]": reward for name, reward in self.rewards.items()},
        }
        for name, tensor in per_episode.items():
            if tensor is not None and tensor.shape != n:
                raise ValueError(
                    f"RewardBatch.{name} has shape {tuple(tensor.shape)}, group has {tuple(n)}"
                )
        steps = {
            "step_episode": self.step_episode,
            "step_end": self.step_end,
            "step_reward": self.step_reward,
        }
        shapes = {name: t.shape for name, t in steps.items() if t is not None}
        if shapes and (len(shapes) < 3 or len(set(shapes.values())) > 1):
            raise ValueError(
                "RewardBatch needs step_episode, step_end and step_reward together and of one "
                f"shape, it got {shapes or 'none'}"
            )
        if self.step_episode is not None and self.step_episode.numel():
            low, high = self.step_episode.aminmax()
            if int(low) < 0 or int(high) >= n[0]:
                raise ValueError(
                    f"RewardBatch.step_episode goes from {int(low)} to {int(high)}, "
                    f"but there are {n[0]} episodes"
                )

    @property
    def size(self) -> int:
        """Number of episodes N."""
        return self.group.shape[0]

    @property
    def device(self) -> torch.device:
        """The device all tensors are on."""
        return self.group.device

    @property
    def statistics_dtype(self) -> torch.dtype:
        """float64 where the device has it: close rewards with a large offset lose their
        differences in float32."""
        return torch.float32 if self.device.type == "mps" else torch.float64

    @cached_property
    def groups(self) -> Segments:
        """The prompts' groups over all N episodes."""
        return Segments.of(self.group)

    def reward(self, name: str, setting: str) -> Tensor:
        """[N] the named reward in the statistics dtype, NaN where it is not scored.

        Raises:
            ValueError: there is no such reward; `setting` is the config key that asked for it.
        """
        if name not in self.rewards:
            raise ValueError(
                f"{setting}: the batch has no reward {name!r}; {nearest(name, self.rewards)}"
            )
        nan = torch.nan
        reward = self.rewards[name].to(self.statistics_dtype)
        return reward.nan_to_num(nan=nan, posinf=nan, neginf=nan)

    @cached_property
    def steps(self) -> StepOrder:
        """The order of the steps inside their episodes.

        Raises:
            ValueError: the batch has no steps.
        """
        if self.step_episode is None or self.step_end is None:
            raise ValueError(
                "step rewards need RewardBatch.step_episode, step_end and step_reward, and this "
                "batch has none"
            )
        return StepOrder.of(self.step_episode.long(), self.step_end.long())


@dataclass(frozen=True)
class StepOrder:
    """Where each of S steps stands in its episode; the flat list may be in any order.

    Attributes:
        order: [S] integers, the flat list's positions sorted by episode, then by end.
        remaining: [S] integers in that sorted order, steps that follow in the same episode.
        last: [S] bools in the flat list's order, the step is its episode's last (the answer).
    """

    order: Tensor
    remaining: Tensor
    last: Tensor

    @classmethod
    def of(cls, episode: Tensor, end: Tensor) -> StepOrder:
        """From [S] episode rows and [S] end positions."""
        order = torch.arange(len(episode), device=episode.device)
        if len(order):
            low, high = end.aminmax()
            key = episode * (high - low + 1) + (end - low)  # token positions: far from overflow
            # the usual list is in order already, and sorting is most of the cost
            if bool((key[1:] < key[:-1]).any()):
                order = torch.argsort(key, stable=True)
        ordered = episode[order]
        count = torch.bincount(ordered)
        past_end = count.cumsum(0)[ordered]
        position = torch.arange(len(ordered), device=ordered.device)
        remaining = past_end - 1 - position
        last = torch.empty_like(ordered, dtype=torch.bool)
        last[order] = remaining == 0
        return cls(order, remaining, last)


@dataclass(frozen=True)
class Samples:
    """What a normalizer sees: M scored samples (episodes, or steps under process rewards).

    Attributes:
        reward: [M] floats in the statistics dtype, all finite.
        group: the prompt's groups over the samples.
        length: [M] how often the sample counts in statistics over tokens, statistics dtype:
            its trainable tokens for an episode, 1 for a step (each step once).
        stratum: strata nested in the groups, or None where the environment has none.
        named: name -> [M] finite floats, the rewards that the normalizer asked for.
        row: [M] integers, the sample's row in the caller's batch, for error messages.
    """

    reward: Tensor
    group: Segments
    length: Tensor
    stratum: Segments | None
    named: dict[str, Tensor]
    row: Tensor

    def with_reward(self, reward: Tensor) -> Samples:
        """The same samples with other rewards [M]."""
        return replace(self, reward=reward)


@dataclass(frozen=True)
class AdvantageOutput:
    """Result of the pipeline.

    Attributes:
        advantage: [N] float32, or [S] with step-level rewards; 0 where unscored.
        weight: [N] or [S] float32; the objective is the plain sum over trainable tokens of
            weight * surrogate, and nobody divides afterwards.
            One per step means: for each of the step's trainable tokens.
        factor: [N] float32, the aggregator's x_i (weight = advantage * x_i), for penalties
            that are not multiplied by an advantage, such as KL; 0 where an episode does not count.
        metrics: plain floats about this batch, names without prefix.
    """

    advantage: Tensor
    weight: Tensor
    factor: Tensor
    metrics: dict[str, float] = field(default_factory=dict)
