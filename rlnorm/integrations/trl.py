"""Any advantage pipeline inside TRL's GRPOTrainer.

Only the translation lives here: TRL's gathered rewards, groups and lengths into a `RewardBatch`,
and the pipeline's weights into TRL's loss. No formula.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from packaging.version import Version
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from trl import GRPOTrainer

from rlnorm.advantage import AdvantagePipeline, RewardBatch
from rlnorm.files import write_json
from rlnorm.integrations.pipelines import build_pipeline, interruptions

# What is overridden below is not TRL's public interface, so a version that nobody looked at
# could train on a wrong loss without a word.
TESTED = "1.16"
STATE_FILE = "rlnorm_advantage.json"

# The surrogates whose terms TRL divides by `num_items_in_batch` and nothing else.
SURROGATES = {"dapo": "the clipped ratio", "cispo": "CISPO"}

# Settings of GRPOConfig that the pipeline replaces, with the only value that says nothing.
REPLACED = {
    "scale_rewards": ("group", "the pipeline's normalizer decides that"),
    "multi_objective_aggregation": (
        "sum_then_normalize",
        "the pipeline's shaping, or its normalizer 'decomposed', decides that",
    ),
    "reward_weights": (None, "give them to the pipeline: shaping [{name: sum, weights: {...}}]"),
}


class AdvantageGRPOTrainer(GRPOTrainer):
    """TRL's GRPOTrainer with rlnorm's advantage pipeline in place of its normalization.

    Rewards, groups and lengths of the whole generation batch are gathered from all processes and
    go through the pipeline once. What TRL then calls advantages are the pipeline's weights times
    the batch's trained tokens, by which TRL's loss divides again, so that the policy's loss is
    the plain sum over trained tokens of weight * surrogate, whatever the number of processes, the
    micro-batch size and gradient accumulation. Where one generation batch feeds several optimizer
    steps, each is scaled to an estimate of the whole (times their number), as in rlnorm's own
    trainer; where several feed one optimizer step, it takes their average. TRL's KL term (`beta`)
    and entropy bonus stay what they are.

    Tested with TRL 1.16 (tests/unit/test_trl.py). `GRPOConfig.loss_type` only chooses the
    surrogate: "dapo", TRL's default, is the clipped ratio, "cispo" is CISPO, and
    `importance_sampling_level="sequence"` makes it GSPO; the others divide by lengths or batch
    sizes of their own and are refused. TRL's `loss_type="bnpo"` is a token mean over one device's
    micro-batch and not BNPO: that is `advantage="bnpo"` here.

    The named rewards are TRL's reward functions under their names (`reward_func_names`); None and
    NaN mean that a response is not scored. With `mask_truncated_completions` a response that was
    cut off counts in the statistics of rewards, and has no token to be trained on.

    Args:
        advantage: a name of `configs/advantage` (such as "bnpo"), a YAML file, a mapping as
            `AdvantagePipeline.from_config` takes it, or a pipeline.
        stratum: called like a reward function, gives one integer per completion. Without it, the
            stratum counts how often a tool's result stands in the middle of the completion.
        *args, **kwargs: GRPOTrainer's.

    Raises:
        ImportError: another version of TRL.
        ValueError: settings that contradict the pipeline; a pipeline of step
            rewards, or one that needs rewards or strata that this trainer doesn't have.
    """

    def __init__(
        self,
        *args: Any,
        advantage: str | Mapping[str, Any] | AdvantagePipeline,
        stratum: Callable[..., Sequence[int]] | None = None,
        **kwargs: Any,
    ) -> None:
        check_version(version("trl"))
        super().__init__(*args, **kwargs)
        longest = self.max_completion_length
        if longest is None:
            raise ValueError("max_completion_length is None, it must be a number of tokens")
        self.pipeline = build_pipeline(advantage, longest)
        self.stratum = stratum
        self._scores: torch.Tensor | None = None
        self._truncated: torch.Tensor | None = None
        self._strata: torch.Tensor | None = None
        self._check_settings()

    def _check_settings(self) -> None:
        if self.loss_type not in SURROGATES:
            choices = " or ".join(f"{name!r} ({what})" for name, what in SURROGATES.items())
            raise ValueError(
                f"loss_type is {self.loss_type!r}, but with an advantage pipeline it only chooses "
                f"the surrogate and must be {choices}: how tokens are averaged is the pipeline's "
                "aggregator."
            )
        for setting, (silent, why) in REPLACED.items():
            value = getattr(self.args, setting)
            if value != silent:
                raise ValueError(
                    f"{setting} is {value!r}, but must be {silent!r} with an advantage pipeline: "
                    f"{why}."
                )
        missing = set(self.pipeline.required_rewards or ()) - set(self.reward_func_names)
        if missing:
            raise ValueError(
                f"The advantage pipeline needs the reward {min(missing)!r}, but the reward "
                f"functions are named {', '.join(map(repr, self.reward_func_names))}."
            )
        if self.pipeline.normalizer.needs_strata and self.stratum is None:
            reason = None
            if not self.tools and self.rollout_func is None:
                reason = "there are no tools whose results could be counted"
            elif self.mask_truncated_completions:
                reason = "mask_truncated_completions hides the tools' results in cut off ones"
            if reason:
                raise ValueError(
                    f"Normalizer {self.pipeline.normalizer.name!r} needs strata, but {reason}: "
                    "give `stratum`, a function like a reward function that returns one integer "
                    "per completion."
                )

    def _calculate_rewards(
        self,
        inputs: list[dict[str, Any]],
        prompts: list[Any],
        completions: list[Any],
        completion_ids_list: list[list[int]],
    ) -> torch.Tensor:
        scores = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        ends = {*self.eos_token_ids, self._tokenizer.pad_token_id}
        device = scores.device
        self._scores = scores
        self._truncated = torch.tensor(
            [not ids or ids[-1] not in ends for ids in completion_ids_list], device=device
        )
        if self.stratum is not None:
            columns = {
                key: [row[key] for row in inputs]
                for key in inputs[0]
                if key not in ("prompt", "completion", "completion_ids")
            }
            strata = self.stratum(
                prompts=prompts,
                completions=completions,
                completion_ids=completion_ids_list,
                **columns,
            )
            if len(strata) != len(prompts):
                raise ValueError(
                    f"stratum returned {len(strata)} integers for {len(prompts)} completions"
                )
            self._strata = torch.tensor(list(strata), device=device)
        return scores

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        batch = super()._generate_and_score_completions(inputs)
        training = bool(self.model and self.model.training)
        samples = self.num_generations if training else self.num_generations_eval
        assert samples is not None
        trained = batch["completion_mask"]
        if "tool_mask" in batch:
            trained = trained * batch["tool_mask"]
        strata = interruptions(trained) if self._strata is None else self._strata
        assert self._scores is not None and self._truncated is not None
        gather = self.accelerator.gather
        # an evaluation must not move what the pipeline keeps from one step to the next
        pipeline = self.pipeline if training else copy.deepcopy(self.pipeline)
        out = pipeline(
            RewardBatch(
                # TRL's sampler repeats each prompt `samples` times in a row, over all processes
                group=torch.arange(len(self._scores), device=trained.device) // samples,
                rewards=dict(zip(self.reward_func_names, self._scores.unbind(1), strict=True)),
                length=gather(trained.sum(1)),
                stratum=gather(strata),
                truncated=gather(self._truncated),
            )
        )
        local = len(trained)
        start = self.accelerator.process_index * local
        # the divisor of TRL's sum over tokens, put in here to cancel there
        batch["advantages"] = out.weight[start : start + local] * batch["num_items_in_batch"]
        for name, value in out.metrics.items():
            self._metrics["train" if training else "eval"][f"advantage/{name}"].append(value)
        shown: Any = self._logs["advantages"]
        for _ in range(min(len(shown), len(out.advantage))):
            shown.pop()
        shown.extend(out.advantage.tolist())
        return batch

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        if self.args.should_save:
            folder = Path(self._get_output_dir(trial=trial))
            write_json(
                folder / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}" / STATE_FILE,
                self.pipeline.state_dict(),
            )

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            saved = Path(checkpoint) / STATE_FILE
            if not saved.is_file():
                raise ValueError(
                    f"The checkpoint {checkpoint} was not written by {type(self).__name__}: it "
                    f"has no {STATE_FILE}."
                )
            self.pipeline.load_state_dict(json.loads(saved.read_text(encoding="utf-8")))


def check_version(found: str) -> None:
    """ImportError unless `found`, TRL's version, is one whose internals were tested."""
    if Version(found).release[:2] != Version(TESTED).release:
        raise ImportError(
            f"rlnorm.integrations.trl works with TRL {TESTED} and found {found}: "
            f"pip install 'trl=={TESTED}.*'"
        )
