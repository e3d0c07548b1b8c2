"""The training loop: sample, score, update, transfer, log, evaluate, save. Read top to bottom.

What each part does is in its own room; here is only their order, and what survives a stop.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import numpy as np

from rlnorm.checkpoint import latest_good, load_state, remove_old, save_checkpoint
from rlnorm.cluster import Cluster, get
from rlnorm.config import Config
from rlnorm.config_loading import save_config, to_plain
from rlnorm.data import PromptStream
from rlnorm.episode import StepScalars
from rlnorm.errors import StoppedAtOnce, WorkerError
from rlnorm.learner.group import LearnerGroup
from rlnorm.preflight import Inputs
from rlnorm.rewards.worker import RewardWorker
from rlnorm.rollout.pool import RolloutPool, Round
from rlnorm.rollout.sampling import Request, Sampling, episode_seed
from rlnorm.run_folder import (
    LOG,
    Outcome,
    append_log,
    check_resumable,
    outcome_of,
    write_environment,
)
from rlnorm.tracking.console import StepProgress, say, warn
from rlnorm.tracking.metrics import MetricsWriter, keep_rows_until, read_metrics
from rlnorm.tracking.report import write_report
from rlnorm.weight_transfer.transfer import transfer_weights


class Trainer:
    """One run, from its checked config and inputs; a context manager that ends its processes."""

    cluster: Cluster
    rollout: RolloutPool
    learners: LearnerGroup
    rewards: Any
    metrics: MetricsWriter

    def __init__(self, config: Config, inputs: Inputs) -> None:
        self.config = config
        self.inputs = inputs
        self.run = Path(config.trainer.output_dir) / str(config.trainer.name)
        self.stream = PromptStream(len(inputs.train), config.trainer.seed, config.data.shuffle)
        self.step = 0
        self._saved = 0
        self.last_accuracy: float | None = None
        self._recording: Any = None
        self._stop = StopRequest()

    def train(self) -> Outcome:
        """Make all steps that are not made yet."""
        steps = self.config.trainer.steps
        with StepProgress(self.step, steps) as progress:
            if self.step == 0 and self._evaluates:
                self.evaluate()
            while self.step < steps and not self._stop.requested:
                metrics = self.make_step()
                progress.step(self.step, metrics, self.last_accuracy)
                last = self.step == steps
                if self._evaluates and (last or self.step % self.config.trainer.eval_every == 0):
                    self.evaluate()
                every = self.config.trainer.save_every
                if every and self.step % every == 0:
                    self.save()
            if self.step > self._saved:
                self.save()
        write_report(self.run, str(self.config.trainer.name))
        return outcome_of(self.run, steps)

    def make_step(self) -> dict[str, float]:
        """Prompts -> episodes -> rewards -> weights -> gradient -> new weights in the engines."""
        config, clock, step = self.config, Stopwatch(), self.step + 1
        played = self.rollout.score_round(
            "train", self._requests(), self._sampling, self.rewards, config.environment.timeout_s
        )
        self._check_failures(f"step {step}", played)
        scalars, blocks = played.scalars, played.blocks
        clock.lap("rollout")
        result = self.learners.update(step, scalars, blocks)
        clock.lap("update")
        transfer_weights(self.learners, self.rollout, step)
        clock.lap("transfer")
        every = config.trainer.record_episodes_every
        if every and step % every == 0:
            self._record(f"episodes/step_{step:06d}", scalars, blocks, result)
        tokens = float(scalars.response_length.sum())
        metrics = {
            **step_metrics(scalars, played.events, config.environment.accuracy),
            **result.metrics,
            **clock.laps,
            "time/step": clock.total,
            "tokens_per_s": tokens / clock.total,
        }
        self.metrics.write(step, "train", metrics)
        self.step = step
        return metrics

    def evaluate(self) -> None:
        """Greedy accuracy on the held-out prompts, with the weights the engines have now."""
        prompts = self.inputs.evaluation
        assert prompts is not None
        requests = [Request(row, group=row, sample=0, seed=0) for row in range(len(prompts))]
        clock = Stopwatch()
        played = self.rollout.score_round(
            "evaluation",
            requests,
            greedy(self.config),
            self.rewards,
            self.config.environment.timeout_s,
        )
        self._check_failures(f"the evaluation after step {self.step}", played)
        scalars = played.scalars
        self._record(f"eval/step_{self.step:06d}", scalars, played.blocks, None)
        metrics = step_metrics(scalars, played.events, self.config.environment.accuracy)
        self.last_accuracy = metrics.pop("accuracy")
        self.metrics.write(
            self.step,
            "eval",
            {
                "accuracy": self.last_accuracy,
                "questions": float(len(scalars)),
                **metrics,
                "time/evaluation": clock.total,
            },
        )

    def save(self) -> None:
        """Write a checkpoint; older ones go only once it is in place."""
        state = {"consumed": self.stream.consumed, "config": to_plain(self.config)}
        save_checkpoint(
            self.run / "checkpoints",
            self.step,
            lambda folder: self.learners.save(str(folder.resolve())),
            state,
        )
        self._saved = self.step
        remove_old(self.run / "checkpoints", self.config.trainer.keep_last)

    def _check_failures(self, when: str, played: Round) -> None:
        """Log what the environment raised; WorkerError where too many episodes failed."""
        if not played.errors:
            return
        environment, count = self.config.environment, len(played.scalars)
        what = (
            f"environment {environment.name!r} failed in {len(played.errors)} of {count} episodes "
            f"of {when}"
        )
        append_log(self.run, "\n".join([what, *played.errors]))
        first = played.errors[0].strip().splitlines()[-1]
        told = f"{what}: {first} (tracebacks in {self.run / LOG})"
        if len(played.errors) > environment.max_failed * count:
            raise WorkerError(
                f"{told}; environment.max_failed allows a share of {environment.max_failed:g}"
            )
        warn(told)

    # the parts of a step -------------------------------------------------------------------

    def _requests(self) -> list[Request]:
        """The step's episodes. A group's id is the prompt's place in the run: never used twice,
        so a prompt that comes again in the same step is another group."""
        config = self.config
        first = self.stream.consumed
        rows = self.stream.take(config.trainer.prompts_per_step)
        return [
            Request(row, group, sample, episode_seed(config.trainer.seed, group, sample))
            for group, row in enumerate(rows, start=first)
            for sample in range(config.rollout.samples_per_prompt)
        ]

    @property
    def _sampling(self) -> Sampling:
        rollout = self.config.rollout
        return Sampling(
            temperature=rollout.temperature,
            top_p=rollout.top_p,
            top_k=rollout.top_k,
            max_tokens=rollout.max_response_length,
            stop=rollout.stop,
        )

    @property
    def _evaluates(self) -> bool:
        return self.inputs.evaluation is not None and self.config.trainer.eval_every > 0

    def _record(self, name: str, scalars: StepScalars, blocks: list[Any], result: Any) -> None:
        """Write the episodes; the next step does not wait for it, the one after does."""
        if self._recording is not None:
            get(self._recording, self.config.environment.timeout_s, "reward-0", "recording")
        self._recording = self.rewards.record.remote(
            str((self.run / f"{name}.parquet").resolve()),
            scalars,
            None if result is None else result.advantage,
            None if result is None else result.weight,
            *blocks,
        )

    # start and end -------------------------------------------------------------------------

    def __enter__(self) -> Trainer:
        """Start everything, from the last good checkpoint where there is one."""
        config = self.config
        checkpoint, warnings = latest_good(self.run / "checkpoints")
        for warning in warnings:
            warn(warning)
        state = load_state(checkpoint) if checkpoint else None
        if state is not None:
            check_resumable(state["config"], config)
            self.step = self._saved = int(state["step"])
            self.stream.consumed = int(state["consumed"])
            say(f"Going on from {checkpoint}: {self.step} of {config.trainer.steps} steps made.")
        self.run.mkdir(parents=True, exist_ok=True)
        keep_rows_until(self.run / "metrics.jsonl", self.step if state else -1)
        save_config(config, self.run / "config.yaml")
        accuracies = [
            row["accuracy"]
            for row in read_metrics(self.run / "metrics.jsonl")
            if row["kind"] == "eval"
        ]
        self.last_accuracy = accuracies[-1] if accuracies else None
        self._stop.listen()
        self.cluster = Cluster(config)
        try:
            self._start_workers(checkpoint, state)
        except BaseException:
            self.close(broken=True)
            raise
        return self

    def _start_workers(self, checkpoint: Path | None, state: dict[str, Any] | None) -> None:
        config = self.config
        say("Starting the rollout engines, the learners and the reward worker.")
        self.rollout = RolloutPool(self.cluster, config)
        self.learners = LearnerGroup(
            self.cluster, config, str((checkpoint / "learner").resolve()) if checkpoint else None
        )
        self.rewards = self.cluster.actor("reward-0", RewardWorker, config.environment.rewards)
        learner = self.learners.wait_started()
        vllm_version = self.rollout.wait_started()
        get(self.rewards.ready.remote(), config.environment.timeout_s, "reward-0", "starting")
        self.rollout.set_dataset("train", self.inputs.train)
        if self.inputs.evaluation is not None:
            self.rollout.set_dataset("evaluation", self.inputs.evaluation)
        if state is not None:
            self.learners.load_pipeline(state["pipeline"])
            # before the first rollout: the engines started from the initial model
            transfer_weights(self.learners, self.rollout, self.step)
        write_environment(self.run, config, self.inputs, vllm_version, learner)
        self.metrics = MetricsWriter(
            self.run, str(config.trainer.name), config.trainer.trackers, to_plain(config)
        )
        say(f"Everything runs: a model of {learner['parameters']:,} parameters.")

    def close(self, broken: bool = False) -> None:
        """End the workers; after a failure without waiting for them."""
        self._stop.ignore()
        if hasattr(self, "metrics"):
            self.metrics.close()
        if not broken:
            if self._recording is not None:
                get(self._recording, self.config.environment.timeout_s, "reward-0", "recording")
            self.rollout.stop()
            self.learners.stop()
            get(self.rewards.close.remote(), 60.0, "reward-0", "stopping")
        self.cluster.close()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(broken=kind is not None)


def greedy(config: Config) -> Sampling:
    """How evaluation samples: once, the most likely token each time."""
    rollout = config.rollout
    return Sampling(temperature=0.0, max_tokens=rollout.max_response_length, stop=rollout.stop)


def step_metrics(scalars: StepScalars, events: Counter[str], accuracy: str) -> dict[str, float]:
    """Plain facts of a round of episodes."""
    values: dict[str, float] = {}
    total = np.zeros(len(scalars))
    for name, reward in scalars.rewards.items():
        scored = reward[np.isfinite(reward)]
        values[f"reward/{name}"] = float(scored.mean()) if len(scored) else float("nan")
        total = total + reward
    scored = total[np.isfinite(total)]
    right = scalars.rewards[accuracy]
    return {
        "reward/mean": float(scored.mean()) if len(scored) else float("nan"),
        "reward/std": float(scored.std()) if len(scored) else float("nan"),
        # an episode that could not be scored is not a right one
        "accuracy": float((np.nan_to_num(right, nan=0.0) >= 0.5).mean()),
        "response_length": float(scalars.response_length.mean()),
        "prompt_length": float(scalars.prompt_length.mean()),
        "truncated": float(scalars.truncated.mean()),
        "failed": float(scalars.failed.mean()),
        **values,
        **{f"events/{name}": float(count) for name, count in sorted(events.items())},
    }


class Stopwatch:
    """Seconds by phase of a step."""

    def __init__(self) -> None:
        self._begun = self._last = time.monotonic()
        self.laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        """What passed since the last lap counts as this phase."""
        now = time.monotonic()
        self.laps[f"time/{name}"] = now - self._last
        self._last = now

    @property
    def total(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._begun


class StopRequest:
    """Ctrl-C or SIGTERM: the step is finished and saved; a second one stops at once."""

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[int, Any] = {}

    def listen(self) -> None:
        """Take over SIGINT and SIGTERM."""
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._on_signal)

    def ignore(self) -> None:
        """Give the signals back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise StoppedAtOnce
        self.requested = True
        # a plain write: the console may be in the middle of a line
        os.write(2, b"Stopping after this step, and saving; once more stops at once.\n")
