"""Whole runs through the command line: stopped, resumed, exported, evaluated."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from safetensors.torch import load_file

from rlnorm.advantage import AdvantagePipeline
from rlnorm.explain.diagnosis import Recording
from rlnorm.explain.recorded import read_recorded
from rlnorm.tracking.metrics import read_metrics
from tests.conftest import REPOSITORY

# real engines start in a minute on an idle machine, and in several on a busy one
pytestmark = pytest.mark.timeout(1800)
STEPS = 6


def command(verb: str, tiny: Path, output: Path, *more: str) -> list[str]:
    """`rlnorm VERB` on the quickstart's config with the test's tiny model."""
    return [
        sys.executable,
        "-m",
        "rlnorm.cli",
        verb,
        str(REPOSITORY / "configs" / "quickstart.yaml"),
        f"model.path={tiny / 'model'}",
        f"data.path={tiny / 'train.jsonl'}",
        f"data.eval_path={tiny / 'test.jsonl'}",
        "data.eval_limit=50",
        "learner.warmup_steps=0",
        "trainer.prompts_per_step=8",
        "trainer.eval_every=3",
        "trainer.save_every=2",
        "learner.lr=1e-3",
        "learner.mini_batches=2",
        "objective.importance_sampling=token",
        "trainer.name=run",
        f"trainer.output_dir={output}",
        f"trainer.steps={STEPS}",
        *more,
    ]


def run(arguments: list[str]) -> str:
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def uninterrupted(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("uninterrupted")
    text = run(command("train", tiny, output))
    assert "Held-out accuracy:" in text and "Report:" in text
    return output / "run"


@pytest.fixture(scope="module")
def resumed(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stopped by Ctrl-C after about three steps, as a terminal sends it: to all processes."""
    output = tmp_path_factory.mktemp("resumed")
    arguments = command("train", tiny, output)
    process = subprocess.Popen(
        arguments,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    lines, signalled = [], False
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line)
        if not signalled and line.startswith("step 3/"):
            os.killpg(process.pid, signal.SIGINT)
            signalled = True
    assert process.wait(timeout=120) == 0, "".join(lines)
    text = "".join(lines)
    assert "To go on: rlnorm train" in text, text
    made = [row["step"] for row in read_metrics(output / "run" / "metrics.jsonl")]
    assert 3 <= max(made) < STEPS
    assert "Going on from" in run([*arguments, "--resume"])
    return output / "run"


def facts(run_folder: Path) -> list[dict[str, Any]]:
    """Metrics without what depends on the clock."""
    return [
        {k: v for k, v in row.items() if not k.startswith("time/") and k != "tokens_per_s"}
        for row in read_metrics(run_folder / "metrics.jsonl")
    ]


def test_resumed_run_equals_uninterrupted(uninterrupted: Path, resumed: Path) -> None:
    assert facts(resumed) == facts(uninterrupted)
    assert len([row for row in facts(resumed) if row["kind"] == "train"]) == STEPS
    last = f"checkpoints/step_{STEPS:06d}/learner/rank_00000.safetensors"
    one, other = load_file(resumed / last), load_file(uninterrupted / last)
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name
    for step in range(1, STEPS + 1):
        name = f"episodes/step_{step:06d}.parquet"
        assert pq.read_table(resumed / name).equals(pq.read_table(uninterrupted / name)), name


def test_episodes_tell_what_was_learned_from(uninterrupted: Path) -> None:
    table = pq.read_table(uninterrupted / "episodes" / "step_000001.parquet")
    rows = table.to_pylist()
    assert len(rows) == 8 * 16 and len({row["group"] for row in rows}) == 8
    for row in rows:
        assert row["reward/verifier"] == float(row["response"] == row["answer"])
        assert len(row["response_ids"]) == len(row["rollout_logprobs"]) == row["length"]
    for group in {row["group"] for row in rows}:
        mine = [row for row in rows if row["group"] == group]
        rewards = np.array([row["reward/verifier"] for row in mine])
        want = np.zeros(16)
        if rewards.std():
            want = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)
        np.testing.assert_allclose([row["advantage"] for row in mine], want, rtol=1e-5)


def test_explain_finds_what_the_learner_used(uninterrupted: Path, tmp_path: Path) -> None:
    """The run's own pipeline on its recorded episodes gives the recorded advantages and weights."""
    page = tmp_path / "page.html"
    told = run(
        [sys.executable, "-m", "rlnorm.cli", "explain", str(uninterrupted), "--out", str(page)]
    )
    assert str(page) in told.replace("\n", "") and page.stat().st_size > 10_000
    config = yaml.safe_load((uninterrupted / "config.yaml").read_text(encoding="utf-8"))
    pipeline = AdvantagePipeline.from_config(
        config["advantage"], max_response_length=config["rollout"]["max_response_length"]
    )
    outputs = Recording(read_recorded(uninterrupted)).apply(pipeline)
    assert len(outputs) == STEPS
    learned_from = 0
    for step, out in enumerate(outputs, start=1):
        table = pq.read_table(uninterrupted / "episodes" / f"step_{step:06d}.parquet")
        for name, found in (("advantage", out.advantage), ("weight", out.weight)):
            recorded = table[name].to_numpy()
            learned_from += int((recorded != 0).sum())
            np.testing.assert_allclose(found.numpy(), recorded, rtol=1e-6, err_msg=name)
    assert learned_from > 0


def test_run_folder_says_where_it_came_from(uninterrupted: Path) -> None:
    environment = json.loads((uninterrupted / "environment.json").read_text())
    assert environment["parameters"] == 800_896
    assert {"torch", "vllm", "ray", "deepspeed", "rlnorm"} <= environment["versions"].keys()
    assert (uninterrupted / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    assert list((uninterrupted / "tensorboard").glob("events.*"))
    kept = sorted(p.name for p in (uninterrupted / "checkpoints").iterdir())
    assert kept == ["step_000004", "step_000006"]


def test_finished_run_is_left_as_it_is_and_another_config_refused(
    uninterrupted: Path, tiny: Path
) -> None:
    arguments = command("train", tiny, uninterrupted.parent, "learner.beta2=0.9")
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "learner.beta2: 0.999 there, 0.9 now" in done.stderr
    assert "Traceback" not in done.stderr
    before = (uninterrupted / "metrics.jsonl").read_bytes()
    text = run(command("train", tiny, uninterrupted.parent))
    assert "is finished" in text
    assert (uninterrupted / "metrics.jsonl").read_bytes() == before


def test_export_loads_and_evaluates_the_same(uninterrupted: Path) -> None:
    run([sys.executable, "-m", "rlnorm.cli", "export", str(uninterrupted)])
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(uninterrupted / "export")
    last = uninterrupted / "checkpoints" / f"step_{STEPS:06d}" / "learner"
    saved = load_file(last / "rank_00000.safetensors")
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, saved[f"weight/{name}"]), name
    tokenizer = AutoTokenizer.from_pretrained(uninterrupted / "export")
    assert tokenizer.decode(tokenizer("12+34=")["input_ids"]) == "12+34="
    text = run([sys.executable, "-m", "rlnorm.cli", "eval", str(uninterrupted)])
    accuracy = [row for row in facts(uninterrupted) if row["kind"] == "eval"][-1]["accuracy"]
    assert f"Accuracy {accuracy:.1%} on 50 questions." in text
