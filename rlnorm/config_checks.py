"""Combinations of settings that make no sense, found before anything starts.

Pure functions of the config; what needs files (model, data) is in `preflight`.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import torch

from rlnorm.advantage import AdvantagePipeline
from rlnorm.config import Config
from rlnorm.environments import build_environment
from rlnorm.errors import UserError
from rlnorm.objective import ImportanceSampling, Objective
from rlnorm.rewards.registry import build_rewards


def check_config(config: Config) -> list[str]:
    """Refuse what cannot work; return warnings about what can but should be known.

    Raises:
        UserError: one sentence on the first mistake found.
    """
    _check_ranges(config)
    _check_batches(config)
    _check_placement(config)
    _check_rewards(config)
    build_objective(config)
    pipeline = build_pipeline(config)
    _check_signals(config, pipeline)
    if pipeline.normalizer.needs_group and config.rollout.samples_per_prompt < 2:
        raise UserError(
            f"rollout.samples_per_prompt is {config.rollout.samples_per_prompt}: the normalizer "
            f"{pipeline.normalizer.name!r} compares the samples of a prompt and needs at least 2."
        )
    return [*pipeline.warnings(), *_check_sampling(config)]


def build_pipeline(config: Config) -> AdvantagePipeline:
    """The advantage pipeline of this config; UserError for a mistake in its section."""
    try:
        return AdvantagePipeline.from_config(
            config.advantage, max_response_length=config.rollout.max_response_length
        )
    except ValueError as error:
        text = f"advantage.{str(error).removeprefix('advantage.')}"
        raise UserError(text if text.endswith(("?", ".")) else f"{text}.") from None


def build_objective(config: Config) -> Objective:
    """The objective of this config; UserError for a mistake in its section."""
    settings = config.objective
    try:
        return Objective(
            clip_low=settings.clip_low,
            clip_high=settings.clip_high,
            kl_coef=settings.kl_coef,
            kl=str(settings.kl),
            importance_sampling=ImportanceSampling(
                level=str(settings.importance_sampling),  # type: ignore[arg-type]
                cap=settings.importance_cap,
                mode=str(settings.importance_mode),  # type: ignore[arg-type]
                floor=settings.importance_floor,
            ),
            surrogate=str(settings.surrogate),
            dual_clip=settings.dual_clip,
        )
    except ValueError as error:
        raise UserError(f"{error}.") from None


def resolve_device(config: Config) -> str:
    """cpu or cuda; UserError for cuda where there is none."""
    device = config.cluster.device
    if device not in ("auto", "cpu", "cuda"):
        raise UserError(f"cluster.device is {device!r}, it must be auto, cpu or cuda.")
    found = torch.cuda.is_available()
    if device == "cuda" and not found:
        raise UserError("cluster.device is 'cuda', and torch finds no GPU on this machine.")
    return ("cuda" if found else "cpu") if device == "auto" else device


def _check_ranges(config: Config) -> None:
    rollout, learner, trainer, objective = (
        config.rollout,
        config.learner,
        config.trainer,
        config.objective,
    )
    at_least = {
        "trainer.steps": (trainer.steps, 1),
        "trainer.prompts_per_step": (trainer.prompts_per_step, 1),
        "trainer.eval_every": (trainer.eval_every, 0),
        "trainer.save_every": (trainer.save_every, 0),
        "trainer.keep_last": (trainer.keep_last, 1),
        "trainer.record_episodes_every": (trainer.record_episodes_every, 0),
        "trainer.seed": (trainer.seed, 0),
        "rollout.engines": (rollout.engines, 1),
        "rollout.tensor_parallel": (rollout.tensor_parallel, 1),
        "rollout.samples_per_prompt": (rollout.samples_per_prompt, 1),
        "rollout.max_response_length": (rollout.max_response_length, 1),
        "rollout.max_sequences": (rollout.max_sequences, 1),
        "data.max_prompt_length": (config.data.max_prompt_length, 1),
        "learner.ranks": (learner.ranks, 1),
        "learner.warmup_steps": (learner.warmup_steps, 0),
        "learner.grad_clip": (learner.grad_clip, 0),
        "learner.weight_decay": (learner.weight_decay, 0),
        "learner.mini_batches": (learner.mini_batches, 1),
        "learner.epochs": (learner.epochs, 1),
        "learner.logit_chunk_tokens": (learner.logit_chunk_tokens, 1),
        "objective.kl_coef": (objective.kl_coef, 0),
        "objective.clip_low": (objective.clip_low, 0),
        "objective.clip_high": (objective.clip_high, 0),
    }
    optional = {
        "data.limit": config.data.limit,
        "data.eval_limit": config.data.eval_limit,
        "learner.micro_batch_episodes": learner.micro_batch_episodes,
        "learner.threads": learner.threads,
        "rollout.threads": rollout.threads,
    }
    at_least |= {key: (value, 1) for key, value in optional.items() if value is not None}
    for key, (value, low) in at_least.items():
        if not value >= low:
            raise UserError(f"{key} is {value}, it must be at least {low}.")
    above_zero = {
        "learner.lr": learner.lr,
        "learner.adam_eps": learner.adam_eps,
        "objective.importance_cap": objective.importance_cap,
        "rollout.kv_cache_gib": rollout.kv_cache_gib,
        "rollout.start_timeout_s": rollout.start_timeout_s,
        "rollout.timeout_s": rollout.timeout_s,
        "learner.start_timeout_s": learner.start_timeout_s,
        "learner.timeout_s": learner.timeout_s,
        "environment.timeout_s": config.environment.timeout_s,
        "environment.episode_timeout_s": config.environment.episode_timeout_s,
        "cluster.start_timeout_s": config.cluster.start_timeout_s,
    }
    for key, number in above_zero.items():
        if not 0 < number < float("inf"):
            raise UserError(f"{key} is {number}, it must be above 0.")
    shares = {
        "learner.beta1": learner.beta1,
        "learner.beta2": learner.beta2,
        "rollout.gpu_memory_utilization": rollout.gpu_memory_utilization,
    }
    for key, share in shares.items():
        if not 0 <= share < 1:
            raise UserError(f"{key} is {share}, it must be at least 0 and below 1.")
    if not 0 <= config.environment.max_failed <= 1:
        raise UserError(
            f"environment.max_failed is {config.environment.max_failed}, it must be from 0 to 1."
        )
    if objective.clip_low > 1:
        raise UserError(f"objective.clip_low is {objective.clip_low}, it must be at most 1.")
    if learner.zero_stage not in (0, 1, 2, 3):
        raise UserError(f"learner.zero_stage is {learner.zero_stage}, it must be 0, 1, 2 or 3.")
    if not config.trainer.name or "/" in config.trainer.name:
        raise UserError(f"trainer.name is {config.trainer.name!r}, it must be a folder's name.")
    place = Path(trainer.output_dir).expanduser().resolve()
    while not place.exists():
        place = place.parent
    try:
        tempfile.TemporaryDirectory(dir=place).cleanup()
    except OSError:
        raise UserError(
            f"trainer.output_dir is {trainer.output_dir!r}, and nothing can be written in {place}."
        ) from None


def _check_batches(config: Config) -> None:
    prompts, minis = config.trainer.prompts_per_step, config.learner.mini_batches
    if prompts % minis:
        fits = [n for n in range(1, prompts + 1) if prompts % n == 0]
        closest = min(fits, key=lambda n: abs(n - minis))
        raise UserError(
            f"learner.mini_batches is {minis} and does not divide trainer.prompts_per_step "
            f"{prompts}; {closest} would."
        )
    if config.episodes_per_step // minis < config.learner.ranks:
        raise UserError(
            f"learner.ranks is {config.learner.ranks}, and a mini-batch has only "
            f"{config.episodes_per_step // minis} episodes; every rank needs at least one."
        )
    if config.rollout.engines > prompts:
        raise UserError(
            f"rollout.engines is {config.rollout.engines}, and a step has only {prompts} prompts; "
            "every engine needs at least one."
        )
    if config.learner.micro_batch_tokens < config.max_length:
        raise UserError(
            f"learner.micro_batch_tokens is {config.learner.micro_batch_tokens}, and one episode "
            f"can have {config.max_length} tokens (data.max_prompt_length + "
            f"rollout.max_response_length); set it to at least {config.max_length}."
        )


def _check_placement(config: Config) -> None:
    device = resolve_device(config)
    if device == "cpu":
        if config.rollout.tensor_parallel > 1:
            raise UserError(
                f"rollout.tensor_parallel is {config.rollout.tensor_parallel}, on the CPU it must "
                "be 1."
            )
        return
    if config.cluster.address is None:
        wanted = config.rollout.engines * config.rollout.tensor_parallel + config.learner.ranks
        if wanted > torch.cuda.device_count():
            raise UserError(
                f"rollout.engines x rollout.tensor_parallel + learner.ranks is {wanted} GPUs, this "
                f"machine has {torch.cuda.device_count()}."
            )


def _check_rewards(config: Config) -> None:
    environment = config.environment
    build_environment(environment.name, environment.settings).check()
    if not environment.rewards:
        raise UserError("environment.rewards is empty; name at least one reward.")
    for reward in build_rewards(environment.rewards).values():
        reward.close()
    if environment.accuracy not in environment.rewards:
        raise UserError(
            f"environment.accuracy is {environment.accuracy!r}, and environment.rewards has only "
            f"{', '.join(environment.rewards)}."
        )
    for index, stage in enumerate(config.advantage.get("shaping") or []):
        for name in (stage.get("weights") or {}) if isinstance(stage, dict) else {}:
            if name not in environment.rewards:
                raise UserError(
                    f"advantage.shaping[{index}].weights.{name}: environment.rewards has only "
                    f"{', '.join(environment.rewards)}."
                )


def _check_signals(config: Config, pipeline: AdvantagePipeline) -> None:
    """The environment must give what the advantage pipeline asks for."""
    environment = build_environment(config.environment.name, config.environment.settings)
    if pipeline.per_step and not environment.has_steps:
        raise UserError(
            f"advantage gives credit to steps, and environment.name {config.environment.name!r} "
            "has no process rewards."
        )
    if pipeline.normalizer.needs_strata and not environment.has_strata:
        raise UserError(
            f"advantage.normalizer.name is {pipeline.normalizer.name!r}, and environment.name "
            f"{config.environment.name!r} counts nothing that could be a stratum."
        )
    rewards = config.environment.rewards
    for name in pipeline.required_rewards or ():
        if name not in rewards:
            raise UserError(
                f"advantage needs a reward named {name!r}, and environment.rewards has only "
                f"{', '.join(rewards)}."
            )


def _check_sampling(config: Config) -> list[str]:
    rollout = config.rollout
    if not 0 < rollout.temperature < float("inf"):
        raise UserError(
            f"rollout.temperature is {rollout.temperature}; training must sample, it must be "
            "above 0 (evaluation is greedy by itself)."
        )
    if not 0 < rollout.top_p <= 1:
        raise UserError(f"rollout.top_p is {rollout.top_p}, it must be above 0 and at most 1.")
    if rollout.top_k == 0 or rollout.top_k < -1:
        raise UserError(f"rollout.top_k is {rollout.top_k}, it must be -1 (off) or at least 1.")
    if rollout.top_p < 1 or rollout.top_k != -1:
        key = "rollout.top_p" if rollout.top_p < 1 else "rollout.top_k"
        value = rollout.top_p if rollout.top_p < 1 else rollout.top_k
        if not rollout.allow_truncated_sampling:
            raise UserError(
                f"{key} is {value}: sampling would leave out tokens that the learner's "
                "log-probs count; set it to "
                f"{'1' if rollout.top_p < 1 else '-1'}, or rollout.allow_truncated_sampling=true."
            )
        return [
            f"{key} is {value}: the engine's distribution is not the learner's, ratios and KL are "
            "biased."
        ]
    return []


def cores() -> int:
    """CPU cores this process may use."""
    return len(os.sched_getaffinity(0))
