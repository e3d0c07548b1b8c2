"""Exact match and F1 of question answering, by hand and against a plain implementation."""

from __future__ import annotations

import json
import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlnorm.rewards.qa import QAF1, QAExactMatch, f1, gold_answers, normalize


@pytest.mark.parametrize(
    "text, plain",
    [
        ("The  Eiffel-Tower!", "eiffeltower"),
        ("an apple, a day", "apple day"),
        ("theatre", "theatre"),
        ("A.B.C.", "abc"),
        ("  ", ""),
    ],
)
def test_normalize(text: str, plain: str) -> None:
    assert normalize(text) == plain


@pytest.mark.parametrize(
    "gold, answer, value",
    [
        ("Stanley Hall", "G. Stanley Hall", 2 * 2 / 5),
        ("the cat sat", "a cat sat", 1.0),
        ("yes", "yes it is", 0.0),  # HotpotQA: no partial credit
        ("no", "yes", 0.0),
        ("red red blue", "red", 2 * 1 / 4),
        ("Bern", "Basel", 0.0),
    ],
)
def test_f1_by_hand(gold: str, answer: str, value: float) -> None:
    assert f1(gold, answer) == pytest.approx(value)


def plain_f1(gold: str, answer: str) -> float:
    """Precision and recall by striking words off a list; both without words is a match."""
    bags = []
    for text in (gold, answer):
        kept = "".join(letter for letter in text.lower() if letter not in string.punctuation)
        bags.append([word for word in re.split(r"\s+", kept) if word not in ("", "a", "an", "the")])
    if bags[0] == bags[1]:
        return 1.0
    if any(" ".join(bag) in ("yes", "no", "noanswer") for bag in bags):
        return 0.0
    left, common = list(bags[0]), 0
    for word in bags[1]:
        if word in left:
            left.remove(word)
            common += 1
    if not common:
        return 0.0
    precision, recall = common / len(bags[1]), common / len(bags[0])
    return 2 * precision * recall / (precision + recall)


WORDS = st.lists(st.sampled_from(["red", "blue", "The", "b.", "x1", "yes"]), max_size=6).map(
    " ".join
)


@given(WORDS, WORDS)
def test_f1_is_symmetric_and_one_only_for_the_same_words(one: str, other: str) -> None:
    value = f1(one, other)
    assert 0.0 <= value <= 1.0 and value == f1(other, one)
    bags = [sorted(normalize(text).split()) for text in (one, other)]
    assert (value == 1.0) == (bags[0] == bags[1])
    assert value == pytest.approx(plain_f1(one, other))


@pytest.mark.parametrize(
    "response, value, event",
    [
        ("<answer>Stanley Hall</answer>", 1.0, "correct"),
        ("<answer>Bern</answer> no: <answer>G. Stanley Hall</answer>.", 1.0, "correct"),
        ("<answer>Stanley Hall</answer> or <answer>Bern</answer>", 0.0, "wrong"),
        ("<answer>Stanley Hall</answer> and </answer>", 1.0, "correct"),
        ("<answer>Stanley Hall</answer> and <answer>Bern", 1.0, "correct"),
        ("<answer> <answer>Stanley\nHall</answer>", 1.0, "correct"),
        ("<answer></answer>", 0.0, "wrong"),
        ("Stanley Hall", 0.0, "no_answer"),
        ("<answer>Stanley Hall", 0.0, "no_answer"),
        ("</answer>Stanley Hall<answer>", 0.0, "no_answer"),
    ],
)
def test_last_answer_against_any_of_the_golds(response: str, value: float, event: str) -> None:
    scores = QAExactMatch().score([json.dumps(["G. Stanley Hall", "Stanley Hall"])], [response])
    assert scores.values == [value] and scores.counts == {event: 1}


def test_f1_takes_the_best_gold_and_a_tag_of_choice() -> None:
    golds = ['["red car", "blue bus now"]'] * 2
    scores = QAF1(tag="a").score(golds, ["<a>blue bus</a>", "<answer>red car</answer>"])
    assert scores.values == [pytest.approx(0.8), 0.0]
    assert QAExactMatch(tag="").score(["42"], [" 42. "]).values == [1.0]


@pytest.mark.parametrize("gold", ["42", "[1, 2]", "[]", '{"a": 1}', "not [json", '"quoted"'])
def test_what_is_no_list_of_texts_is_one_answer(gold: str) -> None:
    assert gold_answers(gold) == [gold]


def test_golds_that_nothing_can_match() -> None:
    assert QAExactMatch().check_golds(["the", "Bern", '["the", "x"]']) == [False, True, True]
