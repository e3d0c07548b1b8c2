"""Names to classes: how a method is found by one word of the config.

A method is a frozen dataclass whose fields are its settings. It is registered by the decorators
here, by a Python entry point of the groups "rlnorm.shaping", "rlnorm.normalizer" and
"rlnorm.aggregator", or named in the config as "package.module:Class". No method lives here.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import types
import typing
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any, TypeVar

T = TypeVar("T")


class Registry:
    """One kind of method ("shaping", "normalizer" or "aggregator") by name."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._classes: dict[str, type] = {}

    def register(self, name: str) -> Callable[[type[T]], type[T]]:
        """Class decorator; a name that is taken is refused (ValueError)."""

        def add(cls: type[T]) -> type[T]:
            if self._classes.get(name, cls) is not cls:
                raise ValueError(f"{self.kind} {name!r} is registered twice")
            self._classes[name] = cls
            cls.name = name  # type: ignore[attr-defined]
            return cls

        return add

    def names(self) -> list[str]:
        """All names, those of installed entry points included, sorted."""
        return sorted({*self._classes, *(e.name for e in self._entry_points())})

    def resolve(self, name: str) -> type:
        """The class behind a name, an entry point or "package.module:Class".

        Raises:
            ValueError: nothing of that name, said with the nearest one there is.
        """
        if name in self._classes:
            return self._classes[name]
        if ":" in name:
            module, _, attribute = name.partition(":")
            try:
                return getattr(importlib.import_module(module), attribute)
            except (ImportError, AttributeError) as error:
                raise ValueError(f"{self.kind}.name {name!r} cannot be imported: {error}") from None
        for entry in self._entry_points():
            if entry.name == name:
                return entry.load()
        raise ValueError(
            f"{self.kind}.name {name!r} is not known; {nearest(name, self.names())}"
        )

    def build(self, config: Mapping[str, Any]) -> Any:
        """An instance from {"name": ..., settings...}.

        Raises:
            ValueError: no name, an unknown name or setting, or a setting of the wrong type.
        """
        if isinstance(config, str):
            raise ValueError(
                f"{self.kind} is {config!r}, it must be a mapping; write {self.kind}.name={config}"
            )
        if not isinstance(config, Mapping) or "name" not in config:
            raise ValueError(f"{self.kind} needs a mapping with a name, it is {config!r}")
        cls = self.resolve(str(config["name"]))
        settings = {key: value for key, value in config.items() if key != "name"}
        hints = typing.get_type_hints(cls)
        fields = {f.name: hints[f.name] for f in dataclasses.fields(cls) if f.init}
        for key, value in settings.items():
            if key not in fields:
                raise ValueError(
                    f"{self.kind}.{key} is not a setting of {config['name']!r}; "
                    f"{nearest(key, fields)}"
                )
            settings[key] = _convert(f"{self.kind}.{key}", value, fields[key])
        try:
            return cls(**settings)
        except TypeError as error:
            raise ValueError(f"{self.kind} {config['name']!r}: {error}") from None

    def _entry_points(self) -> Any:
        return entry_points(group=f"rlnorm.{self.kind}")


def nearest(word: str, known: Any) -> str:
    """A half sentence that names the closest known word, or all of them."""
    known = sorted(known)
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"it can be {', '.join(known)}" if known else "it has none"


def _convert(key: str, value: Any, wanted: Any) -> Any:
    """Check a setting against its field's annotation; text that is a number becomes one."""
    origin = typing.get_origin(wanted)
    if origin is typing.Literal:
        choices = typing.get_args(wanted)
        if value not in choices:
            known = ", ".join(map(str, choices))
            raise ValueError(f"{key} is {value!r}, it must be one of {known}")
        return value
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in typing.get_args(wanted):
            return None
        problems = []
        for option in typing.get_args(wanted):
            if option is not type(None):
                try:
                    return _convert(key, value, option)
                except ValueError as error:
                    problems.append(str(error))
        raise ValueError("; or ".join(problems))
    if wanted is float and not isinstance(value, bool):
        try:
            return float(value)
        except (TypeError, ValueError):
            raise ValueError(f"{key} is {value!r}, it must be a number") from None
    if wanted is int and not isinstance(value, bool):
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise ValueError(f"{key} is {value!r}, it must be a whole number") from None
        if number != int(number):
            raise ValueError(f"{key} is {value!r}, it must be a whole number")
        return int(number)
    if wanted in (bool, str, float, int):
        if not isinstance(value, wanted) or (wanted is not bool and isinstance(value, bool)):
            raise ValueError(f"{key} is {value!r}, it must be of type {wanted.__name__}")
    if origin is dict or wanted is dict:
        if not isinstance(value, Mapping):
            raise ValueError(f"{key} is {value!r}, it must be a mapping")
        arguments = typing.get_args(wanted)
        inner = arguments[1] if arguments else Any
        return {str(k): _convert(f"{key}.{k}", v, inner) for k, v in value.items()}
    return value


SHAPINGS = Registry("shaping")
NORMALIZERS = Registry("normalizer")
AGGREGATORS = Registry("aggregator")
