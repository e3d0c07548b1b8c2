"""What a reward is: responses and gold answers in, one number each out. No reward lives here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from types import TracebackType


@dataclass(frozen=True)
class Scores:
    """Result of scoring.

    Attributes:
        values: one per response; None is "not scored" (never 0 by accident).
        counts: how often what happened (correct, wrong, unparsable, timeout ...).
    """

    values: list[float | None]
    counts: dict[str, int] = field(default_factory=dict)


class Reward(ABC):
    """A named reward of the environment; a context manager that ends its processes."""

    @abstractmethod
    def score(self, golds: list[str], responses: list[str]) -> Scores:
        """Score responses against gold answers, pair by pair."""

    def check_golds(self, golds: list[str]) -> list[bool]:
        """Whether each gold answer can be matched by any response at all."""
        return [True] * len(golds)

    def close(self) -> None:  # noqa: B027  (most rewards hold nothing)
        """End whatever processes the reward holds."""

    def __enter__(self) -> Reward:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
