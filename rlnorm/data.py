"""Datasets to prompts: reading, checking, templating and tokenizing rows, and their order.

Only data lives here: no sampling, no grading.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlnorm.config import BadRow, DataConfig
from rlnorm.errors import UserError

LOCAL_FORMATS = (".jsonl", ".json", ".parquet", ".csv")
USUAL_COLUMNS = {
    "data.prompt_column": ("problem", "question", "prompt"),
    "data.answer_column": ("answer", "answers", "gold", "solution"),
}


def is_local(path: str) -> bool:
    """Whether a data path means a file here, not a Hub dataset."""
    local = Path(path).expanduser()
    return local.suffix in LOCAL_FORMATS or local.exists()


def has_evaluation(config: DataConfig) -> bool:
    """Whether the config names data to evaluate on: a path of its own, or a Hub split."""
    by_split = config.eval_split is not None and not is_local(config.path)
    return config.eval_path is not None or by_split


@dataclass(frozen=True)
class PromptDataset:
    """Tokenized prompts with their gold answers.

    Attributes:
        prompt_ids: token ids per prompt, chat template applied.
        question: the dataset's question per prompt.
        answer: gold answer per prompt.
        row: index of the prompt's row in the source.
        too_long: rows dropped because their prompt exceeds the limit.
        skipped: rows dropped because they had no prompt or no answer (data.bad_rows=skip).
    """

    prompt_ids: list[list[int]]
    question: list[str]
    answer: list[str]
    row: list[int]
    too_long: int = 0
    skipped: int = 0

    def __len__(self) -> int:
        return len(self.prompt_ids)

    def fingerprint(self) -> str:
        """Short hash of prompts and answers: equal for equal data, whatever file it came from."""
        digest = hashlib.sha256()
        for ids, answer in zip(self.prompt_ids, self.answer, strict=True):
            digest.update(np.asarray(ids, dtype=np.int64).tobytes() + answer.encode() + b"\0")
        return digest.hexdigest()[:16]


def load_train_prompts(config: DataConfig, tokenizer: Any) -> PromptDataset:
    """The prompts to train on. Raises UserError for whatever is wrong with the data."""
    rows = read_rows(config.path, config.name, config.split, "data.path")
    return _prompts(rows[: config.limit], config.path, config, tokenizer)


def load_eval_prompts(config: DataConfig, tokenizer: Any) -> PromptDataset:
    """The prompts to evaluate on. Raises UserError for whatever is wrong with the data."""
    path = config.eval_path or config.path
    name = config.eval_name or (config.name if config.eval_path is None else None)
    rows = read_rows(path, name, config.eval_split or "test", "data.eval_path")
    return _prompts(rows[: config.eval_limit], path, config, tokenizer)


def read_rows(path: str, name: str | None, split: str, key: str) -> list[dict[str, Any]]:
    """All rows of a local file or Hub dataset."""
    if is_local(path):
        return _read_local(Path(path).expanduser(), key)
    import datasets

    try:
        dataset = datasets.load_dataset(path, name, split=split)
    except Exception as error:  # the library raises many kinds; all mean: not to be had
        reason = " ".join(str(error).split())[:300]
        raise UserError(
            f"{key} is {path!r}: no such local file, and the Hub did not give its split "
            f"{split!r} ({type(error).__name__}: {reason})."
        ) from None
    return [dict(row) for row in dataset]


def _read_local(path: Path, key: str) -> list[dict[str, Any]]:
    if not path.is_file():
        raise UserError(f"{key} is {str(path)!r}, and there is no such file.")
    if path.suffix == ".jsonl":
        return _read_jsonl(path)
    kinds = {".json": "json", ".parquet": "parquet", ".csv": "csv"}
    if path.suffix not in kinds:
        raise UserError(
            f"{key} is {str(path)!r}; it must end in one of {', '.join(LOCAL_FORMATS)}."
        )
    import datasets

    try:
        dataset = datasets.load_dataset(kinds[path.suffix], data_files=str(path), split="train")
    except Exception as error:  # as above
        reason = " ".join(str(error).split())[:300]
        raise UserError(f"{key} is {str(path)!r}, and it cannot be read: {reason}") from None
    return [dict(row) for row in dataset]


def _read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Line by line, so that a bad line is named. Blank lines and a byte order mark are fine."""
    rows = []
    with open(path, encoding="utf-8-sig") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip("\ufeff \t\r\n"):
                continue
            try:
                row = json.loads(line.lstrip("\ufeff"))
            except json.JSONDecodeError as error:
                raise UserError(f"{path}, line {number} is not JSON: {error.msg}.") from None
            if not isinstance(row, dict):
                raise UserError(f"{path}, line {number} is not a JSON object.")
            rows.append(row)
    return rows


