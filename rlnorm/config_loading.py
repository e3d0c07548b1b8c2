"""Config files and command-line overrides, read into the typed Config (Hydra, OmegaConf).

Only reading, saving and comparing lives here; what a field means is said in `config`, and which
combinations make no sense in `config_checks`.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlnorm.config import Config, Schedule
from rlnorm.errors import UserError
from rlnorm.files import write_text

# What may differ when a run goes on: nothing here changes what is learned, apart from rounding.
MAY_CHANGE_ON_RESUME = (
    "trainer.name",
    "trainer.output_dir",
    "trainer.steps",
    "trainer.eval_every",
    "trainer.save_every",
    "trainer.keep_last",
    "trainer.record_episodes_every",
    "trainer.trackers",
    "data.eval_limit",
    "environment.timeout_s",
    "rollout.engines",
    "rollout.tensor_parallel",
    "rollout.kv_cache_gib",
    "rollout.gpu_memory_utilization",
    "rollout.max_sequences",
    "rollout.threads",
    "rollout.start_timeout_s",
    "rollout.timeout_s",
    "learner.ranks",
    "learner.zero_stage",
    "learner.micro_batch_tokens",
    "learner.micro_batch_episodes",
    "learner.logit_chunk_tokens",
    "learner.gradient_checkpointing",
    "learner.threads",
    "learner.start_timeout_s",
    "learner.timeout_s",
    "cluster",
)


def shipped_configs() -> Path:
    """Folder of the config groups: in the wheel inside the package, in a checkout beside it."""
    package = Path(__file__).resolve().parent
    inside = package / "configs"
    return inside if inside.is_dir() else package.parent / "configs"


def load_config(path: str | Path, overrides: Iterable[str] = ()) -> Config:
    """Read a config file with its groups and apply overrides.

    Args:
        path: YAML file. Groups it names are looked up beside it, then among the shipped ones.
        overrides: Hydra's grammar, `advantage=rloo` (a group) or `learner.lr=1e-6` (a value).

    Raises:
        UserError: no such file or group, unknown key (with the nearest right one), wrong type,
            a value that is required and not given.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"There is no config file {str(path)!r}.")
    folders = [path.resolve().parent, shipped_configs()]
    parsed = [_parse(text) for text in overrides]
    choices = {o.key_or_group: str(o.value()) for o in parsed if _is_group(o, folders)}
    values = [o for o in parsed if not _is_group(o, folders)]
    composed = _compose(path, folders, choices)
    for value in values:
        _apply(composed, value)
    config = _typed(composed, str(path))
    if config.trainer.name is None:
        config.trainer.name = _default_name(path, list(overrides))
    return config


def load_advantage(name: str) -> dict[str, Any]:
    """The advantage section that `advantage=NAME` would choose, or that a YAML file holds.

    Raises:
        UserError: no such config (with the nearest one), or the file is not a mapping.
    """
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        path = _group_file("advantage", name, [shipped_configs()])
    elif not path.is_file():
        raise UserError(f"There is no config file {name!r}.")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise UserError(f"The config {name!r} cannot be read: {reason}") from None
    if not isinstance(content, dict):
        raise UserError(f"The config {name!r} must be a mapping.")
    return {str(key): value for key, value in content.items()}


def _parse(text: str) -> Override:
    key, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not re.fullmatch(r"\+*[\w.]+", key):
        raise UserError(f"The override {text!r} is not of the form key=value.")
    parser = OverridesParser.create()
    try:
        override: Override = parser.parse_overrides([f"{key}={value}"])[0]
    except HydraException:
        # what Hydra's grammar has no words for, such as a path with an accent, is plain text
        quoted = value.replace("\\", "\\\\").replace("'", "\\'")
        override = parser.parse_overrides([f"{key}='{quoted}'"])[0]
    if override.is_delete() or override.is_sweep_override():
        raise UserError(f"The override {text!r} must set one value: key=value.")
    return override


def _is_group(override: Override, folders: list[Path]) -> bool:
    """Whether it chooses a config of a group, such as advantage=rloo."""
    return any((folder / override.key_or_group).is_dir() for folder in folders)


