"""Grades mathematical answers: `MathVerifier`, and how answers are found in and read from text.

Lives here: finding the answer in a completion, the one table of rules that rewrites answers
before they are compared (`RULES`, `normalise`), verdicts that need no algebra, the cache.
Nothing here imports math-verify or sympy and no answer is evaluated here: that happens in
`math_worker`, inside processes that can be killed.
"""

import os
import re
import sys
import threading
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Literal, NamedTuple, Self

from rlnorm.rewards.process_pool import Failure, ProcessPool

Verdict = Literal["correct", "wrong", "unparsable", "timeout"]

# A longer answer than this, in characters, is only compared as a string and as a plain number:
# the longest gold answer of the usual sets has about 500, and parsing is slower than linear.
MAX_ANSWER_CHARS = 2_000


# --- Finding the answer ---------------------------------------------------------------------


def last_boxed(text: str) -> str | None:
    r"""The content of the last `\boxed{...}` (or `\fbox{...}`) of `text`.

    None when there is none, and when the last one is not terminated: an answer cut off must not
    be replaced by an earlier box. Escaped braces `\{` and `\}` do not count as braces.
    """
    boxes = list(re.finditer(r"\\(?:boxed|fbox)(?![A-Za-z])", text))
    if not boxes:
        return None
    start = re.compile(r"\s*\{").match(text, boxes[-1].end())
    if start is None:
        return None
    depth = 1
    for token in re.compile(r"\\.|[{}]", re.DOTALL).finditer(text, start.end()):
        if token[0] == "{":
            depth += 1
        elif token[0] == "}":
            depth -= 1
            if depth == 0:
                return text[start.end() : token.start()].strip()
    return None


