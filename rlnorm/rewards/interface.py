"""What scores: what a reward is, responses and gold answers in, one number each out; and what it
shares with a judge of steps. No reward lives here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self


@dataclass(frozen=True)
class Scores:
    """Result of scoring.

    Attributes:
        values: one per response; None is "not scored" (never 0 by accident).
        counts: how often what happened (correct, wrong, unparsable, timeout ...).
    """

    values: list[float | None]
    counts: dict[str, int] = field(default_factory=dict)


class Scorer(ABC):  # noqa: B024  (what it does is its subclasses' affair)
    """A context manager that ends what it holds."""

    def close(self) -> None:  # noqa: B027  (most hold nothing)
        """End whatever it holds, such as processes. May be called twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Reward(Scorer):
    """A named reward of the environment."""

    @abstractmethod
    def score(self, golds: list[str], responses: list[str]) -> Scores:
        """Score responses against gold answers, pair by pair."""

    def check_golds(self, golds: list[str]) -> list[bool]:
        """Whether each gold answer can be matched by any response at all."""
        return [True] * len(golds)
