"""Greedy accuracy of a model or a run on a dataset, with the same code as inside training."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from rlnorm.checkpoint import latest_good
from rlnorm.cluster import Cluster, get
from rlnorm.config import Config
from rlnorm.data import load_eval_prompts
from rlnorm.errors import UserError
from rlnorm.export import export_run
from rlnorm.preflight import load_tokenizer
from rlnorm.rewards.worker import RewardWorker
from rlnorm.rollout.pool import RolloutPool
from rlnorm.rollout.sampling import Request
from rlnorm.trainer import greedy, step_metrics


@dataclass(frozen=True)
class EvaluationResult:
    """What an evaluation found.

    Attributes:
        questions: how many were asked.
        metrics: accuracy, response_length, truncated, events/...
        episodes: parquet file with every question, answer and verdict.
    """

    questions: int
    metrics: dict[str, float]
    episodes: Path


def model_of(target: str) -> str:
    """A model folder or Hub name to evaluate: a run's newest checkpoint is exported first."""
    run = Path(target)
    if (run / "checkpoints").is_dir():
        checkpoint, _ = latest_good(run / "checkpoints")
        if checkpoint is None:
            raise UserError(f"The run {target!r} has no checkpoint yet.")
        return str(export_run(run, run / "export" / checkpoint.name))
    return target


def evaluate(model: str, config: Config, output: Path) -> EvaluationResult:
    """Ask the model every evaluation question of the config once, greedily."""
    config = replace(config, model=replace(config.model, path=model, tokenizer=None))
    prompts = load_eval_prompts(config.data, load_tokenizer(config))
    config.learner.ranks = 1
    cluster = Cluster(config)
    try:
        rollout = RolloutPool(cluster, config)
        rewards = cluster.actor("reward-0", RewardWorker, config.environment.rewards)
        rollout.wait_started()
        rollout.set_dataset("evaluation", prompts)
        requests = [Request(row, group=row, sample=0, seed=0) for row in range(len(prompts))]
        played = rollout.score_round(
            "evaluation", requests, greedy(config), rewards, config.environment.timeout_s
        )
        path = output / "episodes.parquet"
        get(
            rewards.record.remote(str(path.resolve()), played.scalars, None, None, *played.blocks),
            config.environment.timeout_s,
            "reward-0",
            "recording",
        )
        metrics = step_metrics(played.scalars, played.events, config.environment.accuracy)
        rollout.stop()
        get(rewards.close.remote(), 60.0, "reward-0", "stopping")
    finally:
        cluster.close()
    return EvaluationResult(len(prompts), metrics, path)
