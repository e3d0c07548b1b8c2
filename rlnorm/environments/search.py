"""Search: the policy looks things up before it answers.

How an episode goes lives here; what is found is the retriever's affair, what the answer is worth
the rewards'.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, ClassVar

from rlnorm.environments.interface import Environment, Transcript
from rlnorm.environments.retrieval import Passage, build_retriever
from rlnorm.errors import UserError

CALL, CALL_END, ANSWER_END = "<search>", "</search>", "</answer>"
# in a passage these would be taken for the policy's or the environment's own
MARKS = re.compile(r"</?(?:search|information|answer|think)>")


@dataclass
class Search(Environment):
    """Turns of thinking and searching, then an answer (Search-R1, arXiv 2503.09516).

    The policy writes <search>query</search> and gets <information>...</information> with the
    passages found, which carry no gradient; <answer>...</answer> or its end-of-sequence token
    ends the episode. A call without a query, or after `max_searches` of them, gets a sentence
    back and counts as a turn, not as a search.

    The stratum is the number of searches made, as in Stratified GRPO (arXiv 2510.06214); the
    metadata have `searches` and `malformed`.

    Attributes:
        retriever: {name: bm25, corpus: FILE_OR_HUB_NAME} or {name: http, url: URL}.
        top_k: passages per search.
        max_searches: searches that are answered.
        max_turns: turns of the policy, the last is its answer; must be above `max_searches`.
        passage_template: one passage; {number}, {title} and {text} stand for its parts.
        information_template: what the policy reads; {passages} stands for all of them.
        malformed_message, exhausted_message: what it reads instead; {max_searches} is known.
        stratum: "searches", or "package.module:function" from Transcript to an integer.
    """

    retriever: dict[str, Any] = field(default_factory=dict)
    top_k: int = 3
    max_searches: int = 4
    max_turns: int = 6
    passage_template: str = "Doc {number} (Title: {title}) {text}\n"
    information_template: str = "\n<information>{passages}</information>\n"
    # no tags in it: a reward would take them for the policy's
    malformed_message: str = (
        "\n<information>A search needs a query between its tags: search again, or answer."
        "</information>\n"
    )
    exhausted_message: str = (
        "\n<information>No more than {max_searches} searches: answer now.</information>\n"
    )
    stratum: str = "searches"

    has_strata: ClassVar[bool] = True
    has_steps: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name, low in (("top_k", 1), ("max_searches", 0), ("max_turns", 1)):
            value = getattr(self, name)
            if value < low:
                raise ValueError(f"{name} is {value}, it must be at least {low}")
        if self.max_turns <= self.max_searches:
            raise ValueError(
                f"max_turns is {self.max_turns}, it must be above max_searches "
                f"{self.max_searches}, for the answer"
            )
        if "{passages}" not in self.information_template:
            raise ValueError("information_template has no {passages}")
        self._count = self._counter()

    def check(self) -> None:
        if not self.retriever:
            raise UserError(
                "environment.settings.retriever is not set; it can be "
                "{name: bm25, corpus: FILE} or {name: http, url: URL}."
            )
        build_retriever(self.retriever).check()

    async def start(self) -> None:
        self._retriever = build_retriever(self.retriever)
        await self._retriever.start()

    async def play(self, transcript: Transcript) -> None:
        searches = malformed = 0
        for turn in range(self.max_turns):
            text = await transcript.sample(stop=(CALL_END, ANSWER_END))
            said = text.rstrip()
            if transcript.truncated or not said.endswith(CALL_END):
                break  # an answer, or the policy ended by itself
            _, call, query = said.removesuffix(CALL_END).rpartition(CALL)
            if not call or not query.strip():
                malformed += 1
                answer = self.malformed_message
            elif searches >= self.max_searches:
                answer = _fill(self.exhausted_message, {"max_searches": str(self.max_searches)})
            else:
                searches += 1
                found = await self._retriever.search(query.strip(), self.top_k)
                answer = _fill(self.information_template, {"passages": self._written(found)})
            if turn == self.max_turns - 1 or not transcript.write(answer):
                break
        transcript.metadata |= {"searches": searches, "malformed": malformed}
        transcript.stratum = self._count(transcript)

    def _written(self, passages: list[Passage]) -> str:
        return "".join(
            _fill(
                self.passage_template,
                {
                    "number": str(number),
                    "title": MARKS.sub("", passage.title),
                    "text": MARKS.sub("", passage.text),
                },
            )
            for number, passage in enumerate(passages, start=1)
        )

    def _counter(self) -> Callable[[Transcript], int]:
        if self.stratum == "searches":
            return lambda transcript: int(transcript.metadata["searches"])
        module, colon, name = self.stratum.partition(":")
        try:
            if not colon:
                raise ImportError("it is neither 'searches' nor package.module:function")
            function: Callable[[Transcript], int] = getattr(import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise ValueError(f"stratum is {self.stratum!r}: {error}") from None
        return function


def _fill(template: str, values: Mapping[str, str]) -> str:
    """Not str.format: what is filled in may hold braces, and so may the template."""
    pattern = "|".join(re.escape(f"{{{name}}}") for name in values)
    return re.sub(pattern, lambda found: values[found[0][1:-1]], template)
