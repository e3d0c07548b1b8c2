"""Retrievers: a query to passages, from a local corpus or a server. Nothing else lives here."""

from __future__ import annotations

import asyncio
import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlnorm.advantage.registry import Registry
from rlnorm.data import read_rows
from rlnorm.errors import UserError


@dataclass(frozen=True)
class Passage:
    """What is found: a title, possibly empty, and a text."""

    title: str
    text: str


class RetrievalError(Exception):
    """A search server that did not answer in time, refused, or answered nonsense."""


class Retriever(ABC):
    """A subclass is a dataclass whose fields are its settings."""

    def check(self) -> None:  # noqa: B027  (some have nothing to check)
        """Refuse with UserError what is known to be wrong before anything starts."""

    async def start(self) -> None:  # noqa: B027
        """Once, before the first search."""

    @abstractmethod
    async def search(self, query: str, k: int) -> list[Passage]:
        """At most k passages, the best first; RetrievalError where it cannot be told."""


@dataclass
class BM25(Retriever):
    """BM25 over titles and texts together, by the library bm25s (its "lucene" variant).

    Passages that share no word with the query are not found; equal scores stand in the corpus'
    order. A search takes milliseconds, so it is made in the event loop itself.

    Attributes:
        corpus: local file or Hub dataset. Rows hold `title` and `text`, or `contents` (Search-R1:
            a quoted title, a line break, the text), or a list `paragraphs` of title and text.
        name_of_corpus: configuration of a Hub dataset.
        split: of a Hub dataset.
        title_weight: how often the title's words count.
        k1, b: BM25's parameters.
    """

    corpus: str = ""
    name_of_corpus: str | None = None
    split: str = "train"
    title_weight: int = 1
    k1: float = 1.5
    b: float = 0.75

    def __post_init__(self) -> None:
        if self.title_weight < 0:
            raise ValueError(f"title_weight is {self.title_weight}, it must be at least 0")
        if not self.k1 >= 0:
            raise ValueError(f"k1 is {self.k1}, it must be at least 0")
        if not 0 <= self.b <= 1:
            raise ValueError(f"b is {self.b}, it must be from 0 to 1")

    def check(self) -> None:
        self._load()

    async def start(self) -> None:
        import bm25s

        # the library sets its logger to DEBUG, which any handler of the root logger would show
        logging.getLogger("bm25s").setLevel(logging.WARNING)
        self._passages = self._load()
        words = bm25s.tokenize(
            [f"{f'{p.title} ' * self.title_weight}{p.text}" for p in self._passages], **self._words
        )
        if not words.vocab:  # the library fails on it
            raise UserError(
                f"environment.settings.retriever.corpus is {self.corpus!r}, whose passages hold "
                "no word to search for; stop words do not count."
            )
        self._index = bm25s.BM25(k1=self.k1, b=self.b, method="lucene")
        self._index.index(words, show_progress=False)

    async def search(self, query: str, k: int) -> list[Passage]:
        import bm25s
        import numpy as np

        tokens = bm25s.tokenize(query, return_ids=False, **self._words)[0]
        known = [token for token in tokens if token in self._index.vocab_dict]
        if not known:
            return []
        scores = self._index.get_scores(known)
        best = np.argsort(-scores, kind="stable")[:k]
        return [self._passages[i] for i in best if scores[i] > 0]

    @property
    def _words(self) -> dict[str, Any]:
        # words of one letter count too, unlike in the library's default
        return {"stopwords": "en", "token_pattern": r"(?u)\b\w+\b", "show_progress": False}

    def _load(self) -> list[Passage]:
        return load_passages(self.corpus, self.name_of_corpus, self.split)


