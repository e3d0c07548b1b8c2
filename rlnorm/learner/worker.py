"""The learner: one rank of DeepSpeed training in a Ray actor.

It turns the step's scalars into token weights (every rank from the same RewardBatch), its share
of the episodes into gradients, and hands on new weights. It samples nothing and scores nothing.
"""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
import torch.distributed as dist
from torch import Tensor, nn

from rlnorm.advantage import AdvantagePipeline, RewardBatch
from rlnorm.episode import EpisodeBlock, Ints, StepScalars
from rlnorm.learner import zero
from rlnorm.learner.batching import MicroBatch, StepEpisodes, fill_up, share_out
from rlnorm.learner.policy import Policy, load_model
from rlnorm.learner.schedule import LearningRate
from rlnorm.learner.state import load_learner_state, read_weights, save_learner_state
from rlnorm.objective import Objective, TokenBatch


@dataclass(frozen=True)
class LearnerSpec:
    """What every rank needs to start."""

    model: str
    trust_remote_code: bool
    attention: str
    device: str
    ranks: int
    zero_stage: int
    dtype: str
    rollout_dtype: str
    learning_rate: LearningRate
    weight_decay: float
    betas: tuple[float, float]
    adam_eps: float
    grad_clip: float
    mini_batches: int
    epochs: int
    micro_batch_tokens: int
    micro_batch_episodes: int | None
    logit_chunk_tokens: int
    gradient_checkpointing: bool
    temperature: float
    max_response_length: int
    advantage: dict[str, Any]
    objective: Objective
    seed: int
    threads: int
    timeout_s: float


@dataclass(frozen=True)
class UpdateResult:
    """What one rank answers to an update; `metrics` are those of all ranks together."""

    metrics: dict[str, float]
    advantage: np.ndarray[Any, np.dtype[np.float32]]
    weight: np.ndarray[Any, np.dtype[np.float32]]


