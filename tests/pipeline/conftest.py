"""Real Ray for the pipeline tests: a local cluster per module, learners started on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from rlnorm.cluster import get
from rlnorm.config import Config
from rlnorm.config_loading import load_config
from rlnorm.environment import ENVIRONMENT, quiet
from rlnorm.learner.group import learner_spec
from tests.conftest import REPOSITORY
from tests.pipeline.probe import ProbeLearner


def tiny_config(tiny: Path, *overrides: str) -> Config:
    """The quickstart's config on the test's own tiny model."""
    return load_config(
        REPOSITORY / "configs" / "quickstart.yaml",
        [
            f"model.path={tiny / 'model'}",
            f"data.path={tiny / 'train.jsonl'}",
            f"data.eval_path={tiny / 'test.jsonl'}",
            "learner.grad_clip=0",
            "trainer.name=test",
            *overrides,
        ],
    )


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """Ray with room for a few actors, whatever the machine has."""
    quiet()
    ray.init(
        num_cpus=8,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=512 << 20,
        runtime_env={
            "env_vars": {**ENVIRONMENT, "OMP_NUM_THREADS": "1", "TORCH_COMPILE_DISABLE": "1"}
        },
    )
    yield
    ray.shutdown()


class Ranks:
    """A group of learner ranks; every call goes to all, the answer is rank 0's."""

    def __init__(self, config: Config, checkpoint: Path | None = None) -> None:
        spec = learner_spec(config, threads=1)
        remote: Any = ray.remote(ProbeLearner)
        self.workers = [remote.remote(spec, rank) for rank in range(config.learner.ranks)]
        host, port = self.first("address")
        self.all("start", host, port, None if checkpoint is None else str(checkpoint))

    def first(self, method: str, *arguments: Any, **named: Any) -> Any:
        call = getattr(self.workers[0], method).remote(*arguments, **named)
        return get(call, 300.0, "learner-0", method)

    def all(self, method: str, *arguments: Any, **named: Any) -> Any:
        calls = [getattr(w, method).remote(*arguments, **named) for w in self.workers]
        return [get(c, 300.0, f"learner-{i}", method) for i, c in enumerate(calls)][0]

    def end(self) -> None:
        for worker in self.workers:
            ray.kill(worker)


@pytest.fixture
def ranks(cluster: None) -> Iterator[Callable[..., Ranks]]:
    """Starts groups of learners and ends them with the test."""
    started: list[Ranks] = []

    def start(config: Config, checkpoint: Path | None = None) -> Ranks:
        group = Ranks(config, checkpoint)
        started.append(group)
        return group

    yield start
    for group in started:
        group.end()