@dataclass
class HTTP(Retriever):
    """A search server that speaks as Search-R1's does.

    It is sent {"queries": [query], "topk": k, "return_scores": true} and answers {"result":
    [[{"document": {"contents": '"title"\\ntext'}, "score": ...}, ...]]}.

    Attributes:
        url: such as http://127.0.0.1:8000/retrieve.
        timeout_s: seconds one try may take.
        tries: how often a search is sent before it has failed.
        connections: searches under way at a time; others wait.
    """

    url: str = ""
    timeout_s: float = 30.0
    tries: int = 3
    connections: int = 64

    def __post_init__(self) -> None:
        for name in ("timeout_s", "tries", "connections"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}, it must be above 0")

    def check(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise UserError(
                f"environment.settings.retriever.url is {self.url!r}, it must begin with http:// "
                "or https://."
            )

    async def start(self) -> None:
        import httpx

        self._free = asyncio.Semaphore(self.connections)
        # the limit is on a whole try, see `search`: httpx's own are on each read, so a server
        # that sends a byte now and then would never run into them
        self._client = httpx.AsyncClient(
            timeout=None, limits=httpx.Limits(max_connections=self.connections)
        )

    async def search(self, query: str, k: int) -> list[Passage]:
        import httpx

        failure = ""
        for _ in range(self.tries):
            try:
                async with self._free, asyncio.timeout(self.timeout_s):
                    answer = await self._client.post(
                        self.url, json={"queries": [query], "topk": k, "return_scores": True}
                    )
                answer.raise_for_status()
                return _passages_of(answer.json())[:k]
            except TimeoutError:
                failure = f"no answer within {self.timeout_s:g} s"
            except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
                failure = (
                    f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
                )
        raise RetrievalError(f"the search server {self.url}, tried {self.tries} times: {failure}")


RETRIEVERS = Registry("retriever")
RETRIEVERS.register("bm25")(BM25)
RETRIEVERS.register("http")(HTTP)


def build_retriever(settings: Mapping[str, Any]) -> Retriever:
    """{name: bm25, corpus: ...} or {name: http, url: ...}; UserError for a mistake in it."""
    try:
        retriever: Retriever = RETRIEVERS.build(settings)
    except ValueError as error:
        text = str(error)
        key = "" if text.startswith(("retriever.", "retriever ")) else "retriever."
        raise UserError(f"environment.settings.{key}{text}") from None
    if not isinstance(retriever, Retriever):
        raise UserError(
            f"environment.settings.retriever.name is {settings['name']!r}, which is no subclass "
            "of Retriever."
        )
    return retriever


def load_passages(path: str, name: str | None = None, split: str = "train") -> list[Passage]:
    """All different passages of a corpus, in its order; UserError where there are none."""
    key = "environment.settings.retriever.corpus"
    if not path:
        raise UserError(f"{key} is not set; it must be a file or a Hub dataset.")
    found: dict[Passage, None] = {}
    for number, row in enumerate(read_rows(path, name, split, key)):
        for part in row["paragraphs"] if isinstance(row.get("paragraphs"), list) else [row]:
            try:
                found.setdefault(_passage(part))
            except (KeyError, TypeError):
                raise UserError(
                    f"{key} is {path!r}: row {number} has no passage in text (with title), "
                    f"contents or paragraphs; its columns are {', '.join(map(str, row))}."
                ) from None
    if not found:
        raise UserError(f"{key} is {path!r}, which holds no passages.")
    return list(found)


def _passage(part: Any) -> Passage:
    """TypeError or KeyError where there is none; a column without value counts as absent."""
    if not isinstance(part, Mapping):
        raise TypeError(part)
    if part.get("contents") is not None:
        first, _, rest = str(part["contents"]).partition("\n")
        return Passage(first.strip().strip('"'), rest)
    if part.get("text") is None:
        raise KeyError("text")
    title = part.get("title")
    return Passage("" if title is None else str(title), str(part["text"]))


def _passages_of(answer: Any) -> list[Passage]:
    """ValueError for an answer of another form."""
    try:
        found = answer["result"][0]
        if not isinstance(found, list):
            raise TypeError(found)
        return [_passage(item.get("document", item)) for item in found]
    except (KeyError, IndexError, TypeError, AttributeError):
        shown = json.dumps(answer)[:200]
        raise ValueError(f"an answer of another form: {shown}") from None
