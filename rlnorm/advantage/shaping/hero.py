"""HERO: reward-model scores placed inside the verifier's verdicts, prompts weighed by spread."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from rlnorm.advantage.batch import RewardBatch
from rlnorm.advantage.interfaces import Shaped, Shaping
from rlnorm.advantage.registry import SHAPINGS

EMA_MOMENTUM = 0.9


@SHAPINGS.register("hero")
@dataclass
class Hero(Shaping):
    """Stratified reward normalization; arXiv 2510.07242, equations 3 to 5. [N] -> [N].

    Within a prompt's group, over its members of the same verdict v (v >= 0.5 counts as 1):

        v = 0:  r = -alpha + 2 alpha (s - min) / (max - min + eps)
        v = 1:  r = 1 - beta + 2 beta (s - min) / (max - min + eps)

    and the prompt's weight, with sigma the population std of its raw scores s:

        w = w_min + (w_max - w_min) / (1 + exp(-k (sigma - sigma_bar)))

    Attributes:
        verifier, reward_model: names of the two rewards.
        alpha, beta: half widths of the bands of wrong and right answers. alpha + beta must be
            below 1 (ValueError), else a wrong answer could pass a right one: the paper's range
            (0, 1] is too wide. It uses 0.05 for easily verified data, 0.1 for hard or mixed.
        eps: added to the range of scores.
        difficulty_weighting: whether w is used.
        w_min, w_max, k: of w. The paper's appendix has 0.4, 3.0, 6 (the default), its main text
            0.5, 2.0, 5.
        sigma_bar: null: the mean of sigma over the step's groups; a number; or "ema", a running
            mean (momentum 0.9, started with the first step's mean, each step's mean taken in
            before that step is weighed), which is in the checkpoint.
        weight_on: "reward" multiplies the shaped reward (equation 5), "advantage" what the
            normalizer makes of it. Under a normalizer that divides by the group's std w cancels
            on the reward, being constant inside a group.

    A part of one member, or of ties, sits at its band's lower end. An episode without a verdict
    or a score is unscored; a group without any has sigma 0 and counts in the mean of sigma.
    """

    verifier: str = "verifier"
    reward_model: str = "reward_model"
    alpha: float = 0.1
    beta: float = 0.1
    eps: float = 1e-6
    difficulty_weighting: bool = True
    w_min: float = 0.4
    w_max: float = 3.0
    k: float = 6.0
    sigma_bar: float | Literal["ema"] | None = None
    weight_on: Literal["reward", "advantage"] = "reward"
    _running: float | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if not (self.alpha >= 0 and self.beta >= 0):
            raise ValueError(
                f"shaping.alpha and beta are {self.alpha} and {self.beta}, they must be 0 or more"
            )
        if not self.alpha + self.beta < 1:
            raise ValueError(
                f"shaping.alpha + beta is {self.alpha + self.beta:g}, it must be below 1: else "
                "a wrong answer can be rewarded above a right one"
            )
        if not self.eps > 0:
            raise ValueError(f"shaping.eps is {self.eps}, it must be above 0")
        if not 0 < self.w_min <= self.w_max:
            raise ValueError(
                f"shaping.w_min and w_max are {self.w_min} and {self.w_max}, "
                "they must be above 0 and in this order"
            )

    @property
    def required_rewards(self) -> tuple[str, ...] | None:
        return (self.verifier, self.reward_model)

    def __call__(self, batch: RewardBatch, shaped: Shaped | None) -> Shaped:
        verdict = batch.reward(self.verifier, "shaping.verifier")
        score = batch.reward(self.reward_model, "shaping.reward_model")
        row = (verdict.isfinite() & score.isfinite()).nonzero().squeeze(1)
        right, score = verdict[row] >= 0.5, score[row]
        group = batch.groups.select(row)
        part = group.within(right.long())
        low, high = part.amin(score), part.amax(score)
        place = (score - part.spread(low)) / (part.spread(high - low) + self.eps)
        reward = torch.where(
            right,
            (1 - self.beta) + 2 * self.beta * place,
            -self.alpha + 2 * self.alpha * place,
        )
        weight = None
        if self.difficulty_weighting:
            sigma = group.std(score, ddof=0)
            center = self._center(sigma.sum() / max(batch.groups.count, 1))
            weight = group.spread(
                self.w_min + (self.w_max - self.w_min) * torch.sigmoid(self.k * (sigma - center))
            )
            if self.weight_on == "reward":
                reward, weight = weight * reward, None
        empty = torch.full_like(verdict, torch.nan)
        return Shaped(
            empty.index_copy(0, row, reward),
            scale=None if weight is None else empty.index_copy(0, row, weight),
        )

    def _center(self, mean: Tensor) -> Tensor | float:
        """sigma_bar of this step, given the mean of sigma over its groups."""
        if self.sigma_bar is None:
            return mean
        if self.sigma_bar != "ema":
            return self.sigma_bar
        now = float(mean)
        before = now if self._running is None else self._running
        self._running = EMA_MOMENTUM * before + (1 - EMA_MOMENTUM) * now
        return self._running

    def state_dict(self) -> dict[str, Any]:
        return {"sigma_bar": self._running} if self.sigma_bar == "ema" else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if set(state) != set(self.state_dict()):
            raise ValueError(
                f"hero with sigma_bar {self.sigma_bar!r} has the state "
                f"{sorted(self.state_dict())}, it was given {sorted(state)}"
            )
        self._running = state.get("sigma_bar")
