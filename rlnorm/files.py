"""Files written whole or not at all: temporary name, fsync, rename. Nothing else lives here."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def write_with(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a temporary file beside `path`, then put it in place.

    A reader sees the old file or the new one, never a part, whenever the machine stops.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def write_text(path: Path, text: str) -> None:
    """`write_with` for UTF-8 text."""
    write_with(path, lambda temporary: _write(temporary, text))


def write_json(path: Path, content: Any) -> None:
    """`write_with` for JSON; refuses what is not finite or not JSON (ValueError, TypeError)."""
    write_text(path, json.dumps(content, indent=1, allow_nan=False))


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def sync_folder(folder: Path) -> None:
    """Make a rename or a new name in this folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
