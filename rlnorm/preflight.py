"""What is looked at before anything starts: tokenizer, model config, datasets, gold answers.

`rlnorm check` and `rlnorm train` both pass through here. Checks of the config alone are in
`config_checks`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlnorm.config import Config
from rlnorm.data import PromptDataset, has_evaluation, load_eval_prompts, load_train_prompts
from rlnorm.errors import UserError
from rlnorm.rewards.registry import build_rewards

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")


@dataclass(frozen=True)
class Inputs:
    """Everything a run reads, found good."""

    tokenizer: Any
    model_config: Any
    train: PromptDataset
    evaluation: PromptDataset | None
    notes: list[str]


def load_inputs(config: Config) -> Inputs:
    """Read tokenizer, model config and data; UserError names what is wrong with them."""
    tokenizer, model_config = load_tokenizer(config), load_model_config(config)
    train = load_train_prompts(config.data, tokenizer)
    evaluation = load_eval_prompts(config.data, tokenizer) if has_evaluation(config.data) else None
    notes = _notes("data.path", train)
    if evaluation is not None:
        notes += _notes("data.eval_path", evaluation)
    elif config.trainer.eval_every:
        notes.append("data.eval_path is not set: there is no evaluation during training.")
    _check_context(config, model_config)
    _check_golds(config, train, config.data.path)
    if evaluation is not None:
        _check_golds(config, evaluation, config.data.eval_path or config.data.path)
    if config.trainer.prompts_per_step > len(train):
        notes.append(
            f"trainer.prompts_per_step is {config.trainer.prompts_per_step}, the dataset has "
            f"{len(train)} prompts: one step goes over it more than once."
        )
    return Inputs(tokenizer, model_config, train, evaluation, notes)


def load_tokenizer(config: Config) -> Any:
    """The run's tokenizer; UserError if there is none or it cannot end a response."""
    from transformers import AutoTokenizer

    path = config.model.tokenizer or config.model.path
    key = "model.tokenizer" if config.model.tokenizer else "model.path"
    _check_folder(path, key)
    folder = Path(path).expanduser()
    if folder.is_dir() and not any((folder / name).is_file() for name in TOKENIZER_FILES):
        # transformers would make an empty tokenizer of the model's family without a word
        raise UserError(
            f"{key} is {path!r}, and no tokenizer can be loaded from it (the folder has none of "
            f"{', '.join(TOKENIZER_FILES)})."
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            path, trust_remote_code=config.model.trust_remote_code
        )
    except Exception as error:  # transformers raises many kinds; all mean: no usable tokenizer
        raise UserError(
            f"{key} is {path!r}, and no tokenizer can be loaded from it ({_reason(error)})."
        ) from None
    if tokenizer.eos_token_id is None:
        raise UserError(f"{key} is {path!r}: its tokenizer has no end-of-sequence token.")
    return tokenizer


def load_model_config(config: Config) -> Any:
    """The model's architecture; UserError if it cannot be read."""
    from transformers import AutoConfig

    _check_folder(config.model.path, "model.path")
    try:
        return AutoConfig.from_pretrained(
            config.model.path, trust_remote_code=config.model.trust_remote_code
        )
    except Exception as error:  # as above
        raise UserError(
            f"model.path is {config.model.path!r}, and no model can be loaded from it "
            f"({_reason(error)})."
        ) from None


def _reason(error: Exception) -> str:
    """Why transformers could not load something, in few words."""
    text = " ".join(str(error).split())
    if "couldn't connect" in text:
        return "it is no folder here, and the Hugging Face hub cannot be reached"
    return text[:300]


def _check_folder(path: str, key: str) -> None:
    """A path that is meant as a folder must exist; a Hub name has at most one slash."""
    local = Path(path).expanduser()
    if local.is_file():
        raise UserError(f"{key} is {path!r}, which is a file; it must be a model's folder.")
    if local.exists() or (
        path.count("/") <= 1 and not path.startswith((".", "/", "~", "prepared"))
    ):
        return
    hint = ""
    if "prepared/tiny" in path:
        hint = "; `rlnorm prepare tiny` makes it"
    elif "prepared/smollm2" in path:
        hint = "; `rlnorm prepare smollm2` makes it"
    raise UserError(f"{key} is {path!r}, and there is no such folder{hint}.")


def _check_context(config: Config, model_config: Any) -> None:
    limit = getattr(model_config, "max_position_embeddings", None)
    if limit is not None and config.max_length > limit:
        raise UserError(
            f"data.max_prompt_length {config.data.max_prompt_length} + rollout.max_response_length "
            f"{config.rollout.max_response_length} is {config.max_length} tokens, and the model's "
            f"context is {limit}."
        )
    for name in ("final_logit_softcapping", "logit_scale", "logits_scaling"):
        if getattr(model_config, name, None) not in (None, 1, 1.0):
            raise UserError(
                f"model.path is {config.model.path!r}: models with {name} are not supported yet, "
                "the learner's log-probs would differ from the engine's."
            )


def _check_golds(config: Config, prompts: PromptDataset, path: str) -> None:
    """A gold answer that no response can match would be reward 0 for ever: a data error."""
    for name, reward in build_rewards(config.environment.rewards).items():
        with reward:
            good = reward.check_golds(prompts.answer)
        if not all(good):
            first = good.index(False)
            raise UserError(
                f"Row {prompts.row[first]} of {path!r}: the reward {name!r} cannot read the gold "
                f"answer {prompts.answer[first][:80]!r} ({good.count(False)} rows in all)."
            )


def _notes(key: str, prompts: PromptDataset) -> list[str]:
    notes = []
    if prompts.too_long:
        notes.append(f"{key}: {prompts.too_long} prompts longer than the limit were dropped.")
    if prompts.skipped:
        notes.append(f"{key}: {prompts.skipped} rows without prompt or answer were skipped.")
    return notes
