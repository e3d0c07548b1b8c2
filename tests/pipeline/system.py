"""An engine and a learner of one model, for tests that compare what the two make of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import ray

from rlnorm.cluster import Cluster
from rlnorm.config import Config
from rlnorm.data import load_train_prompts
from rlnorm.episode import EpisodeBlock, StepScalars
from rlnorm.preflight import load_tokenizer
from rlnorm.rollout.pool import RolloutPool
from rlnorm.rollout.sampling import Request, Sampling, episode_seed
from tests.pipeline.conftest import Ranks


class System:
    """An engine and a learner of the same model, as the trainer has them."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.cluster = Cluster(config)
        self.rollout = RolloutPool(self.cluster, config)
        self.learners = Ranks(config)
        self.rollout.wait_started()
        self.tokenizer = load_tokenizer(config)
        self.prompts = load_train_prompts(config.data, self.tokenizer)
        self.rollout.set_dataset("train", self.prompts)
        self.limits = config.learner

    # what transfer_weights asks of a learner group
    def weight_buckets(self, max_bytes: int) -> Any:
        return self.learners.first("weight_buckets", 100_000)

    def weights(self, names: list[str]) -> Any:
        return [worker.weights.remote(names) for worker in self.learners.workers][0]

    def sample(self, requests: list[Request], temperature: float = 1.0) -> EpisodeBlock:
        sampling = Sampling(
            temperature=temperature, max_tokens=self.config.rollout.max_response_length
        )
        block = EpisodeBlock.of([])
        for part in ray.get(self.rollout.sample("train", requests, sampling), timeout=300):
            block = part
        return block

    def gap(self, block: EpisodeBlock) -> float:
        """Largest |log-prob by vLLM - log-prob by the learner| over all sampled tokens."""
        found = self.learners.all("token_logprobs", block)
        spans = [block.span(i) for i in range(len(block))]
        sampled = [block.rollout_logprobs[span][block.loss_mask[span]] for span in spans]
        pairs = list(zip(found, sampled, strict=True))
        assert sum(len(a) for a, _ in pairs) > 100
        return max(float(np.abs(a - b).max()) for a, b in pairs if len(a))

    def learn(self, block: EpisodeBlock, step: int) -> None:
        rewards = np.random.default_rng(step).random(len(block))
        self.learners.all("update", step, StepScalars.of(block, {"verifier": rewards}), block)


def requests(prompts: int, samples: int, seed: int = 0) -> list[Request]:
    return [
        Request(row=p, group=p, sample=s, seed=episode_seed(seed, p, s))
        for p in range(prompts)
        for s in range(samples)
    ]
