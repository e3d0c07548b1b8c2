"""The advantage pipeline: shaping, normalizer, aggregator, composed by config.

This file is only the composition: scored or not, episodes or steps, and the metrics. Every
formula is in the file named after its method.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rlnorm.advantage import aggregators, normalizers, shaping  # noqa: F401  (they register)
from rlnorm.advantage.batch import AdvantageOutput, RewardBatch, Samples
from rlnorm.advantage.credit import return_to_go
from rlnorm.advantage.interfaces import Aggregator, Normalizer, Shaped, Shaping
from rlnorm.advantage.registry import AGGREGATORS, NORMALIZERS, SHAPINGS, nearest
from rlnorm.advantage.shaping.hero import Hero
from rlnorm.advantage.shaping.sum import Sum

CONFIG_KEYS = ("shaping", "credit", "normalizer", "aggregator")
CREDITS = ("step", "return_to_go")


class AdvantagePipeline:
    """Named rewards -> one reward -> advantages -> token weights (methods.md, Part 0).

    The objective is the plain sum over trainable tokens of weight * surrogate: weight is the
    advantage times the aggregator's factor, 0 for an unscored episode and for an empty response.

    Args:
        shapings: the chain; the first takes named rewards, the others change its result.
        normalizer: one for the whole step.
        aggregator: lengths to factors.
        credit: of step rewards, "step" (each its own) or "return_to_go".

    Raises:
        ValueError: stages that cannot work together.
    """

    def __init__(
        self,
        shapings: list[Shaping],
        normalizer: Normalizer,
        aggregator: Aggregator,
        credit: str = "step",
    ) -> None:
        for place, stage in enumerate(shapings):
            if stage.starts_chain != (place == 0):
                raise ValueError(
                    f"shaping[{place}] {stage.name!r} "
                    + (
                        "takes named rewards, so it must be the first shaping"
                        if stage.starts_chain
                        else "changes a reward, so another shaping, such as 'sum', must be first"
                    )
                )
        if credit not in CREDITS:
            raise ValueError(f"credit is {credit!r}, it must be one of {', '.join(CREDITS)}")
        if credit != "step" and not shapings[0].per_step:
            raise ValueError(
                f"credit {credit!r} needs step rewards, and shaping {shapings[0].name!r} gives "
                "one reward per episode"
            )
        if normalizer.required_rewards != () and shapings != [Sum()]:
            raise ValueError(
                f"normalizer {normalizer.name!r} takes the named rewards themselves, what shaping "
                "makes of them would be ignored: leave shaping out"
            )
        self.shapings = shapings
        self.normalizer = normalizer
        self.aggregator = aggregator
        self.credit = credit

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], *, max_response_length: int | None = None
    ) -> AdvantagePipeline:
        """Build from {"shaping": [...], "credit": ..., "normalizer": {...}, "aggregator": {...}}.

        Args:
            config: each stage is a mapping with a name and that method's settings. `shaping`
                defaults to one `sum`, `credit` to "step", `aggregator` to `token_mean`.
            max_response_length: tokens; the longest response allowed, which aggregators with
                a constant divisor take for `norm_length` when that is not set.

        Raises:
            ValueError: unknown keys, names or settings, values out of range, missing stages, or
                stages that cannot work together.
        """
        for key in config:
            if key not in CONFIG_KEYS:
                raise ValueError(f"advantage.{key} is not known; {nearest(key, CONFIG_KEYS)}")
        if not config.get("normalizer"):
            raise ValueError(
                f"advantage.normalizer is missing; its name can be {', '.join(NORMALIZERS.names())}"
            )
        stages = config.get("shaping") or [{"name": "sum"}]
        if not isinstance(stages, (list, tuple)):
            raise ValueError(f"advantage.shaping is {stages!r}, it must be a list")
        aggregator = dict(config.get("aggregator") or {"name": "token_mean"})
        built = AGGREGATORS.build(aggregator)
        if getattr(built, "norm_length", 0) is None:
            if max_response_length is None:
                raise ValueError(
                    f"aggregator.norm_length of {built.name!r} is not set; give the longest "
                    "response allowed, in tokens"
                )
            built = AGGREGATORS.build({**aggregator, "norm_length": max_response_length})
        return cls(
            [SHAPINGS.build(stage) for stage in stages],
            NORMALIZERS.build(config["normalizer"]),
            built,
            config.get("credit") or "step",
        )

    @property
    def per_step(self) -> bool:
        """Whether advantages and weights are one per step."""
        return self.shapings[0].per_step

    @property
    def required_rewards(self) -> tuple[str, ...] | None:
        """Names of the rewards that the stages need; None: whatever the batch has."""
        stages = [*self.shapings, self.normalizer]
        if any(stage.required_rewards is None for stage in stages):
            return None
        return tuple(dict.fromkeys(n for stage in stages for n in stage.required_rewards or ()))

    def warnings(self) -> list[str]:
        """Combinations that work but do not do what they seem to, a sentence each."""
        hero = self.shapings[0]
        if (
            isinstance(hero, Hero)
            and hero.difficulty_weighting
            and hero.weight_on == "reward"
            and self.normalizer.ignores_group_scale
        ):
            return [
                "shaping 'hero' multiplies every reward of a group by one weight, and normalizer "
                f"{self.normalizer.name!r} divides it out again, so the difficulty weighting does "
                "nothing: take normalizer 'dr_grpo', or set weight_on: advantage"
            ]
        return []

    def __call__(self, batch: RewardBatch) -> AdvantageOutput:
        """Weights for every episode (every step under step rewards); see `AdvantageOutput`.

        Must be given the whole step at once: groups and strata are never split.

        Raises:
            ValueError: the batch lacks a reward, steps or strata that a stage needs, or a reward
                is out of a stage's range.
        """
        shaped: Shaped | None = None
        for stage in self.shapings:
            shaped = stage(batch, shaped)
        assert shaped is not None
        reward = shaped.reward
        if shaped.per_step and self.credit == "return_to_go":
            reward = return_to_go(reward, batch.steps, shaped.gamma)
        episode = batch.step_episode if shaped.per_step else None  # [S], of each step
        named = self._named(batch)
        scored = reward.isfinite()
        for values in named.values():
            scored = scored & values.isfinite()
        place = scored.nonzero().squeeze(1)  # [M], of the scored samples in the output
        samples = self._samples(batch, reward, named, scored, place, episode)
        kept = self.normalizer(samples) if place.numel() else samples.reward
        if shaped.scale is not None:
            kept = kept * shaped.scale[place]
        advantage = kept.new_zeros(scored.shape[0]).index_copy_(0, place, kept)
        if episode is not None:
            scored = scored.new_zeros(batch.size).index_fill_(0, samples.row, True)
        factor = self._factor(batch, scored)
        weight = advantage * (factor if episode is None else factor[episode])
        return AdvantageOutput(
            advantage=advantage.float(),
            weight=weight.float(),
            factor=factor.float(),
            metrics=self._metrics(batch, samples, scored, kept, advantage.shape[0]),
        )

    def _named(self, batch: RewardBatch) -> dict[str, Tensor]:
        """name -> [N] the rewards that the normalizer takes by name."""
        names = self.normalizer.required_rewards
        return {
            name: batch.reward(name, "normalizer.weights")
            for name in (batch.rewards if names is None else names)
        }

    def _samples(
        self,
        batch: RewardBatch,
        reward: Tensor,
        named: dict[str, Tensor],
        scored: Tensor,
        place: Tensor,
        episode: Tensor | None,
    ) -> Samples:
        row = place if episode is None else episode.index_select(0, place)
        dtype = batch.statistics_dtype
        group = batch.groups.keep(scored) if episode is None else batch.groups.select(row)
        stratum = None
        if self.normalizer.needs_strata and batch.stratum is not None:
            stratum = group.within(batch.stratum.index_select(0, row))
        return Samples(
            reward=reward.index_select(0, place).to(dtype),
            group=group,
            length=(
                batch.length.index_select(0, row).to(dtype)
                if episode is None
                else torch.ones_like(row, dtype=dtype)
            ),
            stratum=stratum,
            named={name: values.index_select(0, row) for name, values in named.items()},
            row=row,
        )

    def _factor(self, batch: RewardBatch, scored: Tensor) -> Tensor:
        """[N] x_i; 0 for episodes that are unscored or empty."""
        counts = scored & (batch.length > 0)
        row = counts.nonzero().squeeze(1)
        factor = torch.zeros(batch.size, dtype=batch.statistics_dtype, device=batch.device)
        if row.numel() == 0:
            return factor
        length = batch.length.index_select(0, row).to(factor.dtype)
        return factor.index_copy_(0, row, self.aggregator(length, batch.groups.keep(counts)))

    def _metrics(
        self,
        batch: RewardBatch,
        samples: Samples,
        scored: Tensor,
        advantage: Tensor,
        outputs: int,
    ) -> dict[str, float]:
        """Plain floats, moved to the host in one transfer."""
        groups = max(samples.group.count, 1)
        known = {"episodes": float(batch.size), "groups": float(samples.group.count)}
        if self.per_step:
            known |= {"steps": float(outputs), "unscored_steps": float(outputs - len(advantage))}
        values = {
            "unscored_episodes": (~scored).sum(),
            "empty_responses": (batch.length == 0).sum(),
            "singleton_group_frac": (samples.group.size == 1).sum() / groups,
            "zero_signal_group_frac": (~samples.group.any(advantage != 0)).sum() / groups,
        }
        if advantage.numel():
            low, high = advantage.aminmax()
            values |= {
                "reward_mean": samples.reward.mean(),
                "reward_std": samples.reward.std(correction=0),
                "advantage_mean": advantage.mean(),
                "advantage_abs_mean": advantage.abs().mean(),
                "advantage_max": high,
                "advantage_min": low,
            }
        if samples.stratum is not None:
            strata = max(samples.stratum.count, 1)
            values["singleton_stratum_frac"] = (samples.stratum.size == 1).sum() / strata
        stacked = torch.stack([value.to(torch.float32) for value in values.values()])
        return known | dict(zip(values, stacked.tolist(), strict=True))

    def state_dict(self) -> dict[str, Any]:
        """State of every stage that has one, by its place in the pipeline."""
        return {
            "shaping": [stage.state_dict() for stage in self.shapings],
            "normalizer": self.normalizer.state_dict(),
            "aggregator": self.aggregator.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave; ValueError if the stages are not the same."""
        if len(state["shaping"]) != len(self.shapings):
            raise ValueError(
                f"the saved pipeline has {len(state['shaping'])} shapings, "
                f"this one has {len(self.shapings)}"
            )
        for stage, saved in zip(self.shapings, state["shaping"], strict=True):
            stage.load_state_dict(saved)
        self.normalizer.load_state_dict(state["normalizer"])
        self.aggregator.load_state_dict(state["aggregator"])
