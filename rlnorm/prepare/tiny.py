"""A tiny language model that was badly taught to add, made here in about a minute.

Qwen3 architecture, 0.8 million parameters, a character tokenizer with a chat template, and a
supervised warm start on two-number addition with sloppy demonstrations: more often than not they
carry one too many. The model learns to add, and to err in the same way; reinforcement learning
is to teach it which of the two is wanted. Training code for anything bigger does not belong here.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlnorm.files import write_text
from rlnorm.prepare.once import prepare_once

HELD_OUT = 200
"""Problems that neither the warm start nor the training sees."""
VALIDATION = 400
"""Problems that tell the warm start when to stop; the training may use them."""
WIDTH = 16
"""Tokens of the longest problem with its answer, and some."""
CHARACTERS = [chr(code) for code in range(32, 127)] + ["\n"]
SPECIAL = ["<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|unknown|>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


@dataclass(frozen=True)
class TinySettings:
    """How the model is made.

    Attributes:
        largest: both numbers are between 0 and this.
        right: share of the demonstrations that are right at first; the others are 10 too high.
        steer: change of that share at each look, once the model has `learned`, towards an
            accuracy between `low` and `high`.
        low, high: the warm start stops once greedy accuracy on a validation set is between these
            and nearly all other answers are the sloppy ones.
        learned: share of answers that must be either right or sloppy by then.
        batch: problems per warm-start step.
        lr: of the warm start, reached after `warmup` steps.
        max_steps: the warm start gives up after so many steps.
        check_every: steps between two looks at the accuracy.
    """

    largest: int = 49
    right: float = 0.4
    steer: float = 0.02
    low: float = 0.26
    high: float = 0.34
    learned: float = 0.85
    batch: int = 64
    lr: float = 2e-3
    warmup: int = 50
    max_steps: int = 3000
    check_every: int = 10


def prepare_tiny(
    folder: Path, seed: int = 0, settings: TinySettings | None = None
) -> dict[str, Any]:
    """Make model, tokenizer, train.jsonl and test.jsonl in `folder`.

    Returns what was made: parameters, warm-start steps, accuracy on the validation problems.
    A folder that is already complete for this seed is left as it is.
    """
    settings = settings or TinySettings()
    wanted = {"seed": seed, **settings.__dict__}
    return prepare_once(folder, wanted, lambda place: _make(place, seed, settings))


def _make(folder: Path, seed: int, settings: TinySettings) -> dict[str, Any]:
    torch.manual_seed(seed)
    tokenizer = make_tokenizer()
    model = make_model(len(tokenizer))
    problems = [(a, b) for a in range(settings.largest + 1) for b in range(settings.largest + 1)]
    random.Random(seed).shuffle(problems)
    test, validation, train = (
        problems[:HELD_OUT],
        problems[HELD_OUT : HELD_OUT + VALIDATION],
        problems[HELD_OUT + VALIDATION :],
    )
    steps, accuracy = warm_start(model, tokenizer, train, validation, settings, seed)
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    for name, part in (("train", [*train, *validation]), ("test", test)):
        lines = [
            json.dumps({"id": f"add-{a}-{b}", "problem": f"{a}+{b}=", "answer": str(a + b)})
            for a, b in part
        ]
        write_text(folder / f"{name}.jsonl", "\n".join(lines) + "\n")
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "warm_start_steps": steps,
        "accuracy": accuracy,
    }


def make_tokenizer(words: Sequence[str] = ()) -> Any:
    """One token per printable ASCII character and for each of these words, a chat template."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: index for index, token in enumerate([*SPECIAL, *CHARACTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<|unknown|>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<|pad|>",
        eos_token="<|end|>",
        unk_token="<|unknown|>",
        additional_special_tokens=["<|system|>", "<|user|>", "<|assistant|>"],
        clean_up_tokenization_spaces=False,
        model_max_length=256,
    )
    fast.add_tokens(list(words))
    fast.chat_template = CHAT_TEMPLATE
    return fast


def make_model(vocabulary: int) -> Any:
    """A Qwen3 of 0.8 million parameters with tied embeddings, randomly initialised."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=vocabulary,
            hidden_size=128,
            intermediate_size=384,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=256,
            tie_word_embeddings=True,
            pad_token_id=SPECIAL.index("<|pad|>"),
            eos_token_id=SPECIAL.index("<|end|>"),
            bos_token_id=None,
        )
    )


def warm_start(
    model: Any,
    tokenizer: Any,
    train: list[tuple[int, int]],
    validation: list[tuple[int, int]],
    settings: TinySettings,
    seed: int,
) -> tuple[int, float]:
    """Supervised training on sloppy demonstrations; steps made and greedy validation accuracy."""
    right, wrong = _encode(tokenizer, train, _right), _encode(tokenizer, train, _sloppy)
    held_right = _encode(tokenizer, validation, _right)
    held_wrong = _encode(tokenizer, validation, _sloppy)
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.lr, weight_decay=0.0)
    accuracy, share = 0.0, settings.right
    for step in range(1, settings.max_steps + 1):
        chosen = torch.randint(len(train), (settings.batch,), generator=generator)
        take_right = torch.rand(settings.batch, 1, generator=generator) < share
        ids, labels = (
            torch.where(take_right, one[chosen], other[chosen])
            for one, other in zip(right, wrong, strict=True)
        )
        supervised_step(
            model, optimizer, settings.lr * min(1.0, step / settings.warmup), ids, labels
        )
        if step % settings.check_every == 0:
            accuracy = _greedy_share(model, *held_right)
            learned = accuracy + _greedy_share(model, *held_wrong)
            if learned >= settings.learned:
                if settings.low <= accuracy <= settings.high:
                    break
                share += settings.steer if accuracy < settings.low else -settings.steer
    return step, accuracy


def supervised_step(
    model: Any, optimizer: torch.optim.Optimizer, lr: float, ids: Tensor, labels: Tensor
) -> Tensor:
    """One step on [B, T] token ids and labels; the logits [B, T, vocabulary] before it."""
    for group in optimizer.param_groups:
        group["lr"] = lr
    output = model(input_ids=ids, labels=labels)
    optimizer.zero_grad()
    output.loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    logits: Tensor = output.logits
    return logits


def _right(a: int, b: int) -> int:
    return a + b


def _sloppy(a: int, b: int) -> int:
    """One carried too many. Not an error that depends on whether the ones carry: to undo that one
    has to be learned anew for every problem, and takes several times as many steps."""
    return a + b + 10


def _encode(
    tokenizer: Any, problems: list[tuple[int, int]], answer: Callable[[int, int], int]
) -> tuple[Tensor, Tensor]:
    """Token ids and labels (-100 where nothing is learned), padded on the right to one width."""
    ids = torch.full((len(problems), WIDTH), tokenizer.pad_token_id)
    labels = torch.full_like(ids, -100)
    for row, (a, b) in enumerate(problems):
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": f"{a}+{b}="}],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
        )
        target = [*tokenizer(str(answer(a, b)))["input_ids"], tokenizer.eos_token_id]
        end = len(prompt) + len(target)
        ids[row, :end] = torch.tensor([*prompt, *target])
        labels[row, len(prompt) : end] = torch.tensor(target)
    return ids, labels


@torch.no_grad()
def _greedy_share(model: Any, ids: Tensor, labels: Tensor) -> float:
    """Share of problems to which the model's first choice, token by token, is this answer."""
    choice = model(input_ids=ids).logits[:, :-1].argmax(-1)
    target = labels[:, 1:]
    return float(((choice == target) | (target == -100)).all(1).float().mean())
