"""What an environment is given and must give back. No environment lives here."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from rlnorm.episode import Episode, Turn


@dataclass(frozen=True)
class Prompt:
    """One episode to play.

    Attributes:
        group, sample: which prompt of the run, and which of its samples.
        row: row in the dataset.
        prompt_ids: token ids.
        question: the dataset's question, without template.
        answer: gold answer, for the record; environments must not show it to the policy.
        seed: of this episode's sampling; belongs to the episode, not to the worker.
    """

    group: int
    sample: int
    row: int
    prompt_ids: list[int]
    question: str
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

    async def generate(
        self, token_ids: list[int], max_tokens: int, seed: int, stop: Sequence[str] = ()
    ) -> Generation:
        """Sample after these tokens, until one of these texts is complete, too."""
        ...

    def encode(self, text: str) -> list[int]:
        """Tokens of this text, no special ones added."""
        ...

    def decode(self, token_ids: list[int]) -> str:
        """Text of these tokens, special ones left out."""
        ...


class Transcript:
    """An episode while it is played: what the policy sampled and the environment wrote.

    Tokens are kept as the engine gave or received them and never made again from text, so that
    the learner sees what the engine saw.

    Attributes:
        prompt: what it answers.
        turns: so far, each the policy's or the environment's.
        truncated: the response's token limit ended a turn, or left no room for what the
            environment had to say.
        stratum: what the environment counts; set it as you go.
        metadata: what else to record with the episode, JSON types only.
    """

    def __init__(self, prompt: Prompt, engine: Generator, max_response_length: int) -> None:
        self.prompt = prompt
        self.turns: list[Turn] = []
        self.truncated = False
        self.stratum = 0
        self.metadata: dict[str, Any] = {}
        self._engine = engine
        self._limit = max_response_length
        self._ids: list[int] = []
        self._mask: list[int] = []
        self._logprobs: list[float] = []
        self._version = 0
        self._sampled = 0

    @property
    def remaining(self) -> int:
        """Tokens that the response may still have."""
        return self._limit - len(self._ids)

    async def sample(self, stop: Sequence[str] = ()) -> str:
        """Let the policy go on until it ends its turn, one of `stop` is complete, or no token is
        left; the text it sampled (the stop included, its end-of-sequence token not)."""
        if self.remaining <= 0:
            self.truncated = True
            return ""
        seed = turn_seed(self.prompt.seed, self._sampled)
        self._sampled += 1
        made = await self._engine.generate(
            [*self.prompt.prompt_ids, *self._ids], self.remaining, seed, stop
        )
        self._ids += made.token_ids
        self._mask += [1] * len(made.token_ids)
        self._logprobs += made.logprobs
        self._version = made.weight_version
        self.truncated = made.truncated
        text = self._engine.decode(made.token_ids)
        self.turns.append(Turn(len(self._ids), True, text))
        return text

    def write(self, text: str) -> bool:
        """What the environment says, in tokens that carry no gradient. False, and the episode
        counts as truncated, if they don't fit with at least one token for the policy after
        them: nothing is written then."""
        ids = self._engine.encode(text)
        if len(ids) >= self.remaining:
            self.truncated = True
            return False
        self._ids += ids
        self._mask += [0] * len(ids)
        self._logprobs += [0.0] * len(ids)
        self.turns.append(Turn(len(self._ids), False, text))
        return True

    def episode(self) -> Episode:
        """What was played."""
        return Episode(
            **self._identity(),
            response_ids=self._ids,
            loss_mask=self._mask,
            rollout_logprobs=self._logprobs,
            response=self._engine.decode(self._ids),
            turns=self.turns,
            truncated=self.truncated,
            stratum=self.stratum,
            weight_version=self._version,
            metadata=self.metadata,
        )

    def failed(self, error: str) -> Episode:
        """In its place where the environment failed: no tokens, so nothing is learned from it.

        Args:
            error: the traceback.
        """
        return Episode(
            **self._identity(), response_ids=[], loss_mask=[], rollout_logprobs=[], error=error
        )

    def _identity(self) -> dict[str, Any]:
        prompt = self.prompt
        return {
            "group": prompt.group,
            "sample": prompt.sample,
            "row": prompt.row,
            "prompt_ids": prompt.prompt_ids,
            "answer": prompt.answer,
        }


def turn_seed(seed: int, turn: int) -> int:
    """The seed of an episode's later turns; the first has the episode's own."""
    if turn == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}/{turn}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 2


class Environment(ABC):
    """Plays episodes, many at a time in one event loop, beside the engine.

    A subclass is a dataclass whose fields are its settings (`environment.settings`). It holds
    nothing of a single episode; what is slow goes into `start`, and `play` awaits instead of
    blocking. What it raises costs that one episode.

    Attributes:
        has_strata: its episodes differ in what it counts (`Transcript.stratum`).
        has_steps: its episodes have several turns, which a judge can score.
    """

    name: ClassVar[str] = ""
    has_strata: ClassVar[bool] = False
    has_steps: ClassVar[bool] = False

    async def start(self) -> None:  # noqa: B027  (most have nothing to start)
        """Once in each rollout worker, before the first episode."""

    def check(self) -> None:  # noqa: B027
        """Refuse with UserError, before anything starts, what is known to be wrong."""

    @abstractmethod
    async def play(self, transcript: Transcript) -> None:
        """One episode, from its prompt to its end."""
