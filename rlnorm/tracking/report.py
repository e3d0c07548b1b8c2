"""The learning curve as a picture, and a page that holds it with the run's figures."""

from __future__ import annotations

import base64
import html
from pathlib import Path
from typing import Any

from rlnorm.files import write_text, write_with
from rlnorm.tracking.metrics import read_metrics


def write_report(run: Path, title: str) -> Path:
    """Write learning_curve.png and report.html from the run's metrics.jsonl.

    Returns the page's path; the page is one file and needs no network.
    """
    rows = read_metrics(run / "metrics.jsonl")
    picture = run / "learning_curve.png"
    _plot(rows, title, picture)
    config = (run / "config.yaml").read_text(encoding="utf-8")
    evaluations = [row for row in rows if row["kind"] == "eval"]
    table = "".join(
        f"<tr><td>{row['step']}</td><td>{row['accuracy']:.1%}</td>"
        f"<td>{row['questions']:.0f}</td><td>{row['response_length']:.1f}</td>"
        f"<td>{row['truncated']:.1%}</td></tr>"
        for row in evaluations
    )
    data = base64.b64encode(picture.read_bytes()).decode()
    page = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto;
  padding: 0 1rem; }}
img {{ max-width: 100%; background: white; }}
table {{ border-collapse: collapse; }} td, th {{ padding: .2rem .8rem; text-align: right; }}
pre {{ overflow-x: auto; border: 1px solid gray; padding: 1rem; }}
</style></head><body>
<h1>{html.escape(title)}</h1>
<img alt="learning curve" src="data:image/png;base64,{data}">
<h2>Evaluations</h2>
<table><tr><th>step</th><th>accuracy</th><th>questions</th><th>response tokens</th>
<th>truncated</th></tr>{table}</table>
<h2>Config</h2><pre>{html.escape(config)}</pre>
</body></html>
"""
    path = run / "report.html"
    write_text(path, page)
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
