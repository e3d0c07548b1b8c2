"""One prompt, one response."""

from __future__ import annotations

from dataclasses import dataclass

from rlnorm.environments.interface import Environment, Transcript


@dataclass(frozen=True)
class SingleTurn(Environment):
    """The policy answers once; every response token is its own, the stratum is 0."""

    async def play(self, transcript: Transcript) -> None:
        await transcript.sample()