def _compose(path: Path, folders: list[Path], choices: dict[str, str]) -> dict[str, Any]:
    """The file, its defaults list and the chosen groups as plain Python values."""
    files = {group: _group_file(group, option, folders) for group, option in choices.items()}
    search = f"hydra.searchpath=['file://{folders[1]}']"
    try:
        listed = _listed_groups(path)
        known = [f"{group}={option}" for group, option in choices.items() if group in listed]
        with initialize_config_dir(version_base="1.3", config_dir=str(folders[0])):
            composed: Any = compose(config_name=path.name, overrides=[*known, search])
        # a file without that group in its defaults, such as a saved run's: the section is replaced
        for group in choices.keys() - listed:
            composed = OmegaConf.merge({**composed, group: OmegaConf.load(files[group])})
        content = OmegaConf.to_container(composed, resolve=True)
    except (HydraException, OmegaConfBaseException, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"The config {str(path)!r} cannot be read: {reason}") from None
    if not isinstance(content, dict):
        raise UserError(f"The config {str(path)!r} must be a mapping.")
    return {str(key): value for key, value in content.items()}


def _group_file(group: str, option: str, folders: list[Path]) -> Path:
    """The file of a group's option; UserError if there is none, with the nearest one."""
    options = {f.stem: f for folder in reversed(folders) for f in (folder / group).glob("*.yaml")}
    if option not in options:
        hint = _nearest(option, options)
        raise UserError(f"{group} is {option!r}, and there is no such config; {hint}")
    return options[option]


def _listed_groups(path: Path) -> set[str]:
    """The groups that a config file's defaults list names."""
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    defaults = content.get("defaults") if isinstance(content, dict) else None
    return {str(g) for entry in defaults or [] if isinstance(entry, dict) for g in entry}


def _apply(content: dict[str, Any], override: Override) -> None:
    """Set one value; what the schema does not know is found later, by `_typed`."""
    *parents, last = override.key_or_group.split(".")
    node: Any = content
    for index, parent in enumerate(parents):
        if isinstance(node, list):
            node = node[_list_index(override, parent, node)]
            continue
        if not isinstance(node.get(parent), (dict, list)):
            if node.get(parent) is not None:
                key = ".".join(parents[: index + 1])
                raise UserError(f"{override.key_or_group} cannot be set: {key} is not a section.")
            node[parent] = {}
        node = node[parent]
    value: Any = override.value()
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        # keep the text, so that a name such as 010 or 1e3 stays what was typed
        value = _Literal(value, (override.input_line or "").partition("=")[2])
    if isinstance(node, list):
        node[_list_index(override, last, node)] = value
    else:
        node[last] = value


def _list_index(override: Override, part: str, node: list[Any]) -> int:
    if not part.isdigit() or int(part) >= len(node):
        raise UserError(
            f"{override.key_or_group} cannot be set: {part!r} is no index of a list of {len(node)}."
        )
    return int(part)


@dataclasses.dataclass(frozen=True)
class _Literal:
    """A number from the command line and the text it was typed as."""

    value: int | float
    text: str


def _typed(content: dict[str, Any], source: str) -> Config:
    plain = _check(content, Config, "")
    try:
        merged = OmegaConf.merge(OmegaConf.structured(Config), plain)
        config = OmegaConf.to_object(merged)
    except OmegaConfBaseException as error:
        key = getattr(error, "full_key", None) or "a key"
        reason = str(getattr(error, "msg", "") or error).splitlines()[0]
        if "Missing mandatory value" in reason:
            raise UserError(f"{key} is not set in {source!r}; give it as {key}=VALUE.") from None
        raise UserError(f"{key} has a wrong value: {reason}.") from None
    assert isinstance(config, Config)
    return config


def _check(value: Any, wanted: Any, key: str) -> Any:
    """Unknown keys are refused by name, number-like values are brought to the field's type."""
    if dataclasses.is_dataclass(wanted):
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise UserError(f"{key or 'The config'} is {_show(value)}, it must be a section.")
        hints = typing.get_type_hints(wanted)
        names = [f.name for f in dataclasses.fields(wanted)]
        checked = {}
        for name, inner in value.items():
            full = f"{key}.{name}" if key else str(name)
            if name not in names:
                raise UserError(f"{full} is not a config key; {_hint(full, key, names)}")
            checked[name] = _check(inner, hints[name], full)
        return checked
    options = typing.get_args(wanted) if isinstance(wanted, types.UnionType) else (wanted,)
    if str in options and isinstance(value, _Literal):
        return value.text
    if isinstance(value, _Literal):
        value = value.value
    if value is None and type(None) not in options:
        raise UserError(f"{key} is null, it must be {_type_name(options[0])}.")
    if int in options and isinstance(value, (float, str)):
        number = _number(value)
        if number is None or number != int(number):
            raise UserError(f"{key} is {_show(value)}, it must be a whole number.")
        return int(number)
    if float in options and isinstance(value, str):
        number = _number(value)
        if number is None:
            raise UserError(f"{key} is {_show(value)}, it must be a number.")
        return number
    if int in options or float in options:
        if isinstance(value, bool) or not isinstance(value, (int, float, type(None))):
            raise UserError(f"{key} is {_show(value)}, it must be a number.")
    if bool in options and not isinstance(value, bool):
        raise UserError(f"{key} is {_show(value)}, it must be true or false.")
    enums = [o for o in options if isinstance(o, type) and hasattr(o, "__members__")]
    if enums and value is not None and str(value) not in enums[0].__members__:
        raise UserError(f"{key} is {_show(value)}; {_nearest(str(value), enums[0].__members__)}")
    return _plain(value)


