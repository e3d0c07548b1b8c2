"""The rollout workers as the trainer sees them: one round of sampling, one weight update."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import ray

from rlnorm.cluster import Cluster, get, get_ready
from rlnorm.config import Config
from rlnorm.config_checks import resolve_device
from rlnorm.data import PromptDataset
from rlnorm.episode import StepScalars
from rlnorm.rollout.sampling import Request, Sampling
from rlnorm.rollout.worker import EngineSpec, RolloutWorker


@dataclass(frozen=True)
class Round:
    """What the driver learns of a round of episodes.

    Attributes:
        scalars: of all episodes, in the order of the blocks.
        events: counts of what the rewards saw.
        errors: tracebacks of failed episodes.
        blocks: references to the episodes themselves.
    """

    scalars: StepScalars
    events: Counter[str]
    errors: list[str]
    blocks: list[Any]


class RolloutPool:
    """Starts the engines and shares requests out among them."""

    def __init__(self, cluster: Cluster, config: Config) -> None:
        self.limits = config.rollout
        spec = EngineSpec(
            model=config.model.path,
            tokenizer=config.model.tokenizer or config.model.path,
            trust_remote_code=config.model.trust_remote_code,
            environment=config.environment.name,
            environment_settings=config.environment.settings,
            episode_timeout_s=config.environment.episode_timeout_s,
            device=resolve_device(config),
            dtype=str(config.rollout.dtype),
            max_length=config.max_length,
            tensor_parallel=config.rollout.tensor_parallel,
            kv_cache_gib=config.rollout.kv_cache_gib,
            gpu_memory_utilization=config.rollout.gpu_memory_utilization,
            max_sequences=config.rollout.max_sequences,
            enforce_eager=config.rollout.enforce_eager,
        )
        self.names = [f"rollout-{i}" for i in range(config.rollout.engines)]
        self.workers = [cluster.actor(name, RolloutWorker, spec) for name in self.names]
        self._starting = [worker.start.remote() for worker in self.workers]

    def wait_started(self) -> str:
        """Wait until every engine is up; the vLLM version."""
        return str(self._all(self._starting, self.limits.start_timeout_s, "starting vLLM")[0])

    def set_dataset(self, name: str, dataset: PromptDataset) -> None:
        """Hand a dataset to every worker, once."""
        reference = ray.put(dataset)
        calls = [worker.set_dataset.remote(name, reference) for worker in self.workers]
        self._all(calls, self.limits.timeout_s, "receiving the dataset")

    def sample(self, dataset: str, requests: list[Request], sampling: Sampling) -> list[Any]:
        """Start one round; references to blocks of episodes, one per engine that got requests.

        The samples of one prompt go to one engine, whose prefix cache then computes it once.
        """
        count = len(self.workers)
        groups = {group: i for i, group in enumerate(dict.fromkeys(r.group for r in requests))}
        shares: list[list[Request]] = [[] for _ in range(count)]
        for request in requests:
            shares[groups[request.group] % count].append(request)
        return [
            worker.sample.remote(dataset, share, sampling)
            for worker, share in zip(self.workers, shares, strict=True)
            if share
        ]

    def score_round(
        self,
        dataset: str,
        requests: list[Request],
        sampling: Sampling,
        rewards: Any,
        scoring_timeout_s: float,
    ) -> Round:
        """Sample and score one round; a block is scored while others are still sampled.

        Args:
            rewards: the reward worker.
            scoring_timeout_s: seconds scoring may take once sampling is done.
        """
        blocks = self.sample(dataset, requests, sampling)
        scored = [rewards.score.remote(block) for block in blocks]
        for name, block in zip(self.names, blocks, strict=False):
            get_ready(block, self.limits.timeout_s, name, f"sampling from {dataset!r}")
        parts = [get(call, scoring_timeout_s, "reward-0", "scoring") for call in scored]
        events: Counter[str] = Counter()
        for part in parts:
            events.update(part.counts)
        return Round(
            StepScalars.concatenate([part.scalars for part in parts]),
            events,
            [error for part in parts for error in part.errors],
            blocks,
        )

    def begin_weight_update(self) -> None:
        """Stop sampling on all engines."""
        calls = [worker.begin_weight_update.remote() for worker in self.workers]
        self._all(calls, self.limits.timeout_s, "beginning a weight update")

    def load_bucket(self, bucket: Any) -> None:
        """Load one bucket (an object reference) on all engines."""
        calls = [worker.load_bucket.remote(bucket) for worker in self.workers]
        self._all(calls, self.limits.timeout_s, "loading weights")

    def finish_weight_update(self, version: int) -> None:
        """Put the weights to use; every engine must report this version."""
        calls = [worker.finish_weight_update.remote(version) for worker in self.workers]
        reported = self._all(calls, self.limits.timeout_s, "finishing a weight update")
        assert all(answer == version for answer in reported), reported

    def stop(self) -> None:
        """End the engines' processes."""
        calls = [worker.stop.remote() for worker in self.workers]
        self._all(calls, 60.0, "stopping")

    def _all(self, calls: list[Any], timeout_s: float, what: str) -> list[Any]:
        return [
            get(call, timeout_s, name, what) for name, call in zip(self.names, calls, strict=True)
        ]
