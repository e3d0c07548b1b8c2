"""`rlnorm explain` from its arguments to its results: read, diagnose, write. No formula here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from rich.table import Table

from rlnorm.advantage import AdvantagePipeline
from rlnorm.config_loading import load_advantage
from rlnorm.errors import UserError
from rlnorm.explain.diagnosis import Recording, diagnose
from rlnorm.explain.page import terminal_table, write_page
from rlnorm.explain.recorded import read_recorded

DEFAULT = ("grpo", "dr_grpo", "rloo", "bnpo")


@dataclass(frozen=True)
class Explanation:
    """What was found: for the terminal, and where the page lies."""

    table: Table
    warnings: list[str]
    page: Path


def explain_episodes(
    source: Path,
    names: Sequence[str] | None = None,
    out: Path | None = None,
    last: int | None = None,
    resamples: int = 200,
    max_response_length: int | None = None,
) -> Explanation:
    """Diagnose pipelines on recorded episodes and write the page.

    Args:
        source: a run's folder, a folder of parquet files, or one such file.
        names: as in `advantage=NAME`, or YAML files; None: `DEFAULT`.
        out: the page; None: explain.html in the folder, FILE.explain.html beside a file.
        last, resamples: see `read_recorded` and `diagnose`.
        max_response_length: tokens; None: the run's own, else the longest response recorded.

    Raises:
        UserError: nothing readable there, an unknown name, or no pipeline can take the episodes.
    """
    chosen = list(dict.fromkeys(names or DEFAULT))
    sections = {name: load_advantage(name) for name in chosen}
    steps = read_recorded(source, last)
    recording = Recording(steps)
    longest = max_response_length or _run_limit(source) or max(int(recording.length.max()), 1)
    pipelines = {}
    for name, section in sections.items():
        try:
            pipelines[name] = AdvantagePipeline.from_config(section, max_response_length=longest)
        except ValueError as error:
            raise UserError(f"--advantage {name}: {error}.") from None
    reference = AdvantagePipeline.from_config({"normalizer": {"name": "grpo"}})
    diagnoses, refused = [], {}
    for name, pipeline in pipelines.items():
        try:
            diagnoses.append(diagnose(name, pipeline, recording, reference, resamples))
        except ValueError as error:
            refused[name] = str(error)
    if not diagnoses:
        name, why = next(iter(refused.items()))
        raise UserError(f"--advantage {name} cannot take the episodes of {str(source)!r}: {why}.")
    path = out or (
        source / "explain.html" if source.is_dir() else source.with_suffix(".explain.html")
    )
    write_page(path, f"Normalizers on {source.name}", recording, diagnoses, refused)
    warnings = [f"{d.name}: {warning}" for d in diagnoses for warning in d.warnings]
    warnings += [f"{name} cannot take these episodes: {why}." for name, why in refused.items()]
    return Explanation(terminal_table(diagnoses), warnings, path)


def _run_limit(source: Path) -> int | None:
    """rollout.max_response_length of the run that the episodes are of, if its config is there."""
    folders = [source] if source.is_dir() else []
    for folder in [*folders, source.parent, source.parent.parent]:
        path = folder / "config.yaml"
        if path.is_file():
            content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
            return content.get("rollout", {}).get("max_response_length")
    return None