_NUMBER_IN_TEXT = re.compile(
    r"(?<![\w.])[-−]?\s?[$€£]?\s?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)?(?:\.\d+|(?<=\d))"
    r"(?:/\d+)?(?:\s?\\?%)?"
)
_ANSWER_IS = re.compile(r"answer\s*(?:is|:|=)[\s:*]*", re.IGNORECASE)
_MATH_SPAN = re.compile(r"\$([^$]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)


def unboxed_answer(text: str) -> str | None:
    r"""The final answer of a text without a box; the first of these that gives something:

    1. the rest of the line after the last `####`;
    2. the clause after the last `answer is`, `answer:` or `answer =`: its first `$...$`,
       `\(...\)` or `\[...\]`; else its first number; else its words. A clause ends at the end of
       its line or at a full stop followed by white space;
    3. the last number of the text (with its sign, thousands commas, decimals, `/n` and `%`).
    """
    _, marks, rest = text.rpartition("####")
    if marks and (line := rest.strip().split("\n")[0].strip()):
        return line
    anchors = list(_ANSWER_IS.finditer(text))
    if anchors:
        rest = text[anchors[-1].end() :]
        span = _MATH_SPAN.match(rest)
        if span:
            return next(group for group in span.groups() if group is not None).strip()
        clause = re.split(r"\n|\.(?=\s|$)", rest, maxsplit=1)[0].strip()
        span = _MATH_SPAN.search(clause)
        if span:
            return next(group for group in span.groups() if group is not None).strip()
        number = _NUMBER_IN_TEXT.search(clause)
        if number:
            return number[0].strip()
        if clause:
            return clause
    numbers = _NUMBER_IN_TEXT.findall(text)
    return numbers[-1].strip() if numbers else None


def extract_answer(prediction: str, *, require_boxed: bool = True) -> str | None:
    """The answer given in the text of a completion, or None.

    With `require_boxed=False`, a text without any box is read by `unboxed_answer`; a text whose
    last box is not terminated still gives None.
    """
    boxed = last_boxed(prediction)
    if boxed is not None or require_boxed or re.search(r"\\(?:boxed|fbox)(?![A-Za-z])", prediction):
        return boxed or None
    return unboxed_answer(prediction)


def gold_answer(gold: object) -> str:
    r"""The answer within a gold: what follows `####`, or the content of `\boxed{}`, or all of it.

    Golds that are not strings (7, 0.5) are read as they print.
    """
    text = str(gold)
    if "####" in text:
        text = text.rpartition("####")[2]
    elif re.search(r"\\(?:boxed|fbox)\s*\{", text):
        text = last_boxed(text) or ""
    text = text.strip()
    for mark in ("$$", "$"):
        inner = text[len(mark) : -len(mark)]
        if len(text) > 2 * len(mark) and text == mark + inner + mark and "$" not in inner:
            return inner.strip()
    return text


# --- Reading the answer: the one place where answers are rewritten --------------------------


class Rule(NamedTuple):
    """One rewriting of an answer. `reason` says which reading of the answer it stands for, or
    where math-verify (0.9.0) or its LaTeX parser falls short."""

    pattern: re.Pattern[str]
    replacement: str
    reason: str


def _rule(pattern: str, replacement: str, reason: str) -> Rule:
    return Rule(re.compile(pattern), replacement, reason)


# Applied in order, to golds and predictions alike.
RULES: tuple[Rule, ...] = (
    _rule(r"\s+", " ", "math-verify reads inline math within one line only"),
    _rule(
        r"\\(?:mathrm|mathbf|mathit|mathsf|textbf|textit|textrm|textsf|textnormal|mbox|hbox"
        r"|boldsymbol|bm|operatorname\*?)\s*\{",
        r"\\text{",
        "the font is not part of the value; one spelling for words and units",
    ),
    _rule(r"\\text\{ ?(-?[\d.,]+) ?\}", r"\1", "a number in bold or as text is the number"),
    _rule(r"\\(?:displaystyle|textstyle|limits|quad|qquad)(?![A-Za-z])", " ", "layout only"),
    _rule(r"\\phantom\s*(?:\{[^{}]*\}|-|\d)?", "", "invisible, used to align columns"),
    _rule(r"\\[dtc]frac(?![A-Za-z])", r"\\frac", "the size of a fraction is not its value"),
    _rule(r"\\(?:left|right|[bB]igg?[lrm]?)(?![A-Za-z])\s*\.?", "", "the size of brackets"),
    _rule(r"\\lbrace(?![A-Za-z])", r"\\{", "another spelling of the brace"),
    _rule(r"\\rbrace(?![A-Za-z])", r"\\}", "another spelling of the brace"),
    _rule(r"\\langle(?![A-Za-z])", "(", "a vector in angle brackets is an ordered tuple"),
    _rule(r"\\rangle(?![A-Za-z])", ")", "a vector in angle brackets is an ordered tuple"),
    _rule(r"(?<=\d) ?(?:,\\! ?|\{,\}|\\,|\\!)(?=\d)", "", "thousands separators in LaTeX"),
    _rule(
        r"(?<!\\)\\[,;:!> ]|~|(?<!\\)\\$",
        " ",
        "spacing; `6\\,\\pi` is a product. Not in `\\\\ 3`, which starts a row of a matrix",
    ),
    _rule("[−–]", "-", "minus sign and dash typed as characters"),
    _rule("×", r"\\times ", "typed as a character"),
    _rule("[·⋅]", r"\\cdot ", "typed as a character"),
    _rule("÷", "/", "typed as a character"),
    _rule("π", r"\\pi ", "typed as a character"),
    _rule("θ", r"\\theta ", "typed as a character"),
    _rule("∞", r"\\infty ", "typed as a character"),
    _rule("±", r"\\pm ", "typed as a character"),
    _rule("∪", r"\\cup ", "typed as a character"),
    _rule("≤", r"\\le ", "typed as a character"),
    _rule("≥", r"\\ge ", "typed as a character"),
    _rule(r"√ ?(\d+)", r"\\sqrt{\1}", "typed as a character"),
    _rule(r"√ ?\(([^()]*)\)", r"\\sqrt{\1}", "typed as a character"),
    _rule("²", "^2", "typed as a character"),
    _rule("³", "^3", "typed as a character"),
    _rule(r"\\(leq|geq)slant(?![A-Za-z])", r"\\\1", "another shape of the same sign"),
    _rule(r"\\\$|[$€£]|\\(?:pounds|euro)(?![A-Za-z])", "", "currency signs are ignored"),
    _rule(r"^\\approx(?![A-Za-z])", "", "a gold of MATH is given as `\\approx 8.24`"),
    _rule(
        r"(?:, ?)?\\text\{ ?(?:, ?)?(?:and|or) ?\}",
        ", ",
        "answers joined by words are a list",
    ),
    _rule(r"(?<=[\w})]),? (?:and|or) (?=[\w\\({-])", ", ", "answers joined by words are a list"),
    _rule(r"\\text\{ ?(?:percent|pct|percentage) ?\}|\b(?:percent|pct)\b", r"\\%", "as the sign"),
    _rule(r"^[A-Za-z](?:_\w)? ?\\in(?![A-Za-z])", "", "`x \\in S` names the set S"),
    _rule(r"\\frac ?(\d) ?(\d)(?!\d)", r"\\frac{\1}{\2}", "arguments without braces"),
    _rule(
        r"\\frac ?(\\(?:pi|theta|alpha|beta)) ?(\d)",
        r"\\frac{\1}{\2}",
        "arguments without braces; the parser reads this as unfinished",
    ),
    _rule(r"\\frac ?(\d) ?\{", r"\\frac{\1}{", "arguments without braces"),
    _rule(r"\\frac ?(\{[^{}]*\}) ?(\d)", r"\\frac\1{\2}", "arguments without braces"),
    _rule(r"\\sqrt ?(\d)", r"\\sqrt{\1}", "arguments without braces"),
    _rule(r"(\d)\.(?=[/*+)} -]|$)", r"\1", "`-1./3` of Minerva; a full stop after a number"),
    _rule(
        r"(?<![\d.])(\d*\.?\d+)[eE]([+-]?\d+)(?![\w.])",
        r"\1 \\times 10^{\2}",
        "e-notation, which the parser reads as Euler's number",
    ),
    _rule(r"\\times 10\^\{\+", r"\\times 10^{", "e-notation with a plus sign"),
    _rule(r"(?<![\w}^.])(\d+) (\d+)/(\d+)(?!\d)", r"\1\\frac{\2}{\3}", "mixed number with a slash"),
    _rule(r"_ ?\{ ?\\text ?\{ ?([A-Za-z]+) ?\} ?\}", r"_{\1}", "a subscript is only a name"),
    _rule(
        r"_ ?\{ ?\\([A-Za-z]+) ?\}",
        r"_{\1}",
        "a command as a subscript (`m_{\\max}`) is only a name, and the parser knows few",
    ),
    _rule(r"(?<=[A-Za-z])'", r"^{\\prime}", "math-verify deletes the prime of `y'`"),
    _rule(r"\\varnothing(?![A-Za-z])", r"\\emptyset", "another shape of the same sign"),
    _rule(r"\bE(?= ?_)", r"\\Upsilon", "E with a subscript is a name, not Euler's number"),
    _rule(r"\\hbar(?![A-Za-z])", r"\\eta", "a constant the parser does not know; only a name"),
    _rule(r" +", " ", "left over by the rules above"),
)

_TRIGONOMETRY = re.compile(r"\\(?:arc)?(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])")
_DEGREE_SIGN = re.compile(r" ?\^ ?(?:\{ ?\\circ ?\}|\\circ(?![A-Za-z]))|\\degree(?![A-Za-z])|°")
_DEGREE_IN_FUNCTION = re.compile(
    r"(\d+(?:\.\d+)?) ?(?:\^ ?(?:\{ ?\\circ ?\}|\\circ(?![A-Za-z]))|\\degree(?![A-Za-z])|°)"
)

# Units that differ on both sides make the answer wrong; a unit missing on one side, or one that
# is not in this table (`right triangles`), is ignored. Each line: the unit and its other names.
_UNIT_LINES = (
    "mm millimeter millimetre",
    "cm centimeter centimetre",
    "m meter metre",
    "km kilometer kilometre",
    "inch in",
    "foot feet ft",
    "yard yd",
    "mile mi",
    "mg milligram",
    "g gram",
    "kg kilogram",
    "pound lb",
    "ounce oz",
    "second sec s",
    "minute min",
    "hour hr h",
    "day",
    "week",
    "month",
    "year yr",
    "cent",
    "dollar USD",
    "euro",
    "degree deg",
    "radian rad",
    "mph",
    "liter litre L",
    "gallon",
    "unit",
    "a.m. am",
    "p.m. pm",
)
_UNITS = {
    spelling: names.split()[0]
    for names in _UNIT_LINES
    for name in names.split()
    for spelling in (name, name + "s", "inches" if name == "inch" else name)
}
# Without `\text`, only names that cannot be a product of variables.
_PLAIN_UNITS = "|".join(
    sorted((re.escape(name) for name in _UNITS if len(name) > 1 and name != "in"), reverse=True)
)
_TEXT_UNIT = re.compile(
    r"^(?P<value>.*[\d})\w]) ?\\text ?\{(?P<unit>[^{}\d]*)\}"
    r"(?: ?\^ ?\{? ?(?P<power>\d) ?\}?)?(?: ?\\text ?\{(?P<more>[^{}\d]*)\})*$"
)
_PLAIN_UNIT = re.compile(
    rf"^(?P<value>.*[\d}})]) ?(?P<unit>(?:(?:square|sq\.?|cubic|cu\.?) )?(?:{_PLAIN_UNITS}))"
    r"(?: ?\^ ?\{? ?(?P<power>\d) ?\}?)?\.?$"
)
_POWER_WORDS = {"square": "2", "sq": "2", "cubic": "3", "cu": "3"}
_TEXT_COMMAND = re.compile(r"\\text ?\{([^{}]*)\}")


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer after normalisation.

    `value` is the LaTeX without unit and percent sign; `unit` the known unit (`cm^2`) or "";
    `percent` whether a percent sign was taken off; `words` the answer as words when it is text
    (`\\text{Evelyn}`, `\\text{(B)}`), "" otherwise.
    """

    value: str
    unit: str = ""
    percent: bool = False
    words: str = ""


def _split_unit(text: str) -> tuple[str, str]:
    match = _TEXT_UNIT.match(text) or _PLAIN_UNIT.match(text)
    if match is None:
        return text, ""
    names = match["unit"].split()
    power = match["power"] or "1"
    if names and names[0].rstrip(".") in _POWER_WORDS:
        power = _POWER_WORDS[names[0].rstrip(".")]
        names = names[1:]
    unit = _UNITS.get(" ".join(names), "")
    return match["value"].strip(), unit and f"{unit}^{power}"


def normalise(answer: str, *, thousands: bool = True) -> Answer:
    """Bring an answer into the form in which answers are compared; see `RULES`.

    With `thousands`, `1,234` is one number, else two. Never raises. The value is "" when nothing
    is left.
    """
    text = answer.strip()
    for rule in RULES:
        text = rule.pattern.sub(rule.replacement, text)
    text = text.strip().rstrip(".,; ")
    if _TRIGONOMETRY.search(text):
        # Within a function the degree sign is a factor: sin 30° is not the sine of 30 radians.
        text = _DEGREE_IN_FUNCTION.sub(r"(\\frac{\1\\pi}{180})", text)
    text = _DEGREE_SIGN.sub("", text).strip()

    value, unit = _split_unit(text)
    percent = False
    stripped = re.sub(r" ?\\?%$", "", value)
    if stripped != value and stripped.strip():
        value, percent = stripped.strip(), True
    words = ""
    unwrapped = _TEXT_COMMAND.sub(r"\1", value)
    if unwrapped != value and re.fullmatch(r"[^\d\\^_=+*/{}]*[A-Za-z][^\d\\^_=+*/{}]*", unwrapped):
        words = _as_words(unwrapped)
    # Of a whole answer only, so that `1,2` and `(1,234)` stay pairs.
    if thousands and re.match(r"-? ?\d{1,3}(?:,\d{3})+(?![\d,])[^,]*$", value):
        value = value.replace(",", "")
    elif re.fullmatch(r"-? ?\d{1,3}(?: \d{3})+(?:\.\d+)?", value):
        value = value.replace(" ", "")
    return Answer(value, unit, percent, words)


def _as_words(text: str) -> str:
    """Words compared without case, outer parentheses, full stops and spacing."""
    text = re.sub(r"\s+", " ", text).strip(" .,;").casefold()
    letter = re.fullmatch(r"\(?([a-z])[).]?", text)
    if letter:
        return letter[1]
    if re.fullmatch(r"[a-z](?: ?, ?[a-z])+", text):
        return ",".join(sorted(re.split(r" ?, ?", text)))  # several choices have no order
    return text


# --- Verdicts that need no algebra ----------------------------------------------------------

_DECIMAL = re.compile(
    r"([+-]?) ?(\d*)(?:\.(\d*))?(?: ?(?:\\times|\\cdot|\*) ?10 ?\^ ?(?:\{ ?([+-]?\d+) ?\}|(\d)))?"
)
_RATIO = re.compile(
    r"([+-]?) ?(?:(\d+) ?(?=\\))?(?:\\frac ?\{ ?(-?\d+) ?\} ?\{ ?(\d+) ?\}"
    r"|(\d+) ?/ ?(\d+))"
)
_MAX_RATIO_DIGITS = 100

# (sign, digits without outer zeros, power of ten of the last digit)
Decimal = tuple[int, str, int]


def read_decimal(text: str) -> Decimal | None:
    """A plain, decimal or scientific number in canonical form, without computing its value: two
    numbers are equal exactly when their forms are. None for anything else."""
    match = _DECIMAL.fullmatch(text)
    if match is None or not (match[2] or match[3]):
        return None
    power_text = match[4] or match[5] or "0"
    if len(power_text) > 18:
        return None
    fraction = match[3] or ""
    digits = (match[2] + fraction).lstrip("0")
    power = int(power_text) - len(fraction)
    trimmed = digits.rstrip("0")
    if not trimmed:
        return (0, "", 0)
    return (-1 if match[1] == "-" else 1, trimmed, power + len(digits) - len(trimmed))


def read_rational(text: str) -> Fraction | None:
    """The exact value of a small number, fraction or mixed number, or None."""
    match = _RATIO.fullmatch(text)
    if match and len(text) <= _MAX_RATIO_DIGITS:
        top, bottom = int(match[3] or match[5]), int(match[4] or match[6])
        if bottom == 0 or (match[2] and match[5]):
            return None
        value = Fraction(top, bottom) + int(match[2] or 0)
        return -value if match[1] == "-" else value
    decimal = read_decimal(text)
    if decimal is None or len(decimal[1]) + abs(decimal[2]) > _MAX_RATIO_DIGITS:
        return None
    return decimal[0] * int(decimal[1] or 0) * Fraction(10) ** decimal[2]


_FACTOR = re.compile(r"(-?) ?(\d+)? ?(?:\\sqrt ?\{ ?(\d+) ?\})? ?(\\pi)?")
_QUOTIENT = re.compile(
    r"([+-]?) ?\\frac ?\{((?:[^{}]|\{[^{}]*\})*)\} ?\{((?:[^{}]|\{[^{}]*\})*)\} ?(.*)"
)

# (sign, square of the number without its powers of pi, power of pi)
Monomial = tuple[int, Fraction, int]


def read_monomial(text: str) -> Monomial | None:
    r"""A product or quotient of a rational, square roots and pi (`\frac{3\sqrt{2}}{4}\pi`) in a
    form that is equal exactly for equal numbers, or None. Most irrational answers are such."""
    rational = read_rational(text)
    if rational is not None:
        return ((rational > 0) - (rational < 0), rational**2, 0)
    if len(text) > _MAX_RATIO_DIGITS:
        return None
    quotient = _QUOTIENT.fullmatch(text)
    if quotient:
        sign = -1 if quotient[1] == "-" else 1
        parts = [(quotient[2], 1), (quotient[3], -1)] + [(quotient[4], 1)] * bool(quotient[4])
    elif "\\" in text:
        top, slash, bottom = text.partition("/")
        sign, parts = 1, [(top, 1)] + [(bottom, -1)] * bool(slash)
    else:
        return None
    square, pi_power = Fraction(1), 0
    for part, power in parts:
        factor = _FACTOR.fullmatch(part.strip())
        if factor is None or not (factor[2] or factor[3] or factor[4]):
            return None
        size = int(factor[2] or 1) ** 2 * int(factor[3] or 1)
        if size == 0:
            return None
        square *= Fraction(size) ** power
        pi_power += power if factor[4] else 0
        sign *= -1 if factor[1] else 1
    return (sign, square, pi_power)


# A letter that can only be a variable: e, i, E and what notation uses (dx, nCr, nPr) may not be.
_VARIABLE = re.compile(r"[a-zA-BDF-OQ-Z]")
_NOT_VARIABLES = re.compile(r"\\[A-Za-z]+|[eid]")
_BINDS_OR_NAMES = re.compile(r"[=<>_|]|\\(?:sum|prod|int|lim|max|min|text|in|le|ge)(?![a-z])")


def _has_variable(text: str) -> bool:
    """Whether a variable stands free in an expression, which therefore is no constant."""
    return not _BINDS_OR_NAMES.search(text) and bool(
        _VARIABLE.search(_NOT_VARIABLES.sub(" ", text))
    )


def without_spaces(text: str) -> str:
    """`text` without spaces, except those between digits: `4 2` is not 42."""
    return re.sub(r"(?<!\d) | (?!\d)", "", text)


def compare_numbers(gold: str, answer: str) -> bool | None:
    """Whether two normalised numbers are equal, exactly; None when that takes algebra."""
    decimals = read_decimal(gold), read_decimal(answer)
    if decimals[0] is not None and decimals[1] is not None:
        return decimals[0] == decimals[1]
    numbers = read_monomial(gold), read_monomial(answer)
    if numbers[0] is not None and numbers[1] is not None:
        return numbers[0] == numbers[1]
    if (numbers[0] is not None and _has_variable(answer)) or (
        numbers[1] is not None and _has_variable(gold)
    ):
        return False
    return None


def quick_verdict(gold: Answer, answer: Answer) -> bool | None:
    """Whether the answer is right, where that shows without algebra; None otherwise."""
    if gold.unit and answer.unit and gold.unit != answer.unit:
        return False
    if gold.words or answer.words:
        return (gold.words or _as_words(gold.value)) == (answer.words or _as_words(answer.value))
    if gold.percent == answer.percent:
        if without_spaces(gold.value) == without_spaces(answer.value):
            return True
        return compare_numbers(gold.value, answer.value)
    # A percent sign on one side only is ignored, as a unit is; and 25% is also 0.25.
    values = [read_rational(gold.value), read_rational(answer.value)]
    if values[0] is None or values[1] is None:
        return None
    as_fraction = (values[0] / 100, values[1]) if gold.percent else (values[0], values[1] / 100)
    return values[0] == values[1] or as_fraction[0] == as_fraction[1]


# --- The verifier ---------------------------------------------------------------------------


class MathVerifier:
    r"""Compares the final answers of completions with gold answers, in killable processes.

    `workers` processes do the algebra (math-verify); each answer may take `timeout_s` seconds of
    wall-clock time and `memory_mb` MiB of address space, imports and waiting not counted. The
    processes start with the first answer that needs algebra and end with `close`, with the
    context, or with this process. May be used from any thread and inside Ray actors; `grade`
    blocks, so call it through `asyncio.to_thread` from a coroutine.

    With `require_boxed=False` a completion without `\boxed{}` is read as `unboxed_answer` says.

    `counts` counts since the start: each verdict; and beside them `cached`, and the causes
    `no_answer`, `too_long`, `bad_gold`, `grading_error` (an exception within the comparison),
    `worker_died` (all four: verdict "unparsable") and `memory_limit` (verdict "timeout").
    """

    def __init__(
        self,
        workers: int = 2,
        timeout_s: float = 5.0,
        *,
        memory_mb: int = 2048,
        require_boxed: bool = True,
        cache_size: int = 65_536,
    ) -> None:
        """Raises `ValueError` for numbers out of range. Starts no process yet."""
        if memory_mb < 256:
            raise ValueError(f"memory_mb must be at least 256 for the imports, not {memory_mb}")
        if cache_size < 0:
            raise ValueError(f"cache_size must not be negative, but is {cache_size}")
        package_root = str(Path(__file__).resolve().parents[2])
        inherited = os.environ.get("PYTHONPATH")
        search_path = os.pathsep.join([package_root, inherited] if inherited else [package_root])
        self._pool = ProcessPool(
            [
                sys.executable,
                "-P",  # no module of the working directory in place of one of ours
                "-m",
                "rlnorm.rewards.math_worker",
                str(os.getpid()),
                str(timeout_s),
                str(memory_mb),
            ],
            workers=workers,
            timeout_s=timeout_s,
            # The worker must find this very package, however the parent found it.
            env={**os.environ, "PYTHONPATH": search_path},
        )
        self._require_boxed = require_boxed
        self._cache_size = cache_size
        self._cache: OrderedDict[tuple[str, str], Verdict] = OrderedDict()
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()

    def grade(self, pairs: Sequence[tuple[object, str]]) -> list[Verdict]:
        r"""The verdict on each `(gold, prediction)`, in order.

        "correct"; "wrong"; "unparsable": no answer found, or one that cannot be read, or whose
        grading failed; "timeout": grading it took more than the limits. Counted in `counts`.

        No text makes it raise. Raises `WorkerStartError` when the workers cannot be started and
        `RuntimeError` when the verifier is closed.
        """
        verdicts: list[Verdict | None] = [None] * len(pairs)
        causes: Counter[str] = Counter()
        open_pairs: dict[tuple[str, str], list[int]] = {}
        for index, (gold, prediction) in enumerate(pairs):
            answer = extract_answer(prediction, require_boxed=self._require_boxed)
            if answer is None:
                verdicts[index] = "unparsable"
                causes["no_answer"] += 1
            else:
                open_pairs.setdefault((gold_answer(gold), answer), []).append(index)
        for key, verdict in self._decide(list(open_pairs), causes).items():
            for index in open_pairs[key]:
                verdicts[index] = verdict
        assert None not in verdicts
        final: list[Verdict] = verdicts  # type: ignore[assignment]
        with self._lock:
            self.counts.update(causes)
            self.counts.update(final)
        return final

    def check_golds(self, golds: Sequence[object]) -> list[bool]:
        """Whether each gold can be read, as words or as mathematics.

        One that cannot would score every answer 0 for ever: refuse it when the data is loaded.
        Raises as `grade` does.
        """
        readable = [False] * len(golds)
        to_parse: dict[str, list[int]] = {}
        for index, gold in enumerate(golds):
            text = gold_answer(gold)
            answer = normalise(text) if len(text) <= MAX_ANSWER_CHARS else Answer("")
            numbers = (read_decimal(answer.value), read_monomial(answer.value))
            if answer.words or numbers != (None, None):
                readable[index] = True
            elif answer.value:
                to_parse.setdefault(answer.value, []).append(index)
        replies = self._pool.run([{"parse": value} for value in to_parse])
        for value, reply in zip(to_parse, replies, strict=True):
            for index in to_parse[value]:
                readable[index] = isinstance(reply, dict) and reply.get("verdict") == "parsed"
        return readable

    def close(self) -> None:
        """End the worker processes. May be called twice."""
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _decide(
        self, keys: Sequence[tuple[str, str]], causes: Counter[str]
    ) -> dict[tuple[str, str], Verdict]:
        decided: dict[tuple[str, str], Verdict] = {}
        with self._lock:
            for key in keys:
                if key in self._cache:
                    self._cache.move_to_end(key)
                    decided[key] = self._cache[key]
                    causes["cached"] += 1
        requests: dict[tuple[str, str], dict[str, object]] = {}
        for key in keys:
            if key in decided:
                continue
            gold, answer = key
            if not gold or len(gold) > MAX_ANSWER_CHARS:
                causes["bad_gold"] += 1
                decided[key] = "unparsable"
                continue
            if len(answer) > MAX_ANSWER_CHARS:
                decided[key] = self._decide_long(gold, answer, causes)
                continue
            gold_read = normalise(gold)
            # Against a list, `100,200` is read as a list.
            answer_read = normalise(answer, thousands="," not in gold_read.value)
            if not answer_read.value:
                causes["no_answer"] += 1
                decided[key] = "unparsable"
                continue
            equal = quick_verdict(gold_read, answer_read)
            if equal is None:
                requests[key] = {
                    "gold": gold_read.value,
                    "answer": answer_read.value,
                    "gold_percent": gold_read.percent,
                    "answer_percent": answer_read.percent,
                }
            else:
                decided[key] = "correct" if equal else "wrong"
        lasting = dict(decided)
        for key, reply in zip(requests, self._pool.run(list(requests.values())), strict=True):
            if isinstance(reply, dict):
                decided[key] = reply["verdict"]
                if reply.get("cause"):
                    causes[reply["cause"]] += 1
                if decided[key] != "timeout":
                    lasting[key] = decided[key]
            elif reply is Failure.TIMEOUT:
                # Neither this nor a death is remembered: the machine may have been busy.
                decided[key] = "timeout"
            else:
                causes["worker_died"] += 1
                decided[key] = "unparsable"
        with self._lock:
            self._cache.update(lasting)
            while len(self._cache) > self._cache_size:
                self._cache.popitem(last=False)
        return decided

    @staticmethod
    def _decide_long(gold: str, answer: str, causes: Counter[str]) -> Verdict:
        number = read_decimal(answer.strip())
        if number is not None:
            return "correct" if number == read_decimal(normalise(gold).value) else "wrong"
        causes["too_long"] += 1
        return "unparsable"
