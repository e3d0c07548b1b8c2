"""The configuration: typed fields with their meaning, unit and default, in one place.

Only declarations live here. `config_loading` reads files and overrides into them;
`config_checks` says which combinations make no sense.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

MISSING = "???"


class Precision(StrEnum):
    """Number format of weights and activations."""

    float32 = "float32"
    bfloat16 = "bfloat16"


class Schedule(StrEnum):
    """How the learning rate goes on after the warm-up."""

    constant = "constant"
    linear = "linear"
    cosine = "cosine"


class KLEstimator(StrEnum):
    """Estimators of the KL to the reference model; see rlnorm/objective/kl.py."""

    k1 = "k1"
    k2 = "k2"
    k3 = "k3"


class ImportanceLevel(StrEnum):
    """Where truncated importance sampling takes its ratio."""

    none = "none"
    token = "token"
    sequence = "sequence"


class ImportanceMode(StrEnum):
    """What happens to an importance weight out of range."""

    truncate = "truncate"
    mask = "mask"


class Surrogate(StrEnum):
    """What a token's weight multiplies; see rlnorm/objective/surrogate.py."""

    clipped = "clipped"
    gspo = "gspo"
    cispo = "cispo"
    policy_gradient = "policy_gradient"


class BadRow(StrEnum):
    """What to do with a dataset row that lacks a prompt or an answer."""

    error = "error"
    skip = "skip"


class Tracker(StrEnum):
    """Where metrics go beside metrics.jsonl."""

    tensorboard = "tensorboard"
    wandb = "wandb"


@dataclass
class ModelConfig:
    """The policy that is trained."""

    path: str = MISSING
    """Folder in Hugging Face format, or a Hub name."""
    tokenizer: str | None = None
    """Folder or Hub name of the tokenizer; null: the model's own."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model. Only for sources you trust."""
    attention: str = "sdpa"
    """Attention implementation of transformers in the learner: sdpa, eager, flash_attention_2."""


@dataclass
class DataConfig:
    """Prompts and gold answers."""

    path: str = MISSING
    """Hub dataset name, or a local .jsonl, .json, .parquet or .csv file, to train on."""
    name: str | None = None
    """Hub configuration of the dataset (such as `main` of openai/gsm8k)."""
    split: str = "train"
    """Split to train on (Hub datasets)."""
    eval_path: str | None = None
    """Dataset to evaluate on during training; null: `path`."""
    eval_name: str | None = None
    """Hub configuration of `eval_path`; null: `name` where `eval_path` is null."""
    eval_split: str | None = None
    """Split of a Hub dataset to evaluate on. Without it and without `eval_path`, or with a local
    file as `path` and no `eval_path`, there is no evaluation during training."""
    prompt_column: str | None = None
    """Column that holds the question; null: the first of problem, question, prompt there is."""
    answer_column: str | None = None
    """Column that holds the gold answer; null: the first of answer, gold, solution there is."""
    system_prompt: str | None = None
    """System message of the chat, or null."""
    prompt_template: str = "{prompt}"
    """Text of the user's turn; {prompt} stands for the question."""
    chat: bool = True
    """Apply the tokenizer's chat template (once). false: the text itself is the prompt."""
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    """Passed to the chat template (such as enable_thinking: false)."""
    max_prompt_length: int = 512
    """Tokens; longer prompts are dropped and counted."""
    bad_rows: BadRow = BadRow.error
    """Rows without a prompt or an answer: `error` refuses the dataset, `skip` counts them."""
    limit: int | None = None
    """Use only the first so many rows for training."""
    eval_limit: int | None = None
    """Use only the first so many rows for evaluation."""
    shuffle: bool = True
    """New order in each epoch, from `trainer.seed`; false: the file's order."""


@dataclass
class EnvironmentConfig:
    """What the policy acts in, and what is rewarded."""

    name: str = "single_turn"
    """single_turn: one response per prompt; search: look-ups before the answer; or one of your
    own as "package.module:Class"."""
    settings: dict[str, Any] = field(default_factory=dict)
    """The environment's own settings, the fields of its class (rlnorm/environments/)."""
    rewards: dict[str, Any] = field(default_factory=dict)
    """Named rewards: name -> {name: math | exact_match, settings...}."""
    accuracy: str = "verifier"
    """Name of the 0/1 reward that is reported as accuracy in training and evaluation."""
    timeout_s: float = 600.0
    """Seconds that scoring one step's episodes may take."""
    episode_timeout_s: float = 1200.0
    """Seconds one episode may take, all its turns together; one that takes longer has failed."""
    max_failed: float = 0.1
    """Share of a step's episodes that may fail in the environment before the run stops."""


@dataclass
class RolloutConfig:
    """Sampling with vLLM."""

    engines: int = 1
    """Number of vLLM engines, each a Ray actor."""
    tensor_parallel: int = 1
    """GPUs per engine (must be 1 on the CPU)."""
    samples_per_prompt: int = 8
    """Responses per prompt, the group's size."""
    max_response_length: int = 512
    """Tokens; longer responses are cut there and marked truncated."""
    temperature: float = 1.0
    """Sampling temperature in training; the learner's log-probs use the same."""
    top_p: float = 1.0
    """Nucleus sampling in training. Below 1 the policy that samples is not the one trained."""
    top_k: int = -1
    """Top-k sampling in training; -1 is off."""
    allow_truncated_sampling: bool = False
    """Permit top_p < 1 or top_k in training (with a warning)."""
    stop: list[str] = field(default_factory=list)
    """Texts that end a response, beside the end-of-sequence token."""
    dtype: Precision = Precision.float32
    """Precision of the engine's weights."""
    kv_cache_gib: int = 1
    """KV cache on the CPU, GiB per engine."""
    gpu_memory_utilization: float = 0.85
    """Share of a GPU's memory an engine takes (weights and KV cache)."""
    max_sequences: int = 256
    """Sequences an engine decodes at a time."""
    enforce_eager: bool = True
    """No graph compilation at start: starts fast. On GPUs false decodes faster."""
    threads: int | None = None
    """CPU threads per engine; null: all cores of the machine."""
    start_timeout_s: float = 600.0
    """Seconds an engine may take to start."""
    timeout_s: float = 1800.0
    """Seconds the sampling of one step (or one evaluation) may take."""


