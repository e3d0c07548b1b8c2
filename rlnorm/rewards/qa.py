"""Rewards of question answering: exact match and F1 after the usual normalization.

Finding the answer in a response and comparing it with the gold ones lives here, nothing else.
"""

from __future__ import annotations

import json
import re
import string
from collections import Counter
from dataclasses import dataclass

from rlnorm.rewards.interface import Reward, Scores

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)
# HotpotQA's script gives no partial credit for these
CLOSED_ANSWERS = {"yes", "no", "noanswer"}


def normalize(text: str) -> str:
    """Lower case, without punctuation, articles and superfluous white space (SQuAD's script)."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def gold_answers(gold: str) -> list[str]:
    """The acceptable answers: a JSON list of strings, or the text itself."""
    try:
        answers = json.loads(gold)
    except ValueError:
        return [gold]
    if isinstance(answers, list) and answers and all(isinstance(a, str) for a in answers):
        return answers
    return [gold]


def exact_match(gold: str, answer: str) -> float:
    """1.0 if both are the same once normalized."""
    return float(normalize(gold) == normalize(answer))


def f1(gold: str, answer: str) -> float:
    """F1 of the normalized words as bags, as HotpotQA's script has it."""
    one, other = normalize(gold), normalize(answer)
    if one != other and (one in CLOSED_ANSWERS or other in CLOSED_ANSWERS):
        return 0.0
    words, said = Counter(one.split()), Counter(other.split())
    if not words or not said:
        return float(words == said)
    common = (words & said).total()
    return 2 * common / (words.total() + said.total())


@dataclass
class QAExactMatch(Reward):
    """1.0 if the answer equals one of the gold answers, 0.0 else and where there is none.

    Attributes:
        tag: the answer is what the last <tag>...</tag> of the response holds; "" takes all of it.
    """

    tag: str = "answer"

    def score(self, golds: list[str], responses: list[str]) -> Scores:
        values: list[float | None] = []
        counts: Counter[str] = Counter()
        for gold, response in zip(golds, responses, strict=True):
            answer = self._answer(response)
            if answer is None:
                values.append(0.0)
                counts["no_answer"] += 1
                continue
            value = max(self.compare(one, answer) for one in gold_answers(gold))
            values.append(value)
            counts["correct" if value == 1.0 else "wrong"] += 1
        return Scores(values, dict(counts))

    @staticmethod
    def compare(gold: str, answer: str) -> float:
        """How right an answer is, from 0 to 1."""
        return exact_match(gold, answer)

    def check_golds(self, golds: list[str]) -> list[bool]:
        return [any(normalize(answer) for answer in gold_answers(gold)) for gold in golds]

    def _answer(self, response: str) -> str | None:
        if not self.tag:
            return response
        # from the last opening tag that is closed to its first closing one: a stray tag of either
        # kind after the answer does not change it
        for opened in reversed(response.split(f"<{self.tag}>")[1:]):
            answer, closed, _ = opened.partition(f"</{self.tag}>")
            if closed:
                return answer
        return None


@dataclass
class QAF1(QAExactMatch):
    """F1 of the answer's words with those of the best gold answer; `correct` counts F1 = 1."""

    @staticmethod
    def compare(gold: str, answer: str) -> float:
        return f1(gold, answer)
