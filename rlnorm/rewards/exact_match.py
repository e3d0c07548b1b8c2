"""Reward 1 where the response is the gold answer, letter by letter."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from rlnorm.rewards.interface import Reward, Scores


@dataclass
class ExactMatch(Reward):
    """1.0 if response and gold answer are equal after cutting white space at both ends."""

    def score(self, golds: list[str], responses: list[str]) -> Scores:
        right = [gold.strip() == text.strip() for gold, text in zip(golds, responses, strict=True)]
        counts = Counter("correct" if r else "wrong" for r in right)
        return Scores([float(r) for r in right], dict(counts))