@dataclass
class LearnerConfig:
    """Training with DeepSpeed."""

    ranks: int = 1
    """Number of learner processes (on GPUs: one GPU each)."""
    zero_stage: int = 0
    """DeepSpeed ZeRO stage, 0 to 3."""
    dtype: Precision = Precision.float32
    """Precision of the weights in forward and backward; the optimizer's copy is float32."""
    lr: float = 1e-6
    """Peak learning rate of AdamW."""
    warmup_steps: int = 0
    """Optimizer steps of linear warm-up."""
    schedule: Schedule = Schedule.constant
    """After the warm-up: constant, or linear or cosine to 0 at the last step."""
    weight_decay: float = 0.0
    """AdamW's decoupled weight decay."""
    beta1: float = 0.9
    """AdamW's decay of the first moment."""
    beta2: float = 0.999
    """AdamW's decay of the second moment."""
    adam_eps: float = 1e-8
    """AdamW's epsilon."""
    grad_clip: float = 1.0
    """Largest norm of the whole gradient; 0 is off."""
    mini_batches: int = 1
    """Optimizer steps per pass over a step's episodes; must divide trainer.prompts_per_step."""
    epochs: int = 1
    """Passes over a step's episodes."""
    micro_batch_tokens: int = 16384
    """Tokens of one forward pass (prompt, response and padding); changes memory, not gradients."""
    micro_batch_episodes: int | None = None
    """Most episodes of one forward pass; null: as many as the tokens allow."""
    logit_chunk_tokens: int = 1024
    """Tokens whose logits exist at a time in the vocabulary projection."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""
    threads: int | None = None
    """CPU threads per rank; null: the machine's cores divided by the ranks."""
    start_timeout_s: float = 600.0
    """Seconds all ranks may take to start."""
    timeout_s: float = 3600.0
    """Seconds one update, transfer or checkpoint may take."""


@dataclass
class ObjectiveConfig:
    """What is maximised, given the weights; see rlnorm/objective."""

    surrogate: Surrogate = Surrogate.clipped
    """clipped (PPO, GRPO), gspo (sequence ratio), cispo (clipped ratio as a constant), or
    policy_gradient (no ratio)."""
    clip_low: float = 0.2
    """The ratio is kept above 1 - clip_low (PPO)."""
    clip_high: float = 0.2
    """The ratio is kept below 1 + clip_high; DAPO uses 0.28."""
    dual_clip: float | None = None
    """Bound of the clipped surrogates for negative weights, above 1; null: off."""
    kl_coef: float = 0.0
    """Factor of the KL penalty against the initial model; 0 needs no reference model."""
    kl: KLEstimator = KLEstimator.k3
    """Estimator of that KL."""
    importance_sampling: ImportanceLevel = ImportanceLevel.none
    """Importance sampling for the gap between rollout and learner log-probs."""
    importance_mode: ImportanceMode = ImportanceMode.truncate
    """truncate: weights out of range are cut to it; mask: they become 0."""
    importance_floor: float = 0.0
    """Smallest importance weight."""
    importance_cap: float = 2.0
    """Largest importance weight."""


@dataclass
class TrainerConfig:
    """The loop."""

    name: str | None = None
    """Name of the run's folder; null: the config file's name and what was overridden."""
    output_dir: str = "runs"
    """Folder that holds the runs."""
    steps: int = 100
    """Training steps: sample, score, update, transfer."""
    prompts_per_step: int = 32
    """Prompts sampled in one step."""
    seed: int = 0
    """Seed of the data order, the sampling and everything else that is random."""
    eval_every: int = 10
    """Evaluate before the first and after every so many steps and at the end; 0: never."""
    save_every: int = 10
    """Save a checkpoint after every so many steps and at the end; 0: only at the end."""
    keep_last: int = 2
    """Checkpoints to keep; older ones are removed once a newer one is whole."""
    record_episodes_every: int = 1
    """Write every so manieth step's episodes to a parquet file; 0: none."""
    trackers: list[Tracker] = field(default_factory=list)
    """tensorboard and wandb; metrics.jsonl is always written."""


@dataclass
class ClusterConfig:
    """Where the processes run."""

    address: str | None = None
    """Address of a running Ray cluster, `auto` for the one this machine is in; null: start one
    on this machine."""
    device: str = "auto"
    """cpu, cuda, or auto: cuda where torch finds a GPU."""
    start_timeout_s: float = 120.0
    """Seconds Ray may take to start or to give the resources asked for."""


@dataclass
class Config:
    """A whole run."""

    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    environment: EnvironmentConfig = field(default_factory=EnvironmentConfig)
    advantage: dict[str, Any] = field(default_factory=dict)
    """Settings of the advantage pipeline: shaping (list), credit, normalizer, aggregator."""
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)

    @property
    def episodes_per_step(self) -> int:
        """Episodes of one step: prompts times samples."""
        return self.trainer.prompts_per_step * self.rollout.samples_per_prompt

    @property
    def max_length(self) -> int:
        """Tokens of the longest prompt and response together."""
        return self.data.max_prompt_length + self.rollout.max_response_length