def _prompts(
    rows: list[dict[str, Any]], path: str, config: DataConfig, tokenizer: Any
) -> PromptDataset:
    if not rows:
        raise UserError(f"The dataset {path!r} has no rows.")
    columns = {
        "data.prompt_column": _column("data.prompt_column", config.prompt_column, rows, path),
        "data.answer_column": _column("data.answer_column", config.answer_column, rows, path),
    }
    questions, answers, sources, skipped = [], [], [], 0
    for number, row in enumerate(rows):
        values = [row.get(column) for column in columns.values()]
        bad = [
            column
            for column, value in zip(columns.values(), values, strict=True)
            if value is None or value == [] or not str(value).strip()
        ]
        if bad:
            if config.bad_rows is BadRow.error:
                raise UserError(
                    f"Row {number} of {path!r} has no {bad[0]}; mend it, or set data.bad_rows=skip."
                )
            skipped += 1
            continue
        questions.append(str(values[0]))
        answers.append(_answer(values[1]))
        sources.append(number)
    encoded = encode_prompts(questions, config, tokenizer)
    fits = [len(ids) <= config.max_prompt_length for ids in encoded]
    if not any(fits):
        if not encoded:
            raise UserError(f"The dataset {path!r} has no row with a prompt and an answer.")
        raise UserError(
            f"data.max_prompt_length is {config.max_prompt_length} tokens, and all "
            f"{len(encoded)} prompts of {path!r} are longer (the shortest has "
            f"{min(map(len, encoded))})."
        )
    kept = [i for i, fit in enumerate(fits) if fit]
    return PromptDataset(
        prompt_ids=[encoded[i] for i in kept],
        question=[questions[i] for i in kept],
        answer=[answers[i] for i in kept],
        row=[sources[i] for i in kept],
        too_long=len(encoded) - len(kept),
        skipped=skipped,
    )


def _answer(value: Any) -> str:
    """A gold answer as text; several that are equally right as a JSON list."""
    if isinstance(value, list):
        return json.dumps([str(one) for one in value], ensure_ascii=False)
    return str(value)


def _column(key: str, wanted: str | None, rows: list[dict[str, Any]], path: str) -> str:
    """The column to read: the one named, or the first usual name that the data has."""
    usual = USUAL_COLUMNS[key]
    for column in (wanted,) if wanted is not None else usual:
        if column in rows[0]:
            return column
    has = ", ".join(map(str, rows[0]))
    if wanted is not None:
        raise UserError(f"{key} is {wanted!r}, and {path!r} has no such column; it has {has}.")
    raise UserError(f"{key} is not set, and {path!r} has none of {', '.join(usual)}; it has {has}.")


def encode_prompts(questions: list[str], config: DataConfig, tokenizer: Any) -> list[list[int]]:
    """Token ids of each question in its template; the one place where prompts become tokens.

    With a chat template the template alone adds special tokens, so there is one BOS or none.
    """
    texts = [config.prompt_template.replace("{prompt}", question) for question in questions]
    if not config.chat:
        return [list(map(int, tokenizer(text)["input_ids"])) for text in texts]
    if not getattr(tokenizer, "chat_template", None):
        raise UserError(
            "The tokenizer has no chat template; set data.chat=false to use the prompt as it is."
        )
    system = [{"role": "system", "content": config.system_prompt}] if config.system_prompt else []
    encoded = []
    for text in texts:
        ids = tokenizer.apply_chat_template(
            [*system, {"role": "user", "content": text}],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
            **config.chat_template_kwargs,
        )
        encoded.append(list(map(int, ids)))
    return encoded


class PromptStream:
    """An endless order of prompt indices, fixed by size and seed; its state is one number.

    Each epoch is a permutation of all prompts; batches run over the ends of epochs, so nothing
    is dropped and nothing comes twice within one.
    """

    def __init__(self, size: int, seed: int, shuffle: bool = True) -> None:
        self.size = size
        self.seed = seed
        self.shuffle = shuffle
        self.consumed = 0
        self._epoch = -1
        self._order = np.empty(0, dtype=np.int64)

    def take(self, count: int) -> list[int]:
        """The next `count` prompt indices."""
        indices = []
        for position in range(self.consumed, self.consumed + count):
            epoch, offset = divmod(position, self.size)
            if epoch != self._epoch:
                self._epoch = epoch
                self._order = np.arange(self.size)
                if self.shuffle:
                    self._order = np.random.default_rng([self.seed, epoch]).permutation(self.size)
            indices.append(int(self._order[offset]))
        self.consumed += count
        return indices
