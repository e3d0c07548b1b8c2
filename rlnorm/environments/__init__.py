"""Environments: how one episode is played, turn by turn, against a rollout engine.

An environment asks the engine for tokens and writes what it answers itself; it does not score.
"""

from rlnorm.environments.interface import Environment, Generation, Generator, Prompt
from rlnorm.environments.single_turn import SingleTurn

ENVIRONMENTS: dict[str, type[Environment]] = {"single_turn": SingleTurn}

__all__ = ["ENVIRONMENTS", "Environment", "Generation", "Generator", "Prompt", "SingleTurn"]
