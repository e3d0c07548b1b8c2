"""Environments: how one episode is played, turn by turn, against a rollout engine.

An environment lets the policy speak and writes what it answers itself; it does not score. One of
your own is named in the config as "package.module:Class".
"""

from rlnorm.environments.interface import Environment, Generation, Generator, Prompt, Transcript
from rlnorm.environments.registry import ENVIRONMENTS, build_environment

__all__ = [
    "ENVIRONMENTS",
    "Environment",
    "Generation",
    "Generator",
    "Prompt",
    "Transcript",
    "build_environment",
]
