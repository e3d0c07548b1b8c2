"""The reward worker: a Ray actor that scores blocks of episodes and records them to disk.

It keeps texts and tokens away from the driver, which sees scalars only.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rlnorm.episode import EpisodeBlock, StepScalars
from rlnorm.files import write_with
from rlnorm.rewards.registry import build_rewards


@dataclass(frozen=True)
class Scored:
    """A block's scalars, counts named reward/event, and the failed episodes' tracebacks."""

    scalars: StepScalars
    counts: dict[str, int]
    errors: list[str]


class RewardWorker:
    """Holds the environment's rewards (and their grading processes)."""

    def __init__(self, rewards: dict[str, Any]) -> None:
        self.rewards = build_rewards(rewards)

    def ready(self) -> bool:
        """Answers once the worker is up."""
        return True

    def score(self, block: EpisodeBlock) -> Scored:
        """Score the block's episodes; failed ones get no score."""
        values: dict[str, np.ndarray[Any, np.dtype[np.float64]]] = {}
        counts: Counter[str] = Counter()
        played = [i for i, error in enumerate(block.error) if not error]
        golds = [block.answer[i] for i in played]
        responses = [block.response[i] for i in played]
        for name, reward in self.rewards.items():
            scores = reward.score(golds, responses)
            values[name] = np.full(len(block), np.nan)
            values[name][played] = [np.nan if v is None else v for v in scores.values]
            counts.update({f"{name}/{event}": n for event, n in scores.counts.items()})
        return Scored(
            StepScalars.of(block, values), dict(counts), [error for error in block.error if error]
        )

    def record(
        self,
        path: str,
        scalars: StepScalars,
        advantage: np.ndarray[Any, np.dtype[np.float32]] | None,
        weight: np.ndarray[Any, np.dtype[np.float32]] | None,
        *blocks: EpisodeBlock,
    ) -> None:
        """Write episodes with rewards, advantages and token weights as one parquet file."""
        prompts = [block.prompt(i).tolist() for block in blocks for i in range(len(block))]
        spans = [(block, block.span(i)) for block in blocks for i in range(len(block))]
        columns: dict[str, Any] = {
            "group": scalars.group,
            "sample": scalars.sample,
            "row": scalars.row,
            "stratum": scalars.stratum,
            "length": scalars.length,
            "truncated": scalars.truncated,
            "weight_version": scalars.weight_version,
            "answer": [text for block in blocks for text in block.answer],
            "response": [text for block in blocks for text in block.response],
            "prompt_ids": prompts,
            "response_ids": [block.response_ids[span].tolist() for block, span in spans],
            "loss_mask": [block.loss_mask[span].tolist() for block, span in spans],
            "rollout_logprobs": [block.rollout_logprobs[span].tolist() for block, span in spans],
        }
        metadata = [data for block in blocks for data in block.metadata]
        if any(metadata):
            columns["metadata"] = [json.dumps(data) for data in metadata]
        if scalars.failed.any():
            columns["error"] = [error or None for block in blocks for error in block.error]
        for name, reward in scalars.rewards.items():
            columns[f"reward/{name}"] = pa.array(reward, from_pandas=True)
        if advantage is not None:
            columns["advantage"] = advantage
            columns["weight"] = weight
        table = pa.table(columns)
        write_with(Path(path), lambda temporary: pq.write_table(table, temporary))

    def close(self) -> None:
        """End the grading processes."""
        for reward in self.rewards.values():
            reward.close()
