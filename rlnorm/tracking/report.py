"""The learning curve as a picture, and a page that holds it with the run's figures."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

from rlnorm.files import write_text, write_with
from rlnorm.tracking.metrics import read_metrics
from rlnorm.tracking.page import image, page, table


def write_report(run: Path, title: str) -> Path:
    """Write learning_curve.png and report.html from the run's metrics.jsonl.

    Returns the page's path; the page is one file and needs no network.
    """
    rows = read_metrics(run / "metrics.jsonl")
    picture = run / "learning_curve.png"
    _plot(rows, title, picture)
    config = (run / "config.yaml").read_text(encoding="utf-8")
    evaluations = [row for row in rows if row["kind"] == "eval"]
    figures = table(
        ["step", "accuracy", "questions", "response tokens", "truncated"],
        [
            [
                str(row["step"]),
                f"{row['accuracy']:.1%}",
                f"{row['questions']:.0f}",
                f"{row['response_length']:.1f}",
                f"{row['truncated']:.1%}",
            ]
            for row in evaluations
        ],
    )
    body = (
        f"{image(picture.read_bytes(), 'learning curve')}\n<h2>Evaluations</h2>\n{figures}\n"
        f"<h2>Config</h2><pre>{html.escape(config)}</pre>"
    )
    path = run / "report.html"
    write_text(path, page(title, body))
    return path


def _plot(rows: list[dict[str, Any]], title: str, path: Path) -> None:
    """Accuracy and reward over steps, and beside them what warns of trouble."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    train = [row for row in rows if row["kind"] == "train"]
    evaluations = [row for row in rows if row["kind"] == "eval"]
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    steps = [row["step"] for row in train]
    left.plot(steps, [row["reward/mean"] for row in train], label="training reward", alpha=0.6)
    if evaluations:
        left.plot(
            [row["step"] for row in evaluations],
            [row["accuracy"] for row in evaluations],
            "o-",
            label="greedy accuracy, held-out",
        )
    left.set(xlabel="step", ylim=(0, None), title=title)
    left.legend()
    for name, label in (
        ("policy/entropy", "entropy (nats per token)"),
        ("advantage/zero_signal_group_frac", "groups without signal"),
        ("policy/rollout_gap", "|log-prob gap| engine and learner"),
    ):
        values = [(row["step"], row[name]) for row in train if row.get(name) is not None]
        if values:
            right.plot(*zip(*values, strict=True), label=label)
    right.set(xlabel="step", ylim=(0, None))
    right.legend()
    write_with(path, lambda temporary: figure.savefig(temporary, format="png", dpi=120))
    plt.close(figure)
