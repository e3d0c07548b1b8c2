"""What an environment is given and must give back. No environment lives here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Protocol

from rlnorm.episode import Episode


@dataclass(frozen=True)
class Prompt:
    """One episode to play.

    Attributes:
        group, sample: which prompt of the run, and which of its samples.
        row: row in the dataset.
        prompt_ids: token ids.
        answer: gold answer, for the record; environments must not show it to the policy.
        seed: of this episode's sampling; belongs to the episode, not to the worker.
    """

    group: int
    sample: int
    row: int
    prompt_ids: list[int]
    answer: str
    seed: int


@dataclass(frozen=True)
class Generation:
    """What the engine sampled in one turn.

    Attributes:
        token_ids: sampled tokens, the stop token included where one ended it.
        logprobs: log-prob of each, at the sampling temperature.
        truncated: it ended because of the length limit.
        weight_version: of the weights that sampled it.
    """

    token_ids: list[int]
    logprobs: list[float]
    truncated: bool
    weight_version: int


class Generator(Protocol):
    """The engine as environments see it."""

    async def generate(self, token_ids: list[int], max_tokens: int, seed: int) -> Generation:
        """Sample after these tokens."""
        ...

    def decode(self, token_ids: list[int]) -> str:
        """Text of these tokens, special ones left out."""
        ...


class Environment(ABC):
    """Plays episodes; holds no state between them.

    Attributes:
        has_strata: its episodes differ in what it counts (their stratum).
        has_steps: its episodes carry process rewards.
    """

    has_strata: ClassVar[bool] = False
    has_steps: ClassVar[bool] = False

    def __init__(self, max_response_length: int) -> None:
        self.max_response_length = max_response_length

    @abstractmethod
    async def play(self, prompt: Prompt, engine: Generator) -> Episode:
        """One episode from its prompt to its end."""
