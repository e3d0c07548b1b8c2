"""Checkpoints: written beside, listed in a manifest with sizes and checksums, renamed into place.

A checkpoint is a folder checkpoints/step_NNNNNN with learner/ (whole float32 tensors in
safetensors files), state.json (everything else that a resumed run needs) and manifest.json.
A folder with that name is complete; what is half-written has another name.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlnorm.errors import UserError
from rlnorm.files import sync_folder, write_json

PREFIX = "step_"


def checkpoint_name(step: int) -> str:
    """Folder name of a step's checkpoint."""
    return f"{PREFIX}{step:06d}"


def save_checkpoint(
    folder: Path, step: int, write_learner: Callable[[Path], dict[str, Any]], state: dict[str, Any]
) -> Path:
    """Write a checkpoint and put it in place.

    Args:
        folder: the run's checkpoints folder.
        step: training steps made.
        write_learner: fills the folder it is given; its answer is kept as state["pipeline"].
        state: what else to keep, JSON.
    """
    target = folder / checkpoint_name(step)
    temporary = folder / f".{target.name}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    (temporary / "learner").mkdir(parents=True)
    pipeline = write_learner(temporary / "learner")
    write_json(temporary / "state.json", {**state, "step": step, "pipeline": pipeline})
    files = sorted(path for path in temporary.rglob("*") if path.is_file())
    manifest = {
        str(path.relative_to(temporary)): {"bytes": path.stat().st_size, "sha256": _sha256(path)}
        for path in files
    }
    write_json(temporary / "manifest.json", manifest)
    if target.exists():
        shutil.rmtree(target)
    temporary.rename(target)
    sync_folder(folder)
    return target


def fault_of(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint, or None if every file is as the manifest says."""
    try:
        manifest = json.loads((checkpoint / "manifest.json").read_text())
    except (OSError, ValueError) as error:
        return f"its manifest cannot be read ({error})"
    for name, expected in manifest.items():
        path = checkpoint / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != expected["bytes"]:
            return f"{name} has {path.stat().st_size} bytes, not {expected['bytes']}"
        if _sha256(path) != expected["sha256"]:
            return f"{name} has another checksum"
    return None


def list_checkpoints(folder: Path) -> list[Path]:
    """Checkpoints from oldest to newest, by number."""
    found = [p for p in folder.glob(f"{PREFIX}*") if p.is_dir() and p.name[5:].isdigit()]
    return sorted(found, key=lambda path: int(path.name[len(PREFIX) :]))


def latest_good(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint whose files are whole, and a warning for each newer bad one.

    Raises:
        UserError: there are checkpoints, and none is whole.
    """
    warnings: list[str] = []
    checkpoints = list_checkpoints(folder)
    for checkpoint in reversed(checkpoints):
        fault = fault_of(checkpoint)
        if fault is None:
            return checkpoint, warnings
        warnings.append(f"Checkpoint {checkpoint} is not used: {fault}.")
    if checkpoints:
        raise UserError(
            f"None of the {len(checkpoints)} checkpoints in {folder} is whole ({warnings[0]}) "
            "Move the folder away to start anew."
        )
    return None, warnings


def load_state(checkpoint: Path) -> dict[str, Any]:
    """What `save_checkpoint` was given as state."""
    state: dict[str, Any] = json.loads((checkpoint / "state.json").read_text())
    return state


def remove_old(folder: Path, keep_last: int) -> None:
    """Remove all but the newest `keep_last` checkpoints, and what was half-written."""
    for checkpoint in list_checkpoints(folder)[:-keep_last]:
        shutil.rmtree(checkpoint)
    for leftover in folder.glob(f".{PREFIX}*.tmp"):
        shutil.rmtree(leftover, ignore_errors=True)


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
