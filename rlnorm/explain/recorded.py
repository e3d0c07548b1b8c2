"""Recorded episodes, read back from a run's parquet files as reward batches.

Only reading lives here; what is computed from them is in `diagnosis`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from rlnorm.advantage import RewardBatch
from rlnorm.errors import UserError

PREFIX = "reward/"


@dataclass(frozen=True)
class RecordedStep:
    """The N episodes of one training step.

    Attributes:
        step: the training step, 0 where the file's name does not say.
        batch: their scalars; an unscored reward is NaN.
        response: their texts, or None where the file holds none.
    """

    step: int
    batch: RewardBatch
    response: list[str] | None

    def __post_init__(self) -> None:
        if self.batch.size == 0:
            raise ValueError(f"step {self.step} has no episodes")


def read_recorded(source: Path, last: int | None = None) -> list[RecordedStep]:
    """Read a parquet file, a folder of them, or a run's folder (its `episodes/`), by step.

    Args:
        source: each file is one training step, whose episodes are normalized together.
        last: only so many of the newest steps; None: all.

    Raises:
        UserError: nothing there, not parquet, a column missing or of the wrong type.
    """
    if source.is_dir():
        folder = source / "episodes" if (source / "episodes").is_dir() else source
        paths = sorted(folder.glob("*.parquet"), key=lambda path: (step_of(path), path.name))
        if not paths:
            raise UserError(
                f"{str(folder)!r} holds no .parquet file; a run writes them where "
                "trainer.record_episodes_every is 1 or more."
            )
    elif source.is_file():
        paths = [source]
    else:
        raise UserError(f"There is no file or run's folder {str(source)!r}.")
    return [_read(path) for path in paths[-last if last else None :]]


def step_of(path: Path) -> int:
    """The training step a file's name ends with (step_000012.parquet), or 0."""
    found = re.search(r"(\d+)$", path.stem)
    return int(found[1]) if found else 0


def _read(path: Path) -> RecordedStep:
    try:
        names = pq.read_schema(path).names
        rewards = [name for name in names if name.startswith(PREFIX)]
        wanted = ["group", "length", "stratum", "truncated", "response", *rewards]
        table = pq.read_table(path, columns=[name for name in wanted if name in names])
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{str(path)!r} cannot be read as parquet: {reason}") from None
    for name in ("group", "length"):
        if name not in names:
            raise UserError(f"{str(path)!r} has no column {name!r}; it has {', '.join(names)}.")
    if not rewards:
        raise UserError(
            f"{str(path)!r} has no column that begins with {PREFIX!r}; it has {', '.join(names)}."
        )
    if table.num_rows == 0:
        raise UserError(f"{str(path)!r} has no episodes.")

    def column(name: str, dtype: pa.DataType) -> torch.Tensor:
        values = table.column(name)
        if name not in rewards and values.null_count:
            row = int(np.flatnonzero(values.is_null().to_numpy())[0])
            raise UserError(f"{str(path)!r}: {name} is null in row {row}, it must be a number.")
        try:
            return torch.from_numpy(np.array(values.cast(dtype).to_numpy()))  # null becomes NaN
        except pa.ArrowException:
            raise UserError(
                f"{str(path)!r}: the column {name!r} is of type {values.type}, it must be {dtype}."
            ) from None

    return RecordedStep(
        step=step_of(path),
        batch=RewardBatch(
            group=column("group", pa.int64()),
            rewards={n.removeprefix(PREFIX): column(n, pa.float64()) for n in rewards},
            length=column("length", pa.int64()),
            stratum=column("stratum", pa.int64()) if "stratum" in names else None,
            truncated=column("truncated", pa.bool_()) if "truncated" in names else None,
        ),
        response=table.column("response").to_pylist() if "response" in names else None,
    )
