"""What a worker process of `MathVerifier` runs: compare a normalised answer with a gold.

Lives here: taking answers apart (lists, sets, tuples), the comparison of the parts by math-verify
and sympy, and the process's loop and limits. How answers are found and rewritten lives in
`math_verifier`. Run as `python -m rlnorm.rewards.math_worker PARENT_PID TIMEOUT_S MEMORY_MB`.

Mathematics is parsed by math-verify's LaTeX grammar only; its reader of plain expressions, which
evaluates Python, is not used.
"""

import json
import logging
import os
import re
import resource
import select
import signal
import sys
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import sympy
from latex2sympy2_extended import NormalizationConfig
from math_verify import LatexExtractionConfig, parse, verify
from sympy.core.function import AppliedUndef

from rlnorm.rewards.math_verifier import compare_numbers, without_spaces

# How often an idle worker looks whether its parent still lives, in seconds. The end of its input
# tells at once, except while a forked copy of the parent holds the pipe open.
PARENT_CHECK_S = 5.0

# An answer with brackets nested deeper is not parsed: the parser's time grows out of hand with
# the depth, and the gold answers of the usual sets have at most 6.
MAX_NESTING = 24

_EXTRACTION = [
    LatexExtractionConfig(
        boxed_match_priority=-1,
        normalization_config=NormalizationConfig(
            basic_latex=True,
            units=False,  # it takes the `c` of `3c` for a unit
            malformed_operators=True,
            nits=False,
            boxed="none",
            equations=False,
        ),
    )
]

# Two expressions are equal when they agree at these many significant digits, relative to the
# larger. Values of both signs, none of them special to common functions.
_DIGITS = 50
_TOLERANCE = sympy.Rational(1, 10**30)
_SAMPLES = (
    ("1.3718281", "0.4142135", "2.2360679", "0.5772156"),
    ("-0.7390851", "1.9021605", "-1.3247179", "0.9159655"),
    ("2.6854520", "-1.2020569", "0.6243299", "-2.5029078"),
)


class Unparsable(Exception):
    """An answer cannot be read. `of_gold` tells which of the two it was."""

    def __init__(self, of_gold: bool) -> None:
        super().__init__()
        self.of_gold = of_gold


# --- Taking answers apart -------------------------------------------------------------------


@dataclass(frozen=True)
class Parts:
    """An answer of several parts. `kind` is "list" (`1, 2`), "set" (`\\{1, 2\\}`), "tuple" or
    "matrix". A tuple has its brackets, such as `[)`, because a pair may be an interval; a matrix
    has its number of columns there."""

    kind: str
    members: tuple[str, ...]
    brackets: str = ""


_OPENING = {"(": ")", "[": "]", "{": "}", "\\{": "\\}"}
_CLOSING = {")", "]", "}", "\\}"}
_TOKEN = re.compile(r"\\begin|\\end|\\[{}]|\\.|[()\[\]{}]|[,;=]", re.DOTALL)


def split_top_level(text: str, separators: str) -> list[str]:
    """`text` cut at those separators that are inside no bracket, brace or environment."""
    pieces, start, depth = [], 0, 0
    for token in _TOKEN.finditer(text):
        if token[0] in _OPENING or token[0] == "\\begin":
            depth += 1
        elif token[0] in _CLOSING or token[0] == "\\end":
            depth -= 1
        elif depth == 0 and token[0] in separators:
            pieces.append(text[start : token.start()].strip())
            start = token.end()
    pieces.append(text[start:].strip())
    return pieces


def _enclosed(text: str) -> tuple[str, str, str] | None:
    """(opening, inside, closing) when one pair of brackets encloses all of `text`."""
    brackets = _OPENING.keys() | _CLOSING
    tokens = [token for token in _TOKEN.finditer(text) if token[0] in brackets]
    if len(tokens) < 2 or tokens[0].start() != 0 or tokens[-1].end() != len(text):
        return None
    depth = 0
    for token in tokens:
        depth += 1 if token[0] in _OPENING else -1
        if depth == 0 and token is not tokens[-1]:
            return None
    if depth != 0 or tokens[-1][0] not in _CLOSING or "{" == tokens[0][0]:
        return None
    return tokens[0][0], text[tokens[0].end() : tokens[-1].start()].strip(), tokens[-1][0]