class LearnerWorker:
    """Ray actor; all ranks must be called together, with the same arguments."""

    def __init__(self, spec: LearnerSpec, rank: int) -> None:
        self.spec = spec
        self.rank = rank
        self.updates = 0

    def address(self) -> tuple[str, int]:
        """Host and a free port of this rank's machine, for the ranks to meet at."""
        import ray.util
        from torch.distributed import TCPStore

        host = ray.util.get_node_ip_address()
        store = TCPStore(host, 0, is_master=True, wait_for_workers=False)
        return host, int(store.port)

    def start(self, host: str, port: int, checkpoint: str | None) -> dict[str, Any]:
        """Join the other ranks, load the model (or a checkpoint's state), set up DeepSpeed."""
        from datetime import timedelta

        spec = self.spec
        torch.set_num_threads(spec.threads)
        local = 0  # Ray shows each actor only its own GPU
        os.environ |= {
            "MASTER_ADDR": host,
            "MASTER_PORT": str(port),
            "RANK": str(self.rank),
            "WORLD_SIZE": str(spec.ranks),
            "LOCAL_RANK": str(local),
        }
        # before DeepSpeed and without device_id, which would bind NCCL to one group
        dist.init_process_group(
            "nccl" if spec.device == "cuda" else "gloo",
            timeout=timedelta(seconds=spec.timeout_s),
        )
        import deepspeed
        import deepspeed.ops

        if spec.device == "cpu":
            # else it compiles a C++ extension at start, which needs a compiler and half a minute;
            # gloo does the same work
            deepspeed.ops.__compatible_ops__ = {}
        self.device = (
            torch.device(spec.device, local) if spec.device == "cuda" else torch.device("cpu")
        )
        dtype = getattr(torch, spec.dtype)
        model = load_model(
            spec.model, dtype, spec.attention, spec.trust_remote_code, spec.gradient_checkpointing
        )
        if checkpoint is not None:
            read_weights(Path(checkpoint), model)
        self.tied = bool(getattr(model.config, "tie_word_embeddings", False))
        policy = Policy(model.to(self.device), spec.temperature, spec.logit_chunk_tokens)
        optimizer = torch.optim.AdamW(
            [p for p in policy.parameters() if p.requires_grad],
            lr=0.0,
            betas=spec.betas,
            eps=spec.adam_eps,
            weight_decay=spec.weight_decay,
        )
        self.engine, *_ = deepspeed.initialize(
            model=policy,
            optimizer=optimizer,  # type: ignore[arg-type]
            config=zero.deepspeed_config(
                zero_stage=spec.zero_stage,
                dtype=dtype,
                grad_clip=spec.grad_clip,
                device=spec.device,
            ),
        )
        self.policy = policy
        self.reference = self._load_reference() if spec.objective.kl_coef > 0 else None
        self.pipeline = AdvantagePipeline.from_config(
            spec.advantage, max_response_length=spec.max_response_length
        )
        if checkpoint is not None:
            self._make_optimizer_state()
            self.updates = load_learner_state(
                Path(checkpoint), self.engine, self._named(), self.rank
            )
        return {
            "parameters": sum(zero.size_of(p) for p in model.parameters()),
            "deepspeed": deepspeed.__version__,
        }

    def _load_reference(self) -> nn.Module:
        spec = self.spec
        model = load_model(
            spec.model, getattr(torch, spec.dtype), spec.attention, spec.trust_remote_code, False
        )
        model.requires_grad_(False)
        reference = Policy(model.to(self.device), spec.temperature, spec.logit_chunk_tokens)
        if spec.zero_stage < 3:
            return reference
        import deepspeed

        settings = zero.deepspeed_config(
            zero_stage=3, dtype=getattr(torch, spec.dtype), grad_clip=0.0, device=spec.device
        )
        return deepspeed.initialize(model=reference, config=settings)[0]

    def _named(self) -> dict[str, nn.Parameter]:
        """Trained parameters under their Hugging Face names."""
        return {n: p for n, p in self.policy.model.named_parameters() if p.requires_grad}

    # one step ------------------------------------------------------------------------------

    def update(self, step: int, scalars: StepScalars, *blocks: EpisodeBlock) -> UpdateResult:
        """Train on one step's episodes.

        Args:
            step: number of the training step, from 1.
            scalars: of all episodes, in the order of the blocks.
            blocks: all episodes of the step.
        """
        begun = time.monotonic()
        torch.manual_seed(self.spec.seed * 1_000_003 + step)
        batch = reward_batch(scalars, self.device)
        out = self.pipeline(batch)
        episodes = StepEpisodes(list(blocks), out.weight.cpu(), out.factor.cpu())
        sums: dict[str, float] = {}
        norms: list[float] = []
        lrs: list[float] = []
        plans = self._plans(scalars, episodes)
        single = len(plans) * self.spec.epochs == 1
        # before the first optimizer step, so that the ratio is against what sampled
        old = None if single else [self._logprobs(self.engine, plan, episodes) for plan in plans]
        for _ in range(self.spec.epochs):
            for index, plan in enumerate(plans):
                norm, lr = self._optimizer_step(
                    plan, episodes, None if old is None else old[index], sums, float(len(plans))
                )
                norms.append(norm)
                lrs.append(lr)
        tokens = max(sums.pop("tokens"), 1.0)
        maxima = {name: sums.pop(name) for name in list(sums) if name.endswith("_max")}
        loss = sums.pop("loss") / (len(plans) * self.spec.epochs)
        metrics = {
            **{f"advantage/{name}": value for name, value in out.metrics.items()},
            **{f"policy/{name}": value / tokens for name, value in sums.items()},
            **{f"policy/{name}": value for name, value in maxima.items()},
            "policy/loss": loss,
            "policy/grad_norm": sum(norms) / len(norms),
            "policy/lr": lrs[-1],
            "time/update": time.monotonic() - begun,
        }
        return UpdateResult(metrics, out.advantage.cpu().numpy(), out.weight.cpu().numpy())

    def _plans(self, scalars: StepScalars, episodes: StepEpisodes) -> list[list[Ints]]:
        """This rank's micro-batches (episode indices), per mini-batch; every rank has as many.

        Mini-batches hold whole groups, in the order the groups were sampled.
        """
        spec = self.spec
        plans = []
        for groups in np.array_split(np.unique(scalars.group), spec.mini_batches):
            members = np.flatnonzero(np.isin(scalars.group, groups))
            lengths = episodes.lengths[members]
            shares = [
                fill_up(
                    members[share],
                    episodes.lengths,
                    spec.micro_batch_tokens,
                    spec.micro_batch_episodes,
                )
                for share in share_out(lengths, spec.ranks)
            ]
            most = max(len(share) for share in shares)
            empty = np.empty(0, dtype=np.int64)
            plans.append(shares[self.rank] + [empty] * (most - len(shares[self.rank])))
        return plans

    def _optimizer_step(
        self,
        plan: list[Ints],
        episodes: StepEpisodes,
        old: list[Tensor] | None,
        sums: dict[str, float],
        scale: float,
    ) -> tuple[float, float]:
        """Accumulate the gradient of one mini-batch and step; gradient norm, learning rate.

        `scale` is the number of mini-batches: weights are normalized over the whole step, so
        times this each mini-batch is an estimate of the step's gradient, not a part of it.
        """
        local = self._accumulate(plan, episodes, old, scale)
        for name, value in self._reduce(local).items():
            kept = max(sums[name], value) if name.endswith("_max") and name in sums else None
            sums[name] = kept if kept is not None else sums.get(name, 0.0) + value
        if not math.isfinite(sums["loss"]):
            raise FloatingPointError("the loss is not finite; no update was made")
        self.updates += 1
        lr = self.spec.learning_rate.at(self.updates)
        for group in self.engine.optimizer.param_groups:
            group["lr"] = lr
        norm = self._gradient_norm() if self.spec.zero_stage == 0 else None
        self.engine.step()
        if norm is None:
            norm = float(self.engine.get_global_grad_norm())
        if not math.isfinite(norm):
            raise FloatingPointError(f"the gradient norm is {norm}")
        return norm, lr

    def _accumulate(
        self, plan: list[Ints], episodes: StepEpisodes, old: list[Tensor] | None, scale: float
    ) -> dict[str, Tensor]:
        """Forward and backward over the micro-batches; the gradient is summed over all ranks."""
        local: dict[str, Tensor] = {}
        for index, indices in enumerate(plan):
            micro = episodes.micro_batch(indices, self.device)
            self.engine.set_gradient_accumulation_boundary(index == len(plan) - 1)
            logprob, entropy = self.engine(micro.input_ids, micro.position, micro.target)
            loss, terms = self.spec.objective(
                TokenBatch(
                    logprob=logprob,
                    entropy=entropy,
                    old_logprob=None if old is None else old[index],
                    rollout_logprob=micro.rollout_logprob,
                    reference_logprob=self._reference_logprob(micro),
                    weight=micro.weight * scale,
                    factor=micro.factor * scale,
                    episode=micro.episode,
                )
            )
            # DeepSpeed averages over ranks; the objective is a sum
            self.engine.backward(loss * self.spec.ranks, scale_wrt_gas=False)
            terms["loss"] = loss.detach()
            for name, value in terms.items():
                value = value.detach().double()
                if name not in local:
                    local[name] = value
                elif name.endswith("_max"):
                    local[name] = torch.maximum(local[name], value)
                else:
                    local[name] = local[name] + value
        return local

    def _reduce(self, local: dict[str, Tensor]) -> dict[str, float]:
        """Sums (maxima for `*_max`) over all ranks."""
        names = sorted(local)
        stacked = torch.stack([local[name].to(self.device) for name in names])
        summed, highest = stacked.clone(), stacked.clone()
        dist.all_reduce(summed)
        dist.all_reduce(highest, dist.ReduceOp.MAX)
        return {
            name: float(highest[i] if name.endswith("_max") else summed[i])
            for i, name in enumerate(names)
        }

    def _gradient_norm(self) -> float:
        gradients = [p.grad for p in self.policy.parameters() if p.grad is not None]
        return float(torch.nn.utils.get_total_norm(gradients))

    def _reference_logprob(self, micro: MicroBatch) -> Tensor | None:
        if self.reference is None:
            return None
        with torch.no_grad():
            return self.reference(micro.input_ids, micro.position, micro.target)[0]

    @torch.no_grad()
    def _logprobs(self, module: Any, plan: list[Ints], episodes: StepEpisodes) -> list[Tensor]:
        """[K] log-probs per micro-batch, with the very batches the gradient will use."""
        micros = (episodes.micro_batch(indices, self.device) for indices in plan)
        return [module(m.input_ids, m.position, m.target)[0] for m in micros]

    # hand-over ---------------------------------------------------------------------------

    def weight_buckets(self, max_bytes: int) -> list[list[str]]:
        """Parameter names in buckets of about this size, the same on every rank."""
        buckets: list[list[str]] = [[]]
        size = 0
        for name, parameter in self.policy.model.named_parameters():
            bytes_ = zero.size_of(parameter) * self._transfer_dtype.itemsize
            if buckets[-1] and size + bytes_ > max_bytes:
                buckets.append([])
                size = 0
            buckets[-1].append(name)
            size += bytes_
        return buckets

    def weights(self, names: list[str]) -> np.ndarray[Any, np.dtype[np.uint8]] | None:
        """These parameters in the rollout's precision as the bytes of a safetensors file, from
        rank 0; None from the others.

        Never more than this bucket is gathered. A tied output layer is sent as well: vLLM's
        packed copy of it would go stale otherwise.
        """
        parameters = dict(self.policy.model.named_parameters())
        chosen = [parameters[name] for name in names]
        with zero.gathered(chosen):
            if self.rank != 0:
                return None
            bucket = {
                name: parameter.detach().to("cpu", self._transfer_dtype).contiguous()
                for name, parameter in zip(names, chosen, strict=True)
            }
        if self.tied:
            embedding = self.policy.model.get_input_embeddings().weight
            for name, parameter in zip(names, chosen, strict=True):
                if parameter is embedding:
                    bucket["lm_head.weight"] = bucket[name].clone()
        return np.frombuffer(safetensors.torch.save(bucket), dtype=np.uint8)

    @property
    def _transfer_dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.spec.rollout_dtype)
        return dtype

    def save(self, folder: str) -> dict[str, Any]:
        """Write this rank's part of the learner state; returns the pipeline's state."""
        save_learner_state(
            Path(folder), self.engine, self._named(), self.rank, self.spec.ranks, self.updates
        )
        return self.pipeline.state_dict()

    def load_pipeline(self, state: dict[str, Any]) -> None:
        """Give the advantage pipeline its saved state."""
        self.pipeline.load_state_dict(state)

    def _make_optimizer_state(self) -> None:
        """One step of size 0 on a gradient of 0, so that the moments exist to be filled."""
        self.engine.set_gradient_accumulation_boundary(True)
        ids = torch.zeros(1, 2, dtype=torch.long, device=self.device)
        one = torch.zeros(1, dtype=torch.long, device=self.device)
        logprob, _ = self.engine(ids, one, one)
        self.engine.backward(logprob.sum() * 0.0, scale_wrt_gas=False)
        self.engine.step()

    def stop(self) -> None:
        """Leave the group of ranks."""
        dist.destroy_process_group()


def reward_batch(scalars: StepScalars, device: torch.device) -> RewardBatch:
    """The step's scalars as tensors on the learner's device."""

    def move(values: Any) -> Tensor:
        return torch.as_tensor(values, device=device)

    return RewardBatch(
        group=move(scalars.group),
        rewards={name: move(values) for name, values in scalars.rewards.items()},
        length=move(scalars.length),
        stratum=move(scalars.stratum),
        truncated=move(scalars.truncated),
    )
