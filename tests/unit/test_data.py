"""Prompts: order, templates, tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlnorm.config import DataConfig
from rlnorm.data import PromptStream, encode_prompts, load_train_prompts
from rlnorm.prepare.tiny import make_tokenizer


@given(
    size=st.integers(1, 30),
    seed=st.integers(0, 5),
    takes=st.lists(st.integers(1, 12), min_size=1, max_size=8),
    cut=st.integers(0, 7),
)
def test_stream_goes_on_where_it_was(size: int, seed: int, takes: list[int], cut: int) -> None:
    """However it is cut, the order is the same; every epoch has every prompt once."""
    whole = PromptStream(size, seed)
    order = [index for count in takes for index in whole.take(count)]
    first = PromptStream(size, seed)
    before = [index for count in takes[:cut] for index in first.take(count)]
    second = PromptStream(size, seed)
    second.consumed = first.consumed
    after = [index for count in takes[cut:] for index in second.take(count)]
    assert before + after == order
    for start in range(0, len(order) - size + 1, size):
        assert sorted(order[start : start + size]) == list(range(size))


def test_stream_at_an_epochs_end() -> None:
    """10 prompts, batches of 4, 12 consumed: the next is at epoch 1, offset 2, nothing dropped."""
    stream = PromptStream(10, seed=7)
    stream.take(12)
    resumed = PromptStream(10, seed=7)
    resumed.consumed = 12
    assert resumed.take(8) == stream.take(8)
    assert PromptStream(10, seed=7).take(10) != PromptStream(10, seed=8).take(10)
    assert PromptStream(4, seed=0, shuffle=False).take(6) == [0, 1, 2, 3, 0, 1]


def test_chat_template_is_applied_once() -> None:
    tokenizer = make_tokenizer()
    config = DataConfig(path="", system_prompt="Add.", prompt_template="{prompt} ({prompt})")
    (ids,) = encode_prompts(["1+{prompt}"], config, tokenizer)
    text = tokenizer.decode(ids)
    # the template's placeholder is replaced, the question's own braces are not
    assert text == "<|system|>Add.<|end|><|user|>1+{prompt} (1+{prompt})<|end|><|assistant|>"
    config.chat = False
    (plain,) = encode_prompts(["1+1="], config, tokenizer)
    assert tokenizer.decode(plain) == "1+1= (1+1=)"


class BosTokenizer:
    """Adds BOS (1) when it encodes; its template writes BOS itself, or does not."""

    chat_template = "yes"

    def __init__(self, template_has_bos: bool) -> None:
        self.template_has_bos = template_has_bos

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [1, *map(ord, text)]}

    def apply_chat_template(self, messages: Any, **settings: Any) -> list[int]:
        assert settings["tokenize"] and settings["add_generation_prompt"]
        ids = [ord(letter) for message in messages for letter in message["content"]]
        return [1, *ids] if self.template_has_bos else ids


@pytest.mark.parametrize("has_bos", [True, False])
def test_one_bos_or_the_templates_none(has_bos: bool) -> None:
    (ids,) = encode_prompts(["hi"], DataConfig(path=""), BosTokenizer(has_bos))
    assert ids.count(1) == int(has_bos)


def test_answers_stay_with_their_rows(tmp_path: Path) -> None:
    """Dropping rows keeps every column in step."""
    import json

    path = tmp_path / "rows.jsonl"
    lengths = [5, 30, 3, 2]
    path.write_text("\n".join(json.dumps({"prompt": "x" * n, "answer": 10 * n}) for n in lengths))
    config = DataConfig(path=str(path), max_prompt_length=12)
    prompts = load_train_prompts(config, make_tokenizer())
    assert prompts.too_long == 1
    assert prompts.row == [0, 2, 3]
    assert prompts.answer == [str(10 * len(question)) for question in prompts.question]
    # <|user|> text <|end|> <|assistant|>
    assert [len(ids) for ids in prompts.prompt_ids] == [8, 6, 5]


@pytest.mark.parametrize("ending", [".csv", ".parquet", ".json"])
def test_other_local_formats(ending: str, tmp_path: Path) -> None:
    import pandas

    path = tmp_path / f"rows{ending}"
    frame = pandas.DataFrame({"question": ["1+1=", "2+2="], "answer": [2, 4]})
    if ending == ".csv":
        frame.to_csv(path, index=False)
    elif ending == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_json(path, orient="records", lines=True)
    prompts = load_train_prompts(DataConfig(path=str(path), chat=False), make_tokenizer())
    assert prompts.question == ["1+1=", "2+2="]
    assert prompts.answer == ["2", "4"]


def test_gsm8k_is_read(shared: Path) -> None:
    config = DataConfig(path=str(shared / "data/math/gsm8k_train.jsonl"), max_prompt_length=2000)
    prompts = load_train_prompts(config, make_tokenizer())
    assert len(prompts) == 7473 and prompts.answer[0] == "72"
