"""All learner ranks as the trainer sees them: every call goes to all of them."""

from __future__ import annotations

from typing import Any

from rlnorm.cluster import Cluster, get
from rlnorm.config import Config
from rlnorm.config_checks import build_objective, resolve_device
from rlnorm.episode import StepScalars
from rlnorm.learner.schedule import LearningRate
from rlnorm.learner.worker import LearnerSpec, LearnerWorker, UpdateResult


class LearnerGroup:
    """Starts the ranks and calls them together."""

    def __init__(self, cluster: Cluster, config: Config, checkpoint: str | None) -> None:
        self.limits = config.learner
        spec = learner_spec(config, cluster.slots["learner-0"].threads)
        self.workers = [
            cluster.actor(f"learner-{rank}", LearnerWorker, spec, rank)
            for rank in range(config.learner.ranks)
        ]
        wait = self.limits.start_timeout_s
        host, port = get(self.workers[0].address.remote(), wait, "learner-0", "starting")
        self._starting = [w.start.remote(host, port, checkpoint) for w in self.workers]

    def wait_started(self) -> dict[str, Any]:
        """Wait until every rank is up; what rank 0 says of itself."""
        started: dict[str, Any] = self._all(
            self._starting, self.limits.start_timeout_s, "starting"
        )[0]
        return started

    def update(self, step: int, scalars: StepScalars, blocks: list[Any]) -> UpdateResult:
        """Train on one step's episodes; blocks are object references."""
        calls = [worker.update.remote(step, scalars, *blocks) for worker in self.workers]
        result: UpdateResult = self._all(calls, self.limits.timeout_s, f"update {step}")[0]
        return result

    def weight_buckets(self, max_bytes: int) -> list[list[str]]:
        """Parameter names, bucket by bucket."""
        call = self.workers[0].weight_buckets.remote(max_bytes)
        buckets: list[list[str]] = get(call, self.limits.timeout_s, "learner-0", "listing weights")
        return buckets

    def weights(self, names: list[str]) -> Any:
        """Start gathering one bucket; a reference to it in the object store."""
        return [worker.weights.remote(names) for worker in self.workers][0]

    def save(self, folder: str) -> dict[str, Any]:
        """Write the learner state; the advantage pipeline's state."""
        calls = [worker.save.remote(folder) for worker in self.workers]
        state: dict[str, Any] = self._all(calls, self.limits.timeout_s, "saving")[0]
        return state

    def load_pipeline(self, state: dict[str, Any]) -> None:
        """Give every rank's advantage pipeline its saved state."""
        calls = [worker.load_pipeline.remote(state) for worker in self.workers]
        self._all(calls, self.limits.timeout_s, "loading the advantage pipeline's state")

    def stop(self) -> None:
        """Let the ranks part."""
        self._all([worker.stop.remote() for worker in self.workers], 60.0, "stopping")

    def _all(self, calls: list[Any], timeout_s: float, what: str) -> list[Any]:
        return [get(call, timeout_s, f"learner-{i}", what) for i, call in enumerate(calls)]


def learner_spec(config: Config, threads: int) -> LearnerSpec:
    """What the ranks need of the config."""
    learner = config.learner
    return LearnerSpec(
        model=config.model.path,
        trust_remote_code=config.model.trust_remote_code,
        attention=config.model.attention,
        device=resolve_device(config),
        ranks=learner.ranks,
        zero_stage=learner.zero_stage,
        dtype=str(learner.dtype),
        rollout_dtype=str(config.rollout.dtype),
        learning_rate=LearningRate(
            learner.lr,
            learner.warmup_steps,
            config.trainer.steps * learner.mini_batches * learner.epochs,
            str(learner.schedule),
        ),
        weight_decay=learner.weight_decay,
        betas=(learner.beta1, learner.beta2),
        adam_eps=learner.adam_eps,
        grad_clip=learner.grad_clip,
        mini_batches=learner.mini_batches,
        epochs=learner.epochs,
        micro_batch_tokens=learner.micro_batch_tokens,
        micro_batch_episodes=learner.micro_batch_episodes,
        logit_chunk_tokens=learner.logit_chunk_tokens,
        gradient_checkpointing=learner.gradient_checkpointing,
        temperature=config.rollout.temperature,
        max_response_length=config.rollout.max_response_length,
        advantage=config.advantage,
        objective=build_objective(config),
        seed=config.trainer.seed,
        threads=threads,
        timeout_s=learner.timeout_s,
    )
