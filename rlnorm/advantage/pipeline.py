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
from rlnorm.advantage.interfaces import Aggregator, Normalizer, Shaped, Shaping
from rlnorm.advantage.registry import AGGREGATORS, NORMALIZERS, SHAPINGS, nearest
from rlnorm.advantage.segments import Segments

CONFIG_KEYS = ("shaping", "normalizer", "aggregator")


class AdvantagePipeline:
    """Named rewards -> one reward -> advantages -> token weights (methods.md, Part 0).

    The objective is the plain sum over trainable tokens of weight * surrogate: weight is the
    advantage times the aggregator's factor, 0 for an unscored episode and for an empty response.
    """

    def __init__(
        self,
        shapings: list[Shaping],
        normalizer: Normalizer,
        aggregator: Aggregator,
    ) -> None:
        self.shapings = shapings
        self.normalizer = normalizer
        self.aggregator = aggregator

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], *, max_response_length: int | None = None
    ) -> AdvantagePipeline:
        """Build from {"shaping": [...], "normalizer": {...}, "aggregator": {...}}.

        Args:
            config: each stage is a mapping with a name and that method's settings. `shaping`
                defaults to one `sum`, `aggregator` to `token_mean`.
            max_response_length: tokens; the longest response allowed, which aggregators with
                a constant divisor take for `norm_length` when that is not set.

        Raises:
            ValueError: unknown keys, names or settings, values out of range, missing stages.
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
        )

    def __call__(self, batch: RewardBatch) -> AdvantageOutput:
        """Weights for every episode of the step; see `AdvantageOutput`.

        Must be given the whole step at once: groups and strata are never split.
        """
        shaped: Shaped | None = None
        for stage in self.shapings:
            shaped = stage(batch, shaped)
        assert shaped is not None
        scored = torch.isfinite(shaped.reward)
        samples = self._samples(batch, shaped, scored)
        kept = self.normalizer(samples)
        if shaped.scale is not None:
            kept = kept * shaped.scale[scored]
        advantage = kept.new_zeros(scored.shape[0])
        advantage[scored] = kept
        factor = self._factor(batch, scored)
        return AdvantageOutput(
            advantage=advantage.float(),
            weight=(advantage * factor).float(),
            factor=factor.float(),
            metrics=self._metrics(batch, samples, scored, kept),
        )

    def _samples(self, batch: RewardBatch, shaped: Shaped, scored: Tensor) -> Samples:
        row = torch.arange(batch.size, device=batch.device)[scored]
        dtype = batch.statistics_dtype
        group = Segments.of(batch.group[row])
        return Samples(
            reward=shaped.reward[scored].to(dtype),
            group=group,
            length=batch.length[row].to(dtype),
            stratum=None if batch.stratum is None else group.within(batch.stratum[row]),
            named={name: reward[row].to(dtype) for name, reward in batch.rewards.items()},
            row=row,
        )

    def _factor(self, batch: RewardBatch, scored: Tensor) -> Tensor:
        """[N] x_i; 0 for episodes that are unscored or empty."""
        counts = scored & (batch.length > 0)
        factor = torch.zeros(batch.size, dtype=batch.statistics_dtype, device=batch.device)
        length = batch.length[counts].to(factor.dtype)
        factor[counts] = self.aggregator(length, Segments.of(batch.group[counts]))
        return factor

    def _metrics(
        self, batch: RewardBatch, samples: Samples, scored: Tensor, advantage: Tensor
    ) -> dict[str, float]:
        """Plain floats, moved to the host in one transfer."""
        groups = max(samples.group.count, 1)
        values = {
            "episodes": torch.tensor(float(batch.size), device=batch.device),
            "unscored_episodes": (~scored).sum(),
            "empty_responses": (batch.length == 0).sum(),
            "groups": torch.tensor(float(samples.group.count), device=batch.device),
            "singleton_group_frac": (samples.group.size == 1).sum() / groups,
            "zero_signal_group_frac": (samples.group.amax(advantage.abs()) == 0).sum() / groups,
        }
        if advantage.numel():
            values |= {
                "reward_mean": samples.reward.mean(),
                "reward_std": samples.reward.std(correction=0),
                "advantage_mean": advantage.mean(),
                "advantage_abs_mean": advantage.abs().mean(),
                "advantage_max": advantage.max(),
                "advantage_min": advantage.min(),
            }
        if samples.stratum is not None:
            strata = max(samples.stratum.count, 1)
            values["singleton_stratum_frac"] = (samples.stratum.size == 1).sum() / strata
        stacked = torch.stack([value.to(torch.float32) for value in values.values()])
        return dict(zip(values, stacked.tolist(), strict=True))

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
