"""ReNorm of principle process rewards (PPR): judged steps calibrated by the outcome."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from rlnorm.advantage.batch import RewardBatch
from rlnorm.advantage.interfaces import Shaped, Shaping
from rlnorm.advantage.registry import SHAPINGS


@SHAPINGS.register("renorm")
@dataclass(frozen=True)
class ReNorm(Shaping):
    """Step rewards from process scores p_t and the outcome r_o; arXiv 2509.25598. -> [S].

        "calibrated":  r_t = p_t + r_o - beta        for t < T,   r_T = r_o
        "sum":         r_t = process_weight p_t      for t < T,   r_T = r_o

    The last step (largest end) is the answer: it is not judged, a score given for it is
    ignored. With beta 1 a wrong outcome makes every judged step <= 0, a right one leaves p_t.

    Attributes:
        outcome: name of the outcome reward, in [0, 1].
        mode: "calibrated" is ReNorm, "sum" the uncalibrated baseline.
        beta: what an outcome of 1 is set off against.
        process_min, process_max: the scores' range, mapped to [0, 1].
        process_weight: factor of p_t in mode "sum".
        gamma: discount of later steps where the pipeline's credit is "return_to_go".
        invalid: a judged step without a score is unscored ("exclude"), or counts as p_t = 0
            ("zero", the authors' code).

    An episode without an outcome is unscored, all its steps. T = 1 gives r_T = r_o.

    Raises:
        ValueError: a score outside the range, or (calibrated) an outcome outside [0, 1]; it
            names the episode. The bounds above do not hold for such values.
    """

    outcome: str = "outcome"
    mode: Literal["calibrated", "sum"] = "calibrated"
    beta: float = 1.0
    process_min: float = 0.0
    process_max: float = 1.0
    process_weight: float = 1.0
    gamma: float = 1.0
    invalid: Literal["exclude", "zero"] = "exclude"

    per_step: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.process_min < self.process_max:
            raise ValueError(
                f"shaping.process_min is {self.process_min}, it must be below process_max, "
                f"{self.process_max}"
            )
        if not 0 <= self.gamma <= 1:
            raise ValueError(f"shaping.gamma is {self.gamma}, it must be from 0 to 1")

    @property
    def required_rewards(self) -> tuple[str, ...] | None:
        return (self.outcome,)

    def __call__(self, batch: RewardBatch, shaped: Shaped | None) -> Shaped:
        last = batch.steps.last
        assert batch.step_episode is not None and batch.step_reward is not None
        episode = batch.step_episode
        outcome = batch.reward(self.outcome, "shaping.outcome")[episode]
        score = batch.step_reward.to(outcome.dtype)
        score = score.masked_fill(last | ~score.isfinite(), torch.nan)
        self._check("process score", score, self.process_min, self.process_max, episode)
        process = (score - self.process_min) / (self.process_max - self.process_min)
        if self.invalid == "zero":
            process = process.nan_to_num(nan=0.0)
        if self.mode == "calibrated":
            self._check("outcome", outcome, 0.0, 1.0, episode)
            judged = process + outcome - self.beta
        else:
            # an episode without an outcome is unscored here too
            judged = (self.process_weight * process).masked_fill(outcome.isnan(), torch.nan)
        return Shaped(torch.where(last, outcome, judged), per_step=True, gamma=self.gamma)

    def _check(self, what: str, value: Tensor, low: float, high: float, episode: Tensor) -> None:
        wrong = ((value < low) | (value > high)).nonzero()
        if len(wrong):
            step = int(wrong[0])
            raise ValueError(
                f"renorm: the {what} of episode {int(episode[step])} (step {step} of the batch) "
                f"is {float(value[step])}, it must be from {low:g} to {high:g}"
            )
