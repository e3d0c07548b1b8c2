"""What a person sees in the terminal while a run goes on."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

console = Console(stderr=False, highlight=False, soft_wrap=True)


def say(text: str) -> None:
    """One plain sentence."""
    console.print(escape(text))


def warn(text: str) -> None:
    """One sentence that should not be overlooked."""
    console.print(f"[yellow]warning:[/] {escape(text)}")


class StepProgress:
    """A line that is rewritten in a terminal, and a line per step where output is a file."""

    def __init__(self, first: int, total: int) -> None:
        self.total = total
        self._begun = time.monotonic()
        self._first = first
        self._live = console.is_terminal
        self._progress = Progress(
            TextColumn("step {task.completed}/{task.total}"),
            BarColumn(bar_width=20),
            TaskProgressColumn(),
            TextColumn("{task.fields[line]}"),
            console=console,
            disable=not self._live,
        )
        self._task = self._progress.add_task("", total=total, completed=first, line="")
        self._progress.start()

    def step(self, step: int, metrics: dict[str, float], accuracy: float | None) -> None:
        """Show a finished step."""
        left = (time.monotonic() - self._begun) / (step - self._first) * (self.total - step)
        parts = [f"reward {metrics['reward/mean']:.3f}"]
        if accuracy is not None:
            parts.append(f"accuracy {accuracy:.1%}")
        parts += [f"{metrics['tokens_per_s']:,.0f} tok/s", f"{_clock(left)} left"]
        line = "  ".join(parts)
        self._progress.update(self._task, completed=step, line=line)
        if not self._live:
            say(f"step {step}/{self.total}  {line}")

    def close(self) -> None:
        """Leave the last line standing."""
        self._progress.stop()

    def __enter__(self) -> StepProgress:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
