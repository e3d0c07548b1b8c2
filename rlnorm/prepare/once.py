"""A folder that is made whole or not at all, and once for the same settings."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rlnorm.files import write_json


def prepare_once(
    folder: Path, settings: Mapping[str, Any], make: Callable[[Path], dict[str, Any]]
) -> dict[str, Any]:
    """Let `make` fill a temporary folder, then put it in place with a record of the settings.

    Returns what `make` said of it; a folder already made with these settings is left as it is.
    Empty settings are those of a folder that can be made in one way only.
    """
    record = folder / "prepared.json"
    if record.is_file():
        made: dict[str, Any] = json.loads(record.read_text(encoding="utf-8"))
        if made.get("settings", {}) == settings:
            return {**made, "fresh": False}
    temporary = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    made = {"settings": dict(settings), **make(temporary)}
    write_json(temporary / "prepared.json", made)
    if folder.exists():
        shutil.rmtree(folder)
    temporary.rename(folder)
    return {**made, "fresh": True}
