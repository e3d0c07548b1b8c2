"""Ray: joining or starting a cluster, placing actors, and waiting with a limit.

The one file that knows Ray's placement; what the actors do is elsewhere.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rlnorm.config import Config
from rlnorm.config_checks import cores, resolve_device
from rlnorm.environment import ENVIRONMENT, quiet
from rlnorm.errors import UserError, WorkerError


@dataclass(frozen=True)
class Slot:
    """One actor's place: what it reserves and how many threads it may use."""

    name: str
    cpus: float
    gpus: int
    threads: int


def plan(config: Config) -> list[Slot]:
    """Who sits where, as `rlnorm check` prints it; starts nothing.

    On one machine rollout and learner take turns, so both may use all cores.
    """
    on_gpu = resolve_device(config) == "cuda"
    rollout_threads = config.rollout.threads or cores()
    learner_threads = config.learner.threads or max(1, cores() // config.learner.ranks)
    engines = [
        Slot(f"rollout-{i}", 1, config.rollout.tensor_parallel if on_gpu else 0, rollout_threads)
        for i in range(config.rollout.engines)
    ]
    ranks = [
        Slot(f"learner-{i}", 1, int(on_gpu), learner_threads) for i in range(config.learner.ranks)
    ]
    return [*engines, *ranks, Slot("reward-0", 1, 0, 1)]


class Cluster:
    """A Ray cluster of this run's own, or one that was running; holds the run's placement."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.slots = {slot.name: slot for slot in plan(config)}
        self.own = config.cluster.address is None
        quiet()
        self._start()
        bundles: list[dict[str, float]] = [
            {"CPU": slot.cpus, **({"GPU": slot.gpus} if slot.gpus else {})}
            for slot in self.slots.values()
        ]
        self.group = placement_group(bundles, strategy="PACK")
        try:
            ray.get(self.group.ready(), timeout=config.cluster.start_timeout_s)
        except GetTimeoutError:
            have = {k: v for k, v in ray.available_resources().items() if k in ("CPU", "GPU")}
            self.close()
            raise UserError(
                f"The cluster did not give {len(bundles)} CPUs and "
                f"{sum(slot.gpus for slot in self.slots.values())} GPUs within "
                f"cluster.start_timeout_s {config.cluster.start_timeout_s:g} s; free are {have}."
            ) from None

    def _start(self) -> None:
        settings: dict[str, Any] = {
            "log_to_driver": False,
            "logging_level": logging.ERROR,
            "include_dashboard": False if self.own else None,
        }
        if self.own:
            wanted = int(sum(slot.cpus for slot in self.slots.values()))
            settings |= {
                "num_cpus": max(cores(), wanted),
                # 30 % of a laptop's memory is Ray's default; a step's tokens need far less
                "object_store_memory": 2 << 30,
            }
        try:
            ray.init(address=self.config.cluster.address, **settings)
        except ConnectionError as error:
            raise UserError(
                f"cluster.address is {self.config.cluster.address!r}, and no Ray cluster "
                f"answers there ({error})."
            ) from None

    def actor(self, name: str, cls: type, *arguments: Any) -> Any:
        """Start an actor in its slot."""
        slot = self.slots[name]
        index = list(self.slots).index(name)
        variables = {
            **{key: os.environ[key] for key in ENVIRONMENT},
            "OMP_NUM_THREADS": str(slot.threads),
            # threads that wait spin by default: beside any other load on the machine a step then
            # takes three times as long
            "OMP_WAIT_POLICY": "PASSIVE",
            "GOMP_SPINCOUNT": "0",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            # on the CPU vLLM would compile its sampler with g++, which not every machine has
            **({"TORCH_COMPILE_DISABLE": "1"} if resolve_device(self.config) == "cpu" else {}),
            "VLLM_CPU_KVCACHE_SPACE": str(self.config.rollout.kv_cache_gib),
            # deterministic reductions, whoever asks for them
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        }
        remote: Any = ray.remote(cls).options(
            name=None,
            num_cpus=slot.cpus,
            num_gpus=slot.gpus,
            max_restarts=0,
            runtime_env={"env_vars": variables},
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                self.group, placement_group_bundle_index=index
            ),
        )
        return remote.remote(*arguments)

    def close(self) -> None:
        """Give the placement back; end the cluster if it is ours."""
        if hasattr(self, "group"):
            remove_placement_group(self.group)
        if self.own:
            ray.shutdown()


def get(references: Any, timeout_s: float, who: str, what: str) -> Any:
    """`ray.get` with a limit, naming who was waited for and what it was doing.

    Raises:
        WorkerError: it died, raised, or did not answer in time.
    """
    try:
        return ray.get(references, timeout=timeout_s)
    except GetTimeoutError:
        raise WorkerError(f"{who} did not finish {what} within {timeout_s:g} s") from None
    except RayActorError as error:
        raise WorkerError(f"{who} died during {what}: {_first_line(error)}") from error
    except RayTaskError as error:
        cause = error.cause if isinstance(error.cause, BaseException) else error
        raise WorkerError(
            f"{who} failed during {what}: {type(cause).__name__}: {_first_line(cause)}"
        ) from error


def get_ready(reference: Any, timeout_s: float, who: str, what: str) -> None:
    """Wait for a result without fetching it to this process; fails as `get` does.

    Raises:
        WorkerError: it died, raised, or did not answer in time.
    """
    ready, _ = ray.wait([reference], timeout=timeout_s, fetch_local=False)
    if not ready:
        raise WorkerError(f"{who} did not finish {what} within {timeout_s:g} s")


def _first_line(error: BaseException) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), repr(error))
