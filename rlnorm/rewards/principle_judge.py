"""A judge of steps that asks a language model, step by step, over an OpenAI-compatible endpoint.

What the model is told stands in a text file, prompts/principle_judge.txt or the user's own.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import os
import re
from collections import Counter
from collections.abc import Coroutine
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from rlnorm.rewards.interface import Scores
from rlnorm.rewards.process import JudgedStep, StepJudge

if TYPE_CHECKING:
    from openai import AsyncOpenAI

T = TypeVar("T")

PROMPT = Path(__file__).with_name("prompts") / "principle_judge.txt"
PRINCIPLES = (
    "What the step states as fact is taken rightly from the passages; nothing is made up, turned "
    "around or left out that matters.",
    "If the step looks something up, its query is right: clear, specific, and aimed at what is "
    "still missing for the question.",
    "The choice to look something up or not is right, given what the passages already say.",
)
OPENED, CLOSED = "<final_score>", "</final_score>"
# Nine digits are more than any score has; Python refuses to read thousands of them.
PAIR = re.compile(r"\s*([0-9]{1,9})\s*,\s*([0-9]{1,9})\s*")
NEEDED = ("{question}", "{earlier}", "{step}", "{principles}")
PLACEHOLDER = re.compile(r"\{(question|earlier|step|principles|mark)\}")
# Servers without authentication want some key; without one the client would send them the
# user's OPENAI_API_KEY.
NO_KEY = "none"
# What may be gone a moment later. After a timeout the step has had its time.
PASSING = frozenset({"connection", "http_408", "http_409", "http_429"})
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 8.0


@dataclass
class PrincipleJudge(StepJudge):
    """A language model grades each step by principles; after PPR (arXiv 2509.25598).

    The model ends its answer with <final_score>SCORE,MAX</final_score>, whole numbers with
    0 <= SCORE <= MAX > 0, and the step's value is SCORE / MAX. The last one counts; an answer
    without a valid one, or cut off at `max_tokens` (its last score may be a quotation), is asked
    for again, and so is what a busy or restarting server refuses.

    Counts, by the last try: scored, unparsable, truncated, timeout, connection, http_NNN (the
    server's status).

    Attributes:
        url: the endpoint, such as http://127.0.0.1:8000/v1.
        model: its name on the server.
        api_key_env: environment variable that holds the key; None for a server that wants none.
        prompt: a text file instead of the one that comes with rlnorm. It must hold {question},
            {earlier}, {step} and {principles}; {mark} is a code that a step cannot foresee, to
            set off what the policy wrote from what the judge is told.
        principles: what is graded, one sentence each.
        temperature: of the model. At 0 most servers answer alike each time, so that `tries`
            then help against a passing failure more than against an answer without a score.
        max_tokens: of its answer.
        concurrency: requests under way at a time.
        timeout_s: seconds that one request may take, from its start to the end of its answer.
        total_timeout_s: seconds that one call of `score` may take; what is missing then is None.
        tries: how often a step is asked about.
    """

    url: str = ""
    model: str = ""
    api_key_env: str | None = None
    prompt: str | None = None
    principles: list[str] = field(default_factory=lambda: list(PRINCIPLES))
    temperature: float = 0.0
    max_tokens: int = 2048
    concurrency: int = 32
    timeout_s: float = 60.0
    total_timeout_s: float = 600.0
    tries: int = 3

    def __post_init__(self) -> None:
        self._check_url()
        if not self.model:
            raise ValueError("model is not set; it is the judge's name on the server")
        for name in ("max_tokens", "concurrency", "tries"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, it must be at least 1")
        for name in ("timeout_s", "total_timeout_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(
                    f"{name} is {getattr(self, name)}, it must be a number of seconds above 0"
                )
        if not 0 <= self.temperature < math.inf:
            raise ValueError(f"temperature is {self.temperature}, it must be at least 0")
        if (
            not isinstance(self.principles, list)
            or not self.principles
            or not all(isinstance(p, str) and p.strip() for p in self.principles)
        ):
            raise ValueError(
                f"principles is {self.principles!r}, it must be a list of at least one sentence"
            )
        self._read_key()
        self._template = self._read_template()

    def score(self, steps: list[JudgedStep]) -> Scores:
        """Ask about each step; see StepJudge. Returns within `total_timeout_s`.

        Must not be called in a thread whose event loop runs (RuntimeError): it has its own loop.
        """
        if not steps:
            return Scores([])
        if _loop_runs_here():
            raise RuntimeError("score() blocks: call it in a thread, by asyncio.to_thread")
        verdicts = _run(self._score_all(steps))
        values = [value for value, _ in verdicts]
        return Scores(values, dict(Counter(event for _, event in verdicts)))

    async def _score_all(self, steps: list[JudgedStep]) -> list[tuple[float | None, str]]:
        from openai import AsyncOpenAI

        free = asyncio.Semaphore(self.concurrency)
        # Tries and time limits are ours alone: the client's are per read, so that a server
        # which sends a byte now and then would never run into them.
        async with AsyncOpenAI(
            base_url=self.url, api_key=self._read_key(), max_retries=0, timeout=None
        ) as client:
            tasks = [asyncio.create_task(self._judge(client, free, step)) for step in steps]
            _, late = await asyncio.wait(tasks, timeout=self.total_timeout_s)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)
        return [(None, "timeout") if task in late else task.result() for task in tasks]

    async def _judge(
        self, client: AsyncOpenAI, free: asyncio.Semaphore, step: JudgedStep
    ) -> tuple[float | None, str]:
        """Value and event of one step."""
        async with free:
            prompt = self._fill(step)
            pause = FIRST_PAUSE_S
            for _ in range(self.tries - 1):
                value, event = await self._ask(client, prompt)
                if event in PASSING or event.startswith("http_5"):
                    # keeping its place, so that a server in trouble gets fewer requests
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, LONGEST_PAUSE_S)
                elif event not in ("unparsable", "truncated"):
                    return value, event
            return await self._ask(client, prompt)

    async def _ask(self, client: AsyncOpenAI, prompt: str) -> tuple[float | None, str]:
        """Value and event of one request. No error's text is kept: servers quote keys in them."""
        import openai

        try:
            async with asyncio.timeout(self.timeout_s):
                reply = await client.chat.completions.create(
                    model=self.model,
                    messages=[{"role": "user", "content": prompt}],
                    temperature=self.temperature,
                    max_tokens=self.max_tokens,
                )
        except (TimeoutError, openai.APITimeoutError):
            return None, "timeout"
        except openai.APIStatusError as error:
            return None, f"http_{error.status_code}"
        except openai.APIConnectionError:
            return None, "connection"
        except (openai.OpenAIError, ValueError):
            return None, "unparsable"  # no JSON
        try:  # the client passes on whatever JSON or text the server sent
            choice = reply.choices[0]
            answer, reason = choice.message.content, choice.finish_reason
        except (AttributeError, LookupError, TypeError):
            return None, "unparsable"
        if reason == "length":
            return None, "truncated"
        value = parse_score(answer) if isinstance(answer, str) else None
        return value, "unparsable" if value is None else "scored"

    def _fill(self, step: JudgedStep) -> str:
        """The prompt for this step. Not str.format: the texts may hold braces; and in one pass,
        for they may hold placeholders."""
        mark = hashlib.blake2b(repr(step).encode(), digest_size=6).hexdigest()
        earlier = "\n\n".join(
            f"[earlier step {number} {mark}]\n{text}"
            for number, text in enumerate(step.earlier, start=1)
        )
        values = {
            "question": step.question,
            "earlier": earlier or "(none)",
            "step": step.step,
            "principles": "\n".join(f"{i}. {p}" for i, p in enumerate(self.principles, start=1)),
            "mark": mark,
        }
        text = PLACEHOLDER.sub(lambda found: values[found[1]], self._template)
        # half a surrogate pair cannot be sent
        return text.encode("utf-8", "replace").decode("utf-8")

    def _check_url(self) -> None:
        try:
            parts = urlsplit(self.url)
            known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:
            known = False
        # The value may hold a secret wherever a URL can hold one, and is not repeated then.
        if "@" in self.url or "?" in self.url:
            raise ValueError(
                "url holds '@' or '?'; a key does not belong there but into the environment "
                "variable that api_key_env names"
            )
        if not known:
            raise ValueError(f"url is {self.url!r}, it must be like http://127.0.0.1:8000/v1")

    def _read_key(self) -> str:
        if self.api_key_env is None:
            return NO_KEY
        # Whoever takes it for the key's own place must not find the key in an error.
        usual = re.fullmatch(r"[A-Z_][A-Z0-9_]{0,63}", self.api_key_env)
        shown = repr(self.api_key_env) if usual else "a text (not shown here, in case it is a key)"
        key = os.environ.get(self.api_key_env, "")
        if not key:
            raise ValueError(
                f"api_key_env is {shown}, it must name an environment variable that is set and "
                "holds the key, or be left away for a server that wants none"
            )
        if not re.fullmatch(r"[!-~]+", key):
            # the client would fail on it with an error that shows it
            raise ValueError(
                f"api_key_env is {shown}, an environment variable whose value holds white space "
                "or letters outside ASCII, as no key does"
            )
        return key

    def _read_template(self) -> str:
        path = PROMPT if self.prompt is None else Path(self.prompt)
        try:
            template = path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise ValueError(f"prompt is '{path}', which cannot be read: {reason}") from None
        missing = [name for name in NEEDED if name not in template]
        if missing:
            raise ValueError(
                f"prompt is '{path}', which lacks {' and '.join(missing)}; it must hold "
                f"{', '.join(NEEDED)}"
            )
        return template


def parse_score(answer: str) -> float | None:
    """SCORE / MAX of the last <final_score> in the answer; None unless it is SCORE,MAX, closed,
    in whole numbers with 0 <= SCORE <= MAX and MAX > 0."""
    _, opened, rest = answer.rpartition(OPENED)
    inside, closed, _ = rest.partition(CLOSED)
    pair = PAIR.fullmatch(inside)
    if not opened or not closed or not pair:
        return None
    score, most = int(pair[1]), int(pair[2])
    return score / most if 0 < most >= score else None


def _loop_runs_here() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _run(work: Coroutine[object, object, T]) -> T:
    """Run it in a loop of this thread's own. Not asyncio.run, which in the end waits for the
    threads that look up host names, however long they take."""
    with closing(asyncio.new_event_loop()) as loop:
        try:
            return loop.run_until_complete(work)
        finally:
            left = asyncio.all_tasks(loop)  # after Ctrl-C; else none
            for task in left:
                task.cancel()
            if left:
                loop.run_until_complete(asyncio.wait(left))
            loop.run_until_complete(loop.shutdown_asyncgens())
