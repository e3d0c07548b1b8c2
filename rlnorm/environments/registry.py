"""Names to environments, and the config's section to an environment object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any

from rlnorm.advantage.registry import Registry
from rlnorm.environments.interface import Environment
from rlnorm.environments.search import Search
from rlnorm.environments.single_turn import SingleTurn
from rlnorm.errors import UserError

ENVIRONMENTS = Registry("environment")
ENVIRONMENTS.register("single_turn")(SingleTurn)
ENVIRONMENTS.register("search")(Search)


def build_environment(name: str, settings: Mapping[str, Any]) -> Environment:
    """The environment of this name or "package.module:Class"; UserError for a mistake in it."""
    try:
        kind = ENVIRONMENTS.resolve(name)
        if not (issubclass(kind, Environment) and is_dataclass(kind)):
            raise ValueError(f"name {name!r} is no dataclass that subclasses Environment")
        environment: Environment = ENVIRONMENTS.build({**settings, "name": name})
    except ValueError as error:
        text = str(error).removeprefix("environment.")
        key = "environment." if text.startswith("name ") else "environment.settings."
        raise UserError(f"{key}{text}") from None
    return environment
