"""A judge of steps that applies regular expressions. No model and no network here."""

from __future__ import annotations

import math
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import regex

from rlnorm.advantage.registry import nearest
from rlnorm.rewards.interface import Scores
from rlnorm.rewards.process import JudgedStep, StepJudge

PARTS = ("pattern", "score")


@dataclass
class RuleJudge(StepJudge):
    """The score of the first rule whose pattern is found in the step's text. Deterministic, but
    for the time limits.

    Counts: scored, unmatched (no rule, and no `otherwise`), timeout.

    Attributes:
        rules: each {pattern: REGEX, score: NUMBER}, tried in order. The syntax is that of the
            package `regex`, a superset of Python's `re`; flags are written inside, as (?is).
        otherwise: score of a step that no rule matches; None leaves it unscored.
        timeout_s: seconds that one step may take. Texts come from a model, and a pattern that
            backtracks without end on one of them leaves that step unscored.
        total_timeout_s: seconds that one call of `score` may take; later steps stay unscored.
    """

    rules: list[dict[str, Any]] = field(default_factory=list)
    otherwise: float | None = None
    timeout_s: float = 0.5
    total_timeout_s: float = 60.0

    def __post_init__(self) -> None:
        if not isinstance(self.rules, list) or not self.rules:
            raise ValueError(
                f"rules is {self.rules!r}, it must be a list of at least one "
                "{pattern: REGEX, score: NUMBER}"
            )
        self._rules = [_read_rule(f"rules[{i}]", rule) for i, rule in enumerate(self.rules)]
        if self.otherwise is not None:
            _check_score("otherwise", self.otherwise)
        for name in ("timeout_s", "total_timeout_s"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise ValueError(f"{name} is {value}, it must be a number of seconds above 0")

    def score(self, steps: list[JudgedStep]) -> Scores:
        end = time.monotonic() + self.total_timeout_s
        values: list[float | None] = []
        counts: Counter[str] = Counter()
        for step in steps:
            try:
                value = self._first(step.step, min(end, time.monotonic() + self.timeout_s))
                counts["unmatched" if value is None else "scored"] += 1
            except TimeoutError:
                value = None
                counts["timeout"] += 1
            values.append(value)
        return Scores(values, dict(counts))

    def _first(self, text: str, deadline: float) -> float | None:
        for pattern, score in self._rules:
            left = deadline - time.monotonic()
            # regex takes a limit that is not above 0 for a mistake or for none at all
            if left <= 0:
                raise TimeoutError
            if pattern.search(text, timeout=left):
                return score
        return self.otherwise


def _read_rule(key: str, rule: Any) -> tuple[Any, float]:
    """A rule's compiled pattern and its score."""
    if not isinstance(rule, dict) or not all(part in rule for part in PARTS):
        raise ValueError(f"{key} is {rule!r}, it must be {{pattern: REGEX, score: NUMBER}}")
    for part in rule:
        if part not in PARTS:
            raise ValueError(f"{key}.{part} is not part of a rule; {nearest(str(part), PARTS)}")
    if not isinstance(rule["pattern"], str):
        raise ValueError(f"{key}.pattern is {rule['pattern']!r}, it must be a regular expression")
    _check_score(f"{key}.score", rule["score"])
    try:
        return regex.compile(rule["pattern"]), float(rule["score"])
    except regex.error as error:
        raise ValueError(
            f"{key}.pattern is {rule['pattern']!r}, which is no regular expression: {error}"
        ) from None


def _check_score(key: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError(f"{key} is {value!r}, it must be a number from 0 to 1")
