"""What a judge of steps is: steps of episodes in, one score each out. No judge lives here."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from rlnorm.rewards.interface import Scorer, Scores


@dataclass(frozen=True)
class JudgedStep:
    """One step (turn of the policy) of one episode, as a judge sees it: nothing that came later,
    and no gold answer.

    Attributes:
        question: the dataset's question, without template.
        earlier: one text per earlier turn, oldest first: what the policy wrote, followed by what
            the environment answered (the passages of a search, for instance).
        step: what the policy wrote in the turn that is judged.
    """

    question: str
    earlier: tuple[str, ...]
    step: str


class StepJudge(Scorer):
    """Gives process rewards to the steps of episodes: p_t of PPR (arXiv 2509.25598), which the
    shaping `renorm` calibrates by the outcome.

    A subclass is a dataclass whose fields are its settings; its constructor refuses wrong ones
    with ValueError.
    """

    name: ClassVar[str] = ""

    @abstractmethod
    def score(self, steps: list[JudgedStep]) -> Scores:
        """Score steps, each by itself.

        A step that cannot be scored has the value None, never 0, and costs the run nothing else.

        Returns:
            Values in [0, 1] or None, one per step and in their order. The counts name what became
            of each step and add up to the number of steps; "scored" is the number of values.
        """
