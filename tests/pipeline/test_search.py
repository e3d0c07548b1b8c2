"""Episodes of several turns through the real engine and the real learner; environments that fail.

The model of `rlnorm prepare tiny-search` is taught here to search twice each time.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from rlnorm.config_loading import load_config
from rlnorm.prepare.tiny_search import TinySearchSettings, prepare_tiny_search
from tests.conftest import REPOSITORY
from tests.pipeline.system import System, requests

# real engines start in a minute on an idle machine, and in several on a busy one
pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prepared") / "tiny-search"
    prepare_tiny_search(folder, 3, TinySearchSettings(searches=(0.0, 0.0, 1.0)))
    return folder


@pytest.fixture(scope="module")
def system(world: Path) -> Iterator[System]:
    config = load_config(
        REPOSITORY / "configs" / "stratified_search_tiny.yaml",
        [
            f"model.path={world / 'model'}",
            f"data.path={world / 'train.jsonl'}",
            f"data.eval_path={world / 'test.jsonl'}",
            f"environment.settings.retriever.corpus={world / 'corpus.jsonl'}",
            "learner.grad_clip=0",
            "rollout.threads=2",
            "trainer.name=test",
        ],
    )
    running = System(config)
    yield running
    running.cluster.close()


def test_two_searches_through_engine_and_learner(system: System, world: Path) -> None:
    block = system.sample(requests(8, 8))
    found = [json.loads(line) for line in (world / "corpus.jsonl").read_text().splitlines()]
    friend = {row["title"]: row["text"] for row in found}
    followed, searched_twice = 0, block.stratum == 2
    for i in range(len(block)):
        span, turns = block.span(i), block.turns[i]
        ids, mask = block.response_ids[span], block.loss_mask[span]
        begin = 0
        for turn in turns:
            # the mask covers exactly the policy's turns, and the text is that of the tokens
            assert (mask[begin : turn.end] == turn.by_policy).all()
            text = system.tokenizer.decode(ids[begin : turn.end], skip_special_tokens=True)
            assert text == turn.text
            begin = turn.end
        assert begin == len(ids)
        assert [turn.by_policy for turn in turns] == [t % 2 == 0 for t in range(len(turns))]
        assert not block.rollout_logprobs[span][~mask].any()
        for call, answer in zip(turns[::2], turns[1::2], strict=False):
            name = call.text.rpartition("<search>")[2].removesuffix("</search>")
            if name in friend:
                assert answer.text == f"<information>{friend[name]}</information>"
                followed += 1
    assert searched_twice.sum() >= 5
    assert followed >= 20, "the model hardly ever searched for a name of its world"
    assert system.gap(block) <= 1e-3
    # and that is because the learner has the passages as the engine read them
    other = block.response_ids.copy()
    hidden = np.flatnonzero(~block.loss_mask)
    other[hidden] = np.roll(other[hidden], 1)
    assert system.gap(replace(block, response_ids=other)) > 0.1


def test_stratum_is_the_number_of_searches(system: System) -> None:
    block = system.sample(requests(8, 8, seed=1))
    for i in range(len(block)):
        turns, counted = block.turns[i], block.metadata[i]
        answered = [turn for turn in turns if not turn.by_policy]
        assert all(turn.text.startswith("<information>") for turn in answered)
        # nothing is written after the policy's last turn, nor where there is no room
        last = block.truncated[i] or sum(turn.by_policy for turn in turns) == 4
        assert sum(counted.values()) - len(answered) in ((0, 1) if last else (0,))
        assert block.stratum[i] == counted["searches"] <= 3


def train(tiny: Path, output: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable,
            *("-m", "rlnorm.cli", "train", str(REPOSITORY / "configs" / "quickstart.yaml")),
            f"model.path={tiny / 'model'}",
            f"data.path={tiny / 'train.jsonl'}",
            f"data.eval_path={tiny / 'test.jsonl'}",
            "data.eval_limit=20",
            "trainer.prompts_per_step=4",
            "trainer.steps=2",
            "trainer.name=run",
            f"trainer.output_dir={output}",
            "environment.name=tests.pipeline.probe:Flaky",
            *more,
        ],
        capture_output=True,
        text=True,
        timeout=900,
        cwd=REPOSITORY,
    )


def test_failing_environment_costs_its_episodes_only(tiny: Path, tmp_path: Path) -> None:
    done = train(tiny, tmp_path, "environment.max_failed=0.3", "environment.episode_timeout_s=60")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    steps = [row for row in rows if row["kind"] == "train"]
    assert [row["failed"] for row in steps] == [2 / 16, 2 / 16]
    assert [row["advantage/unscored_episodes"] for row in steps] == [8, 8]
    table = pq.read_table(tmp_path / "run/episodes/step_000001.parquet").to_pylist()
    for row in table:
        broken = row["sample"] in (3, 7)
        assert (row["error"] is not None) == broken
        if broken:
            assert "RuntimeError: no luck with sample" in row["error"]
            assert row["length"] == 0 and row["reward/verifier"] is None and row["weight"] == 0
    log = (tmp_path / "run/log.txt").read_text(encoding="utf-8")
    assert "Traceback" in log and "in play" in log and "step 1" in log


def test_run_stops_where_too_many_episodes_fail(tiny: Path, tmp_path: Path) -> None:
    done = train(tiny, tmp_path, "environment.max_failed=0.05", "trainer.eval_every=0")
    assert done.returncode == 1, done.stdout + done.stderr
    said = " ".join((done.stdout + done.stderr).split())
    assert "Traceback" not in said
    for words in (
        "'tests.pipeline.probe:Flaky' failed in 8 of 64 episodes of step 1",
        "RuntimeError: no luck with sample",
        "environment.max_failed allows a share of 0.05",
        "log.txt",
    ):
        assert words in said, said


def test_wrong_environment_settings_are_refused_before_the_start(
    tiny: Path, tmp_path: Path
) -> None:
    done = train(tiny, tmp_path, "environment.settings.luck=1")
    assert done.returncode == 2 and "environment.settings.luck" in done.stderr + done.stdout