def _expand_plus_minus(member: str) -> list[str]:
    if not re.search(r"\\(?:pm|mp)(?![A-Za-z])", member):
        return [member]
    plus = re.sub(r"\\pm(?![A-Za-z])", "+", re.sub(r"\\mp(?![A-Za-z])", "-", member))
    minus = re.sub(r"\\pm(?![A-Za-z])", "-", re.sub(r"\\mp(?![A-Za-z])", "+", member))
    return [re.sub(r"^\s*\+", "", plus), minus]


def _members(text: str) -> list[str]:
    pieces = [piece for piece in split_top_level(text, ",;") if piece]
    return [member for piece in pieces for member in _expand_plus_minus(piece)]


_MATRIX = re.compile(r"(?:\\begin ?\{([pbB]?matrix)\} ?)((?:(?!\\begin|\\end).)*)\\end ?\{\1\}")


def take_apart(text: str) -> Parts | str:
    """The parts of an answer; the text itself when it is one expression, relation or interval
    union."""
    text = text.strip()
    matrix = _MATRIX.fullmatch(text)
    if matrix:
        rows = [row.split("&") for row in matrix[2].split("\\\\") if row.strip()]
        entries = tuple(entry.strip() for row in rows for entry in row)
        if len({len(row) for row in rows}) == 1 and all(entries):
            return Parts("matrix", entries, str(len(rows[0])))
    members = _members(text)
    if len(members) > 1:
        return Parts("list", tuple(members))
    enclosed = _enclosed(text)
    if enclosed is not None:
        opening, inside, closing = enclosed
        if opening == "\\{" and not re.search(r"\\mid(?![A-Za-z])|[|:]", inside):
            return Parts("set", tuple(_members(inside)))
        pieces = split_top_level(inside, ",")
        if len(pieces) > 1 and opening in "([" and closing in ")]":
            return Parts("tuple", tuple(pieces), opening + closing)
    return text


# --- Comparing ------------------------------------------------------------------------------


def same_answer(gold: str, answer: str) -> bool:
    """Whether two normalised answers (no unit, no percent sign) have the same value.

    Lists and sets have no order and are as long as each other; tuples and matrices have. Raises
    `Unparsable`, and whatever sympy raises.
    """
    if without_spaces(gold) == without_spaces(answer):
        return True
    gold, answer = _without_names(gold, answer)
    gold_parts, answer_parts = take_apart(gold), take_apart(answer)
    if isinstance(gold_parts, str) and isinstance(answer_parts, str):
        return _same_expression(gold_parts, answer_parts)
    if isinstance(gold_parts, Parts) and isinstance(answer_parts, Parts):
        return _same_parts(gold_parts, answer_parts)
    gold_has_parts = isinstance(gold_parts, Parts)
    parts, other = (gold_parts, answer) if gold_has_parts else (answer_parts, gold)
    assert isinstance(parts, Parts)
    if parts.kind == "set" and len(parts.members) == 1:
        member = parts.members[0]
        return same_answer(member, other) if gold_has_parts else same_answer(other, member)
    if parts.kind == "tuple" and len(parts.members) == 2 and _NAMES_A_SET.search(other):
        return _verify(_parse(gold, of_gold=True), _parse(answer, of_gold=False))
    return False


def _same_parts(gold: Parts, answer: Parts) -> bool:
    if len(gold.members) != len(answer.members):
        return False
    if "matrix" in (gold.kind, answer.kind):
        return (gold.kind, gold.brackets) == (answer.kind, answer.brackets) and all(
            map(same_answer, gold.members, answer.members)
        )
    if gold.kind == "tuple":
        # `1, 2` in the right order stands for the gold `(1, 2)`, but not for an interval.
        brackets_agree = gold.brackets == answer.brackets or (
            len(gold.members) > 2 and answer.kind == "tuple"
        )
        if not (brackets_agree or (answer.kind == "list" and gold.brackets == "()")):
            return False
        return all(map(same_answer, gold.members, answer.members))
    if answer.kind == "tuple":
        return False
    left = list(answer.members)
    for member in gold.members:
        match = next((other for other in left if same_answer(member, other)), None)
        if match is None:
            return False
        left.remove(match)
    return True


_NAME = re.compile(r"(?:\\?[A-Za-z]+|\\text\{[^{}]*\})(?:_(?:\w|\{[^{}]*\}))?'?(?: ?\([^()]*\))?")
_RELATION = re.compile(r"[<>=]|\\(?:n?e|neq|leq?|geq?|lt|gt|in|equiv|sim)(?![A-Za-z])")


