"""A tiny model that can look things up, but not when it should, and its world of names.

Every name has one friend. A question asks for a name itself, for its friend, or for its friend's
friend, so that it needs no, one or two look-ups. The warm start teaches to write a search, to
follow what it finds, and to answer with the last name known; how often to search it shows at
random, whatever the question: that is left to reinforcement learning.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlnorm.files import write_text
from rlnorm.prepare.once import prepare_once
from rlnorm.prepare.tiny import make_model, make_tokenizer, supervised_step

WORDS = ["<search>", "</search>", "<information>", "</information>", "<answer>", "</answer>"]
# the search engine knows these as English words that mean nothing
COMMON = {"did", "her", "him", "has", "had", "was", "not", "but", "for", "who"}
QUESTIONS = ("name {}?", "friend {}?", "friends friend {}?")
HELD_OUT = 200
"""Questions that training does not see."""


@dataclass(frozen=True)
class TinySearchSettings:
    """How model and world are made.

    Attributes:
        names: size of the world.
        searches: how likely a demonstration makes 0, 1 or 2 searches, whatever the question.
        learned: share of demonstrations whose every token but the choice to search must be the
            model's first choice before the warm start ends.
        batch, lr, warmup, max_steps, check_every: as in `TinySettings`.
    """

    names: int = 120
    searches: tuple[float, float, float] = (0.3, 0.4, 0.3)
    learned: float = 0.95
    batch: int = 64
    lr: float = 2e-3
    warmup: int = 50
    max_steps: int = 3000
    check_every: int = 25


def prepare_tiny_search(
    folder: Path, seed: int = 0, settings: TinySearchSettings | None = None
) -> dict[str, Any]:
    """Make model/, corpus.jsonl, train.jsonl and test.jsonl in `folder`.

    Returns what was made: parameters, warm-start steps, the share `learned` at its end. A folder
    that is already complete for this seed is left as it is.
    """
    settings = settings or TinySearchSettings()
    wanted = {"seed": seed, **settings.__dict__, "searches": list(settings.searches)}
    return prepare_once(folder, wanted, lambda place: _make(place, seed, settings))


def _make(folder: Path, seed: int, settings: TinySearchSettings) -> dict[str, Any]:
    torch.manual_seed(seed)
    draw = random.Random(seed)
    tokenizer = make_tokenizer(WORDS)
    model = make_model(len(tokenizer))
    names = draw.sample(possible_names(), settings.names)
    # one round through all of them: nobody is his own friend or his friend's friend
    friend = dict(zip(names, [*names[1:], names[0]], strict=True))
    corpus = [{"title": name, "text": friend[name]} for name in names]
    questions = [
        {"id": f"{hops}-{name}", "problem": QUESTIONS[hops].format(name), "answer": answer}
        for name in names
        for hops, answer in enumerate((name, friend[name], friend[friend[name]]))
    ]
    draw.shuffle(corpus)
    draw.shuffle(questions)
    steps, learned = _warm_start(model, tokenizer, settings, draw)
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    held_out = min(HELD_OUT, len(questions) // 3)
    parts = {
        "corpus": corpus,
        "train": questions[held_out:],
        "test": questions[:held_out],
    }
    for name, rows in parts.items():
        write_text(folder / f"{name}.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "warm_start_steps": steps,
        "learned": learned,
    }


def possible_names() -> list[str]:
    """Consonant, vowel, consonant."""
    names = [a + b + c for a in "bdfghklmnprstw" for b in "aeiou" for c in "bdgklmnprst"]
    return [name for name in names if name not in COMMON]


def demonstration(hops: int, names: list[str], searches: int) -> tuple[str, list[tuple[str, bool]]]:
    """A question, and a response that makes so many searches: its parts, and whether the policy
    says them. `names[i + 1]` is what a search for `names[i]` finds."""
    parts: list[tuple[str, bool]] = []
    for found in range(searches):
        parts.append((f"<search>{names[found]}</search>", True))
        parts.append((f"<information>{names[found + 1]}</information>", False))
    parts.append((f"<answer>{names[searches]}</answer>", True))
    return QUESTIONS[hops].format(names[0]), parts


def _warm_start(
    model: Any, tokenizer: Any, settings: TinySearchSettings, draw: random.Random
) -> tuple[int, float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.lr, weight_decay=0.0)
    names, learned = possible_names(), 0.0
    for step in range(1, settings.max_steps + 1):
        # any names, each time other friends: what is found must be read, not remembered
        rows = [
            demonstration(
                draw.randrange(len(QUESTIONS)),
                draw.sample(names, 3),
                draw.choices(range(3), settings.searches)[0],
            )
            for _ in range(settings.batch)
        ]
        ids, labels = _encode(tokenizer, rows)
        lr = settings.lr * min(1.0, step / settings.warmup)
        logits = supervised_step(model, optimizer, lr, ids, labels)
        if step % settings.check_every == 0:
            learned = _share_learned(logits, labels, tokenizer)
            if learned >= settings.learned:
                break
    return step, learned


def _encode(
    tokenizer: Any, rows: list[tuple[str, list[tuple[str, bool]]]]
) -> tuple[Tensor, Tensor]:
    """Token ids and labels (-100 where nothing is learned), padded on the right."""
    encoded = []
    for question, parts in rows:
        ids = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
        )
        labels = [-100] * len(ids)
        for text, said in parts:
            new = tokenizer(text)["input_ids"]
            ids += new
            labels += new if said else [-100] * len(new)
        encoded.append((ids, labels))
    width = max(len(ids) for ids, _ in encoded)
    return (
        torch.tensor([ids + [tokenizer.pad_token_id] * (width - len(ids)) for ids, _ in encoded]),
        torch.tensor([labels + [-100] * (width - len(labels)) for _, labels in encoded]),
    )


def _share_learned(logits: Tensor, labels: Tensor, tokenizer: Any) -> float:
    """Share of rows whose every token is the first choice, the choice to search left out."""
    target = labels[:, 1:]
    choices = torch.tensor(tokenizer.convert_tokens_to_ids(["<search>", "<answer>"]))
    ignored = (target == -100) | torch.isin(target, choices)
    return float(((logits[:, :-1].argmax(-1) == target) | ignored).all(1).float().mean())
