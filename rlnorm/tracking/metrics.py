"""Metrics of a run: metrics.jsonl always, TensorBoard and W&B where asked for.

One line per step: {"step": n, "kind": "train" or "eval", name: value ...}.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from rlnorm.config import Tracker
from rlnorm.errors import UserError
from rlnorm.files import write_text


class MetricsWriter:
    """Appends rows; a row is on disk when `write` returns."""

    def __init__(self, folder: Path, name: str, trackers: list[Tracker], config: Any) -> None:
        self.path = folder / "metrics.jsonl"
        self._board: Any = None
        self._wandb: Any = None
        if Tracker.tensorboard in trackers:
            check_tracker(Tracker.tensorboard)
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(folder / "tensorboard"))
        if Tracker.wandb in trackers:
            check_tracker(Tracker.wandb)
            import wandb

            self._wandb = wandb.init(project="rlnorm", name=name, config=config, dir=str(folder))

    def write(self, step: int, kind: str, values: dict[str, float]) -> None:
        """One row. A value that is not finite is written as null, never as broken JSON."""
        finite = {k: v if abs(v) < float("inf") else None for k, v in values.items()}
        line = json.dumps({"step": step, "kind": kind, **finite}, allow_nan=False)
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())
        named = {f"{kind}/{name}": value for name, value in values.items()}
        if self._board is not None:
            for name, value in named.items():
                self._board.add_scalar(name, value, step)
            self._board.flush()
        if self._wandb is not None:
            self._wandb.log(named, step=step)

    def close(self) -> None:
        """Flush and end the services."""
        if self._board is not None:
            self._board.close()
        if self._wandb is not None:
            self._wandb.finish()


def check_tracker(tracker: Tracker) -> None:
    """UserError if a tracker's package is not installed."""
    module = {Tracker.tensorboard: "tensorboard", Tracker.wandb: "wandb"}[tracker]
    from importlib.util import find_spec

    if find_spec(module) is None:
        raise UserError(
            f"trainer.trackers names {tracker}, and the package {module} is not installed; "
            f"pip install {module}, or leave it out."
        )


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All whole rows of a metrics file; a last line cut off by a crash is left out."""
    if not path.is_file():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows


def keep_rows_until(path: Path, step: int) -> None:
    """Drop rows of later steps than the checkpoint that a run goes on from: they come again."""
    rows = [row for row in read_metrics(path) if row["step"] <= step]
    write_text(path, "".join(json.dumps(row) + "\n" for row in rows))
