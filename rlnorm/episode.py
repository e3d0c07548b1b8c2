"""Episodes: what the rollout workers hand on, one by one and as columns for the object store.

Only data types live here. No sampling, no scoring, no training.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Turn:
    """A part of a response.

    Attributes:
        end: the response position just past its last token.
        by_policy: the policy sampled it; else the environment wrote it.
        text: special tokens left out.
    """

    end: int
    by_policy: bool
    text: str


@dataclass
class Episode:
    """One sampled response, possibly of several turns.

    Attributes:
        group: the prompt's id within the run; never positional.
        sample: which of the group's samples this is, from 0.
        prompt_ids: token ids of the prompt.
        response_ids: token ids after the prompt, exactly as the engine produced or received
            them; never re-tokenized.
        loss_mask: 1 where the policy sampled the token, 0 where the environment wrote it.
        rollout_logprobs: log-prob of each response token by the rollout engine (0 where the
            environment wrote it), at the sampling temperature.
        answer: the dataset's gold answer.
        response: the response's text, special tokens left out.
        turns: the response's parts, in order.
        row: the prompt's row in the dataset.
        stratum: what the environment counted (such as search calls).
        truncated: the response hit its length limit.
        weight_version: of the weights that sampled it.
        step_rewards: (end, value): process rewards of the steps that end before token `end`.
        metadata: whatever else the environment wants recorded; JSON types only.
        error: the traceback if the environment failed, else empty; a failed episode has no
            response and is not scored.
    """

    group: int
    sample: int
    prompt_ids: list[int]
    response_ids: list[int]
    loss_mask: list[int]
    rollout_logprobs: list[float]
    answer: str
    row: int
    response: str = ""
    turns: list[Turn] = field(default_factory=list)
    stratum: int = 0
    truncated: bool = False
    weight_version: int = 0
    step_rewards: list[tuple[int, float]] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    error: str = ""

    def __post_init__(self) -> None:
        lengths = {len(self.response_ids), len(self.loss_mask), len(self.rollout_logprobs)}
        if len(lengths) != 1:
            raise ValueError(
                f"episode {self.group}/{self.sample}: response_ids, loss_mask and "
                f"rollout_logprobs differ in length: {len(self.response_ids)}, "
                f"{len(self.loss_mask)}, {len(self.rollout_logprobs)}"
            )


@dataclass
class EpisodeBlock:
    """Many episodes as columns: tokens flat with offsets [n + 1], scalars [n].

    This is what travels through Ray's object store, from the rollout worker straight to reward
    workers and learners.
    """

    prompt_ids: Ints
    prompt_offsets: Ints
    response_ids: Ints
    loss_mask: Bools
    rollout_logprobs: Floats
    response_offsets: Ints
    group: Ints
    sample: Ints
    row: Ints
    stratum: Ints
    truncated: Bools
    weight_version: Ints
    response: list[str]
    answer: list[str]
    turns: list[list[Turn]]
    metadata: list[dict[str, Any]]
    error: list[str]

    @classmethod
    def of(cls, episodes: list[Episode]) -> EpisodeBlock:
        """Columns of these episodes, in their order."""

        def flat(name: str, dtype: Any) -> npt.NDArray[Any]:
            parts = [np.asarray(getattr(e, name), dtype=dtype) for e in episodes]
            return np.concatenate(parts) if parts else np.empty(0, dtype)

        def offsets(name: str) -> Ints:
            return np.cumsum([0, *(len(getattr(e, name)) for e in episodes)], dtype=np.int64)

        def column(name: str, dtype: Any) -> npt.NDArray[Any]:
            return np.asarray([getattr(e, name) for e in episodes], dtype=dtype)

        return cls(
            prompt_ids=flat("prompt_ids", np.int64),
            prompt_offsets=offsets("prompt_ids"),
            response_ids=flat("response_ids", np.int64),
            loss_mask=flat("loss_mask", np.bool_),
            rollout_logprobs=flat("rollout_logprobs", np.float32),
            response_offsets=offsets("response_ids"),
            group=column("group", np.int64),
            sample=column("sample", np.int64),
            row=column("row", np.int64),
            stratum=column("stratum", np.int64),
            truncated=column("truncated", np.bool_),
            weight_version=column("weight_version", np.int64),
            response=[e.response for e in episodes],
            answer=[e.answer for e in episodes],
            turns=[e.turns for e in episodes],
            metadata=[e.metadata for e in episodes],
            error=[e.error for e in episodes],
        )

    def __len__(self) -> int:
        return len(self.group)

    def prompt(self, i: int) -> Ints:
        """Token ids of episode i's prompt."""
        return self.prompt_ids[self.prompt_offsets[i] : self.prompt_offsets[i + 1]]

    def span(self, i: int) -> slice:
        """Where episode i's response lies in the flat response columns."""
        return slice(int(self.response_offsets[i]), int(self.response_offsets[i + 1]))

    def trainable_lengths(self) -> Ints:
        """[n] number of tokens the policy sampled."""
        sums = np.concatenate([[0], np.cumsum(self.loss_mask, dtype=np.int64)])
        return np.diff(sums[self.response_offsets])


@dataclass
class StepScalars:
    """The scalars of all episodes of a step, [N] each, in the order of the blocks.

    The only part of a step's episodes that the driver handles.
    """

    group: Ints
    sample: Ints
    row: Ints
    rewards: dict[str, npt.NDArray[np.float64]]
    length: Ints
    response_length: Ints
    prompt_length: Ints
    stratum: Ints
    truncated: Bools
    failed: Bools
    weight_version: Ints

    @classmethod
    def of(cls, block: EpisodeBlock, rewards: dict[str, npt.NDArray[np.float64]]) -> StepScalars:
        """The scalars of one block with its rewards (NaN: not scored)."""
        return cls(
            group=block.group,
            sample=block.sample,
            row=block.row,
            rewards=rewards,
            length=block.trainable_lengths(),
            response_length=np.diff(block.response_offsets),
            prompt_length=np.diff(block.prompt_offsets),
            stratum=block.stratum,
            truncated=block.truncated,
            failed=np.asarray([bool(error) for error in block.error], dtype=np.bool_),
            weight_version=block.weight_version,
        )

    @classmethod
    def concatenate(cls, parts: list[StepScalars]) -> StepScalars:
        """One after the other."""

        def join(name: str) -> Any:
            return np.concatenate([getattr(part, name) for part in parts])

        names = sorted({name for part in parts for name in part.rewards})
        return cls(
            rewards={n: np.concatenate([part.rewards[n] for part in parts]) for n in names},
            **{f: join(f) for f in cls.__dataclass_fields__ if f != "rewards"},
        )

    def __len__(self) -> int:
        return len(self.group)
