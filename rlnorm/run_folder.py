"""What a run's folder says of the run beside its results: where it came from, if it can go on."""

from __future__ import annotations

import platform
import subprocess
import sys
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import rlnorm
from rlnorm.checkpoint import latest_good, load_state
from rlnorm.config import Config
from rlnorm.config_loading import differences
from rlnorm.errors import UserError
from rlnorm.files import write_json
from rlnorm.preflight import Inputs
from rlnorm.tracking.metrics import read_metrics

LOG = "log.txt"
PACKAGES = ("torch", "transformers", "ray", "deepspeed", "datasets", "math-verify", "safetensors")


@dataclass(frozen=True)
class Outcome:
    """How far a run got.

    Attributes:
        finished: all steps were made; False after a stop on request.
        step: training steps made.
        before, after: held-out accuracy of the first and the last evaluation, if any.
    """

    finished: bool
    step: int
    before: float | None
    after: float | None


def outcome_of(run: Path, steps: int) -> Outcome:
    """Read off the run's metrics how far it got towards `steps`."""
    rows = read_metrics(run / "metrics.jsonl")
    evaluations = [row["accuracy"] for row in rows if row["kind"] == "eval"]
    made = max((row["step"] for row in rows), default=0)
    return Outcome(
        finished=made >= steps,
        step=made,
        before=evaluations[0] if evaluations else None,
        after=evaluations[-1] if evaluations else None,
    )


def finished(run: Path, config: Config) -> bool:
    """Whether the run's newest good checkpoint already has all steps.

    Raises:
        UserError: it was made with another config.
    """
    checkpoint, _ = latest_good(run / "checkpoints")
    if checkpoint is None:
        return False
    state = load_state(checkpoint)
    check_resumable(state["config"], config)
    return int(state["step"]) >= config.trainer.steps


def check_resumable(saved: dict[str, Any], config: Config) -> None:
    """UserError if the run was made with a config under which it cannot go on."""
    changed = differences(saved, config)
    if changed:
        raise UserError(
            f"The run {config.trainer.name!r} was made with another config ({changed[0]}"
            + (f"; and {len(changed) - 1} more differences" if len(changed) > 1 else "")
            + "); choose another trainer.name, or remove its folder."
        )


def write_environment(
    run: Path, config: Config, inputs: Inputs, vllm_version: str, learner: dict[str, Any]
) -> None:
    """environment.json: versions, commit, seed, data; enough to say what a number came from."""
    versions = {"python": platform.python_version(), "rlnorm": rlnorm.__version__}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    evaluation = inputs.evaluation
    write_json(
        run / "environment.json",
        {
            "versions": {**versions, "vllm": vllm_version},
            "commit": _commit(),
            "command": sys.argv,
            "machine": f"{platform.system()} {platform.machine()}",
            "seed": config.trainer.seed,
            "parameters": learner["parameters"],
            "data": {
                "train": {"prompts": len(inputs.train), "hash": inputs.train.fingerprint()},
                "evaluation": None
                if evaluation is None
                else {"prompts": len(evaluation), "hash": evaluation.fingerprint()},
            },
        },
    )


def _commit() -> str | None:
    """The checkout's commit, with a mark if it was changed; None outside one."""
    folder = Path(rlnorm.__file__).resolve().parent

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + (
            "+changes" if git("status", "--porcelain", "-uno") else ""
        )
    except (OSError, subprocess.CalledProcessError):
        return None


def append_log(run: Path, text: str) -> None:
    """Add a dated entry to the run's log.txt: what is too long for the console."""
    with open(run / LOG, "a", encoding="utf-8") as file:
        file.write(f"{datetime.now().isoformat(timespec='seconds')} {text}\n")
