"""Reward 1 where the math verifier finds the answer equal to the gold one."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from rlnorm.rewards.interface import Reward, Scores
from rlnorm.rewards.math_verifier import MathVerifier


@dataclass
class Math(Reward):
    """1.0 for `correct`, 0.0 for `wrong`, `unparsable` and `timeout`, which are counted apart.

    Attributes:
        workers: grading processes.
        timeout_s: seconds one answer may take before its process is killed.
        require_boxed: the answer must stand in \\boxed{}; false also takes the last number.
    """

    workers: int = 2
    timeout_s: float = 5.0
    require_boxed: bool = True

    def __post_init__(self) -> None:
        self._verifier = MathVerifier(
            workers=self.workers, timeout_s=self.timeout_s, require_boxed=self.require_boxed
        )

    def score(self, golds: list[str], responses: list[str]) -> Scores:
        verdicts = self._verifier.grade(list(zip(golds, responses, strict=True)))
        return Scores([float(v == "correct") for v in verdicts], dict(Counter(verdicts)))

    def check_golds(self, golds: list[str]) -> list[bool]:
        return self._verifier.check_golds(golds)

    def close(self) -> None:
        self._verifier.close()