def _without_names(gold: str, answer: str) -> tuple[str, str]:
    """Drop `x =` where one side only has it, or both have the same.

    A chain `x = 2 + 3 = 5` stands for its last part. Different names (`x = 1`, `y = 1`) stay.
    """
    if len(split_top_level(gold, ",;")) > 1 or len(split_top_level(answer, ",;")) > 1:
        return gold, answer
    gold_sides, answer_sides = split_top_level(gold, "="), split_top_level(answer, "=")
    gold_named = len(gold_sides) > 1 and _NAME.fullmatch(gold_sides[0])
    answer_named = len(answer_sides) > 1 and _NAME.fullmatch(answer_sides[0])
    if gold_named and answer_named:
        if gold_sides[0].replace(" ", "") == answer_sides[0].replace(" ", ""):
            return gold_sides[-1], answer_sides[-1]
    elif gold_named and not _RELATION.search(answer):
        return gold_sides[-1], answer
    elif len(answer_sides) > 1 and not _RELATION.search(gold):
        return gold, answer_sides[-1]
    return gold, answer


@lru_cache(maxsize=512)
def _parse(text: str, of_gold: bool) -> Any:
    if _nesting(text) > MAX_NESTING:
        raise Unparsable(of_gold)
    results = parse(
        f"${text}$",
        _EXTRACTION,
        fallback_mode="no_fallback",
        parsing_timeout=None,  # type: ignore[arg-type]
    )
    if not results or isinstance(results[0], str):
        raise Unparsable(of_gold)
    return results[0]


def _nesting(text: str) -> int:
    depth = deepest = 0
    for character in text:
        if character in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in ")]}":
            depth -= 1
    return deepest


# What an interval may be written as besides its brackets: a relation or a union.
_NAMES_A_SET = re.compile(rf"{_RELATION.pattern}|\\(?:cup|cap|setminus|mathbb|R)(?![A-Za-z])")
_BASED = re.compile(r"([0-9A-Z]+) ?_ ?(?:\{ ?(\d+) ?\}|(\d))")


def _same_expression(gold: str, answer: str) -> bool:
    numbers = compare_numbers(gold, answer)
    if numbers is not None:
        return numbers
    bases = _BASED.fullmatch(gold), _BASED.fullmatch(answer)
    if bases[0] and bases[1]:
        # The parser drops the base. On one side only it is ignored, as a unit is.
        return (bases[0][1], bases[0][2] or bases[0][3]) == (
            bases[1][1],
            bases[1][2] or bases[1][3],
        )
    return _same_value(_parse(gold, of_gold=True), _parse(answer, of_gold=False))


def _same_value(gold: Any, answer: Any) -> bool:
    if isinstance(gold, sympy.MatrixBase) or isinstance(answer, sympy.MatrixBase):
        return (
            isinstance(gold, sympy.MatrixBase)
            and isinstance(answer, sympy.MatrixBase)
            and gold.shape == answer.shape
            and all(map(_same_value, gold.flat(), answer.flat()))
        )
    if isinstance(gold, sympy.Expr) and isinstance(answer, sympy.Expr):
        # doit() outside math-verify, which would swallow a MemoryError and say "wrong".
        gold, answer = _exact(gold).doit(), _exact(answer).doit()
        if gold == answer:
            return True
        if gold.is_Rational and answer.is_Rational:
            return False
        agree = _agree_numerically(gold, answer)
        if agree is not None:
            return agree
    return _verify(gold, answer)


def _verify(gold: Any, answer: Any) -> bool:
    return verify(
        _exact(gold),
        _exact(answer),
        numeric_precision=_DIGITS,
        allow_set_relation_comp=True,
        timeout_seconds=None,
        raise_on_error=True,
    )


def _exact(expression: Any) -> Any:
    """Decimals as exact fractions: a rounded decimal is not the number that was rounded."""
    if not isinstance(expression, sympy.Basic):
        return expression
    floats = expression.atoms(sympy.Float)
    return expression.xreplace({number: sympy.Rational(str(number)) for number in floats})


