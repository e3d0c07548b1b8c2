"""Checkpoints and other files are whole or not there at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlnorm.checkpoint import (
    fault_of,
    latest_good,
    list_checkpoints,
    load_state,
    remove_old,
    save_checkpoint,
)
from rlnorm.errors import UserError
from rlnorm.files import write_text, write_with
from rlnorm.tracking.metrics import keep_rows_until, read_metrics


def write_learner(folder: Path) -> dict[str, Any]:
    (folder / "rank_00000.safetensors").write_bytes(b"x" * 1000)
    return {"normalizer": {"mean": 0.5}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run é 空 #1" / "checkpoints"


def test_saved_state_comes_back(folder: Path) -> None:
    saved = save_checkpoint(folder, 9, write_learner, {"consumed": 4})
    assert load_state(saved) == {
        "consumed": 4,
        "step": 9,
        "pipeline": {"normalizer": {"mean": 0.5}},
    }
    assert latest_good(folder) == (saved, [])
    save_checkpoint(folder, 10, write_learner, {})
    assert [path.name for path in list_checkpoints(folder)] == ["step_000009", "step_000010"]


@pytest.mark.parametrize("damage", ["cut", "changed", "gone", "manifest"])
def test_damaged_checkpoint_is_named_and_the_last_good_one_used(folder: Path, damage: str) -> None:
    good = save_checkpoint(folder, 9, write_learner, {})
    bad = save_checkpoint(folder, 10, write_learner, {})
    file = bad / "learner" / "rank_00000.safetensors"
    if damage == "cut":
        file.write_bytes(b"x" * 999)
    elif damage == "changed":
        file.write_bytes(b"x" * 999 + b"y")
    elif damage == "gone":
        file.unlink()
    else:
        (bad / "manifest.json").write_text('{"cut')
    assert fault_of(good) is None
    found, warnings = latest_good(folder)
    assert found == good
    assert len(warnings) == 1 and "step_000010" in warnings[0]
    (good / "manifest.json").unlink()
    with pytest.raises(UserError, match="None of the 2 checkpoints"):
        latest_good(folder)


def test_failed_save_leaves_the_older_one(folder: Path) -> None:
    good = save_checkpoint(folder, 1, write_learner, {})

    def fails(learner: Path) -> dict[str, Any]:
        write_learner(learner)
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        save_checkpoint(folder, 2, fails, {})
    assert latest_good(folder) == (good, [])
    remove_old(folder, 1)
    assert [path.name for path in folder.iterdir()] == ["step_000001"]


def test_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_text(path, "old")

    def fails(temporary: Path) -> None:
        temporary.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError):
        write_with(path, fails)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_metrics_cut_off_by_a_crash(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "a": 1}\n{"step": 2, "a": 2}\n{"step": 3, "a": 3}\n{"step": 4, "')
    assert [row["step"] for row in read_metrics(path)] == [1, 2, 3]
    keep_rows_until(path, 2)
    assert path.read_text() == '{"step": 1, "a": 1}\n{"step": 2, "a": 2}\n'