def _plain(value: Any) -> Any:
    if isinstance(value, _Literal):
        return value.value
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except ValueError:
        return None


def _show(value: Any) -> str:
    return repr(value.value if isinstance(value, _Literal) else value)


def _type_name(wanted: Any) -> str:
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    return names.get(wanted, "set")


def _hint(full: str, section: str, names: list[str]) -> str:
    """The nearest right key, in this section first, then anywhere."""
    close = difflib.get_close_matches(full.rpartition(".")[2], names, n=1, cutoff=0.6)
    if close:
        return f"did you mean {section + '.' if section else ''}{close[0]}?"
    close = difflib.get_close_matches(full, _all_keys(Config, ""), n=1, cutoff=0.5)
    last = full.rpartition(".")[2]
    same = [k for k in _all_keys(Config, "") if k.rpartition(".")[2] == last]
    if same or close:
        return f"did you mean {(same or close)[0]}?"
    return f"{section or 'the top level'} has {', '.join(names)}."


def _all_keys(wanted: Any, prefix: str) -> list[str]:
    hints = typing.get_type_hints(wanted)
    keys = []
    for entry in dataclasses.fields(wanted):
        full = f"{prefix}{entry.name}"
        if dataclasses.is_dataclass(hints[entry.name]):
            keys += _all_keys(hints[entry.name], f"{full}.")
        keys.append(full)
    return keys


def _nearest(word: str, known: Iterable[str]) -> str:
    options = sorted(known)
    close = difflib.get_close_matches(word, options, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"it can be {', '.join(options)}." if options else "there is none."


def _default_name(path: Path, overrides: list[str]) -> str:
    """The file's name and what was overridden, so that the same command finds the same run."""
    parts = [path.stem]
    for override in overrides:
        key, _, value = override.lstrip("+").partition("=")
        if not _may_change(key):
            parts.append(f"{key.rpartition('.')[2]}-{Path(value).stem if '/' in value else value}")
    return re.sub(r"[^\w.+=-]+", "-", "_".join(parts))[:120]


def _may_change(key: str) -> bool:
    return any(key == free or key.startswith(f"{free}.") for free in MAY_CHANGE_ON_RESUME)


def to_plain(config: Config) -> dict[str, Any]:
    """The config as nested dicts of YAML types."""
    content = OmegaConf.to_container(OmegaConf.structured(config), enum_to_str=True)
    assert isinstance(content, dict)
    return {str(key): value for key, value in content.items()}


def save_config(config: Config, path: Path) -> None:
    """Write the resolved config; it is enough to repeat the run."""
    write_text(path, yaml.safe_dump(to_plain(config), sort_keys=False, allow_unicode=True))


def differences(saved: dict[str, Any], config: Config) -> list[str]:
    """What differs between a saved run's config and this one, beyond what may, one per line."""
    old, new = _flat(saved, ""), _flat(to_plain(config), "")
    # a decaying learning rate depends on the number of steps
    decays = config.learner.schedule is not Schedule.constant
    return [
        f"{key}: {old.get(key)!r} there, {new.get(key)!r} now"
        for key in sorted({*old, *new})
        if (not _may_change(key) or (decays and key == "trainer.steps"))
        and old.get(key) != new.get(key)
    ]


def _flat(content: Any, prefix: str) -> dict[str, Any]:
    if isinstance(content, Mapping) and content:
        flat: dict[str, Any] = {}
        for key, value in content.items():
            flat |= _flat(value, f"{prefix}.{key}" if prefix else str(key))
        return flat
    return {prefix: content}


__all__ = [
    "differences",
    "load_advantage",
    "load_config",
    "save_config",
    "shipped_configs",
    "to_plain",
]