def _agree_numerically(gold: Any, answer: Any) -> bool | None:
    """Whether two expressions agree, relative to their size, at sampled values of their
    variables. None when they have no numerical value.

    math-verify compares the difference with 0 absolutely, where 1/2^99 "equals" 1/2^98. Where
    both are real at some samples, only those count: sqrt(1/n) is 1/sqrt(n) for the n meant.
    """
    unknowns = {
        unknown
        for expression in (gold, answer)
        for unknown in expression.free_symbols | expression.atoms(AppliedUndef)
    }
    names = sorted({str(unknown) for unknown in unknowns} - {"i"})
    agreements: dict[bool, list[bool]] = {True: [], False: []}  # by whether both are real
    for sample in _SAMPLES if names else _SAMPLES[:1]:
        by_name: dict[str, sympy.Expr] = {
            name: sympy.Rational(sample[i % len(sample)]) + i // len(sample)
            for i, name in enumerate(names)
        }
        by_name["i"] = sympy.I  # the parser's name for the imaginary unit
        values = {unknown: by_name[str(unknown)] for unknown in unknowns}
        left, right = (_number(expression.xreplace(values)) for expression in (gold, answer))
        if left is None or right is None:
            return None
        both_real = left.is_real is True and right.is_real is True
        difference = abs(left - right).evalf(_DIGITS)
        size = max(abs(left).evalf(_DIGITS), abs(right).evalf(_DIGITS))
        agreements[both_real].append(bool(difference <= _TOLERANCE * size))
    return all(agreements[True] or agreements[False])


def _number(expression: Any) -> Any:
    """The value as a finite real or complex number of `_DIGITS` digits, or None."""
    value = expression.evalf(_DIGITS)
    parts = value.as_real_imag()
    return value if all(part.is_Number and part.is_finite for part in parts) else None


# --- The process ----------------------------------------------------------------------------


def _percent_readings(request: dict[str, Any]) -> list[tuple[str, str]]:
    """The pairs to compare: a percent sign on one side only is ignored, or is a hundredth."""
    gold, answer = request["gold"], request["answer"]
    readings = [(gold, answer)]
    if request["gold_percent"] and not request["answer_percent"]:
        readings.append((rf"\frac{{{gold}}}{{100}}", answer))
    elif request["answer_percent"] and not request["gold_percent"]:
        readings.append((gold, rf"\frac{{{answer}}}{{100}}"))
    return readings


def _reply(request: dict[str, Any]) -> dict[str, Any]:
    try:
        if "parse" in request:
            parts = take_apart(request["parse"])
            for member in parts.members if isinstance(parts, Parts) else (parts,):
                _parse(member, of_gold=True)
            return {"verdict": "parsed"}
        equal = any(same_answer(gold, answer) for gold, answer in _percent_readings(request))
        return {"verdict": "correct" if equal else "wrong"}
    except Unparsable as error:
        return {"verdict": "unparsable", "cause": "bad_gold" if error.of_gold else ""}
    except MemoryError:
        # What is left of this process is not to be trusted with another request.
        return {"verdict": "timeout", "cause": "memory_limit", "exiting": True}
    except Exception:
        # sympy raises dozens of types on strange input. It is a verdict with a cause, not "wrong".
        return {"verdict": "unparsable", "cause": "grading_error"}


def main(parent_pid: int, timeout_s: float, memory_mb: int) -> None:
    """Answer requests until the input ends or the parent is gone."""
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # nothing else may write between replies
    logging.disable(logging.CRITICAL)  # math-verify warns that its own time limits are off
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    # The kernel ends the process at the limit, even inside one long computation in C, and even
    # when nobody is left to kill it.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    size = memory_mb * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # The first parse builds the parser's tables, which takes longer than a parse: not on the clock.
    _parse(r"\frac{1}{2}", of_gold=True)
    replies.write(b'{"ready": true}\n')
    buffer = b""
    while True:
        while not select.select([sys.stdin.fileno()], [], [], PARENT_CHECK_S)[0]:
            if os.getppid() != parent_pid:
                return
        data = os.read(sys.stdin.fileno(), 1 << 16)
        if not data:
            return
        *lines, buffer = (buffer + data).split(b"\n")
        for line in lines:
            signal.setitimer(signal.ITIMER_REAL, timeout_s)
            reply = _reply(json.loads(line))
            signal.setitimer(signal.ITIMER_REAL, 0)
            replies.write(json.dumps(reply).encode() + b"\n")
            if reply.get("exiting"):
                os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
