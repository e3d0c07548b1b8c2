"""What is to be sampled: settings of one request round, and the seeds of its episodes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Sampling:
    """Sampling settings of one round; see RolloutConfig."""

    temperature: float
    top_p: float = 1.0
    top_k: int = -1
    max_tokens: int = 512
    stop: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Request:
    """One episode to sample: a dataset row, its place in the run, its seed."""

    row: int
    group: int
    sample: int
    seed: int


def episode_seed(run_seed: int, group: int, sample: int) -> int:
    """The seed of an episode: it belongs to the episode, whichever worker samples it."""
    digest = hashlib.blake2b(f"{run_seed}/{group}/{sample}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 2
