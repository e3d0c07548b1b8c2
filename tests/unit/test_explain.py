"""`rlnorm explain`: its figures against enumeration by hand, its warnings, its bad input."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from rlnorm.advantage import AdvantagePipeline, RewardBatch
from rlnorm.errors import UserError
from rlnorm.explain.command import explain_episodes
from rlnorm.explain.diagnosis import Diagnosis, Recording, diagnose
from rlnorm.explain.recorded import RecordedStep, read_recorded

GRPO = {"normalizer": {"name": "grpo"}, "aggregator": {"name": "seq_mean_token_mean"}}


def recorded(
    reward: list[float],
    group: list[int],
    length: list[int] | None = None,
    stratum: list[int] | None = None,
    step: int = 1,
) -> RecordedStep:
    return RecordedStep(
        step,
        RewardBatch(
            group=torch.tensor(group),
            rewards={"r": torch.tensor(reward, dtype=torch.float64)},
            length=torch.tensor(length or [3] * len(group)),
            stratum=None if stratum is None else torch.tensor(stratum),
        ),
        None,
    )


def explained(config: dict[str, Any], *steps: RecordedStep, resamples: int = 0) -> Diagnosis:
    pipeline = AdvantagePipeline.from_config(config, max_response_length=100)
    reference = AdvantagePipeline.from_config({"normalizer": {"name": "grpo"}})
    return diagnose("it", pipeline, Recording(list(steps)), reference, resamples)


def all_draws(reward: np.ndarray, group: np.ndarray) -> list[np.ndarray]:
    """Every way to draw each group's episodes anew with replacement, all equally likely."""
    members = [np.flatnonzero(group == g) for g in group]
    return [np.array(draw) for draw in itertools.product(*members)]


REWARD = np.array([0.0, 1.0, 0.5, 1.0, 1.0, 0.0])
GROUP = np.array([4, 4, 9, 9, 9, 9])
LENGTH = np.array([2, 7, 1, 5, 3, 3])


def test_held_mean_and_variance_are_those_of_all_draws() -> None:
    step = recorded(REWARD.tolist(), GROUP.tolist(), LENGTH.tolist())
    d = explained(GRPO, step)
    score = REWARD - np.array([REWARD[GROUP == g].mean() for g in GROUP])
    weight = d.weight.numpy()
    totals = [(weight[pick] * score[pick]).sum() for pick in all_draws(REWARD, GROUP)]
    assert len(totals) == 2**2 * 4**4
    assert d.held.mean == pytest.approx(np.mean(totals), rel=1e-12)
    assert d.held.variance == pytest.approx(np.var(totals), rel=1e-12)
    assert d.held.noise == pytest.approx(np.std(totals) / np.mean(totals), rel=1e-12)
    pulls = [(weight * score)[GROUP == g].sum() for g in (4, 9)]
    target = [(score**2)[GROUP == g].sum() for g in (4, 9)]
    cosine = np.dot(pulls, target) / np.linalg.norm(pulls) / np.linalg.norm(target)
    assert d.held.bias == pytest.approx(np.degrees(np.arccos(cosine)), rel=1e-9)


def test_redrawn_estimates_what_all_draws_give() -> None:
    step = recorded(REWARD.tolist(), GROUP.tolist(), LENGTH.tolist())
    d = explained(GRPO, step, resamples=4000)
    pipeline = AdvantagePipeline.from_config(GRPO)
    score = REWARD - np.array([REWARD[GROUP == g].mean() for g in GROUP])
    totals = []
    for pick in all_draws(REWARD, GROUP):
        out = pipeline(
            RewardBatch(
                torch.tensor(GROUP), {"r": torch.tensor(REWARD[pick])}, torch.tensor(LENGTH[pick])
            )
        )
        totals.append(float((out.weight.numpy() * score[pick]).sum()))
    assert d.redrawn is not None
    exact = float(np.std(totals) / np.mean(totals))
    assert abs(d.redrawn.noise - exact) < 4 * d.redrawn.noise_se < 0.2 * exact
    assert d.redrawn.mean == pytest.approx(
        np.mean(totals), abs=4 * float(np.std(totals)) / math.sqrt(4000)
    )
    # the std and the mean are those of the draw, not of the record: another number than `held`
    assert abs(d.held.noise - exact) > 0.1 * exact


def test_bias_is_zero_for_the_rewards_own_gradient_and_known_for_grpo() -> None:
    rates = [1 / 8, 4 / 8, 7 / 8]
    reward = [float(i < 8 * rate) for rate in rates for i in range(8)]
    step = recorded(reward, [g for g in range(3) for _ in range(8)])
    for name in ("reinforce", "dr_grpo", "rloo", "reinforce_baseline"):
        assert explained({"normalizer": {"name": name}}, step).held.bias < 1e-4
    # E[G_g] is proportional to the group's std, T_g to its variance
    p = np.array(rates)
    variance = p * (1 - p)
    cosine = (variance**1.5).sum() / np.sqrt(variance.sum() * (variance**2).sum())
    grpo = explained({"normalizer": {"name": "grpo", "eps": 0.0}}, step)
    assert grpo.held.bias == pytest.approx(np.degrees(np.arccos(cosine)), rel=1e-4)


def test_steps_are_normalized_apart_and_noise_is_that_of_one_step() -> None:
    step = recorded(REWARD.tolist(), GROUP.tolist(), LENGTH.tolist())
    batch_std = {
        "normalizer": {"name": "grpo", "std": "batch"},
        "aggregator": {"name": "seq_mean_token_mean"},
    }
    one = explained(batch_std, step, resamples=400)
    many = explained(batch_std, *[step] * 5, resamples=2000)
    torch.testing.assert_close(many.advantage, one.advantage.repeat(5))
    assert many.held.noise == pytest.approx(one.held.noise)
    assert many.held.bias == pytest.approx(one.held.bias)
    assert one.redrawn is not None and many.redrawn is not None
    assert abs(many.redrawn.noise - one.redrawn.noise) < 4 * one.redrawn.noise_se


def test_signs_are_counted_against_grpo() -> None:
    # the worked example of strata whose levels differ: a right answer among rights, and so on
    step = recorded([0.4, 0.6, 0.0, 0.2], [1] * 4, stratum=[0, 0, 1, 1])
    d = explained({"normalizer": {"name": "stratified", "alpha": 1.0}}, step)
    # mean 0.3: GRPO pushes 0.4 up and 0.2 down, inside the strata it is the other way
    assert d.flipped.tolist() == [True, False, False, True]
    assert (d.lost, d.gained) == (0, 0)
    raw = explained({"normalizer": {"name": "reinforce"}}, recorded([1, 1, 0, 1], [1, 1, 2, 2]))
    assert (raw.lost, raw.gained) == (1, 2)  # the 0 of group 2; the equal pair of group 1
    assert raw.zero_signal == 0.0
    assert explained(GRPO, recorded([1, 1, 0, 1], [1, 1, 2, 2])).zero_signal == 0.5


def test_correlations_and_sample_size() -> None:
    step = recorded([0, 1, 0, 1], [1, 1, 2, 2], [1, 3, 2, 6], [0, 2, 1, 2])
    d = explained(GRPO, step)
    assert d.length_correlation == pytest.approx(
        np.corrcoef(d.advantage, [1, 3, 2, 6])[0, 1], rel=1e-6
    )
    assert d.stratum_correlation == pytest.approx(
        np.corrcoef(d.advantage, [0, 2, 1, 2])[0, 1], rel=1e-6
    )
    pull = 1 / np.array([1, 3, 2, 6])
    assert d.weight_length_correlation == pytest.approx(
        np.corrcoef(pull, [1, 3, 2, 6])[0, 1], rel=1e-6
    )
    assert d.sample_size == pytest.approx(pull.sum() ** 2 / (pull**2).sum() / 4, rel=1e-6)


def test_unscored_and_silent_episodes_leave_the_gradient_finite() -> None:
    nan = math.nan
    step = recorded([nan, nan, 0.3, 0.3, 0.3, nan, 1, 0], [1, 1, 2, 2, 2, 3, 4, 4])
    d = explained({"normalizer": {"name": "dr_grpo"}}, step, resamples=50)
    assert d.held.bias < 1e-4 and math.isfinite(d.held.noise)
    assert all(v is None or math.isfinite(v) for v in d.numbers().values())
    silent = explained(GRPO, recorded([1, 1], [0, 0]), resamples=50)
    assert silent.numbers()["held_noise"] is None and silent.sample_size == 0


@pytest.mark.parametrize(
    ("config", "step", "said"),
    [
        (GRPO, recorded([1, 0, 1], [1, 1, 2]), "1 of 2 groups have one episode"),
        (GRPO, recorded([1, 0, 1, 1], [1, 1, 2, 2]), "50% of the groups have equal rewards"),
        (
            {"normalizer": {"name": "reinforce"}},
            recorded([1, 0, 1, 1], [1, 1, 2, 2]),
            "1 groups of equal rewards get advantages",
        ),
        (
            {"normalizer": {"name": "bnpo"}},
            recorded([1, 0, 1, 0], [1, 1, 2, 2]),
            "in 1 of 1 steps the moments of the success rates are out of range",
        ),
        (
            {"normalizer": {"name": "bnpo"}},
            # 31 groups half right and one with 1 right of 16, as in BNPO's docstring
            recorded([1.0, 0.0] * (31 * 8) + [1.0] + [0.0] * 15, [i // 16 for i in range(32 * 16)]),
            "weigh",
        ),
        (
            {"normalizer": {"name": "dr_grpo"}},
            recorded([1, 0, 1, 0], [1, 1, 2, 2], [9, 1, 8, 2]),
            "rewards longer responses",
        ),
        (GRPO, recorded([1, 0, 1, 0], [1, 1, 2, 2], [9, 1, 8, 2]), "of a short response counts"),
        (
            {"normalizer": {"name": "stratified"}},
            recorded([1, 0, 1, 0], [1, 1, 2, 2], stratum=[0, 0, 0, 1]),
            "2 of 3 strata have one episode",
        ),
        (
            {"normalizer": {"name": "stratified"}},
            recorded([1, 0, 1, 0], [1, 1, 2, 2], stratum=[0, 0, 1, 1]),
            "every group has one stratum",
        ),
    ],
)
def test_warnings(config: dict[str, Any], step: RecordedStep, said: str) -> None:
    warnings = explained(config, step).warnings
    assert any(said in warning for warning in warnings), warnings


def test_no_warning_where_nothing_is_the_matter() -> None:
    reward = [1.0, 0, 1, 0, 0, 1, 1, 1, 1, 0, 0, 0]
    step = recorded(reward, [i // 4 for i in range(12)], [5] * 12)
    for name in ("grpo", "rloo", "dr_grpo"):
        assert explained({"normalizer": {"name": name}}, step).warnings == []


# files ----------------------------------------------------------------------------------------


def write(path: Path, **columns: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)
    return path


def episodes(**changes: Any) -> dict[str, Any]:
    columns: dict[str, Any] = {
        "group": [0, 0, 1, 1, 2, 2],
        "length": [3, 4, 5, 3, 2, 6],
        "stratum": [0, 0, 0, 1, 0, 0],
        "reward/verifier": [1.0, 0.0, None, 0.0, 1.0, 0.0],
        "response": ["a", "<script>alert(1)</script>", "c", "d", "e", "f"],
    }
    return {k: v for k, v in {**columns, **changes}.items() if v is not None}


def test_page_and_figures_of_a_runs_folder(tmp_path: Path) -> None:
    for step in (9, 10):
        write(tmp_path / "run" / "episodes" / f"step_{step:06d}.parquet", **episodes())
    result = explain_episodes(tmp_path / "run", ["grpo", "reinforce", "hero"], resamples=20)
    assert result.page == tmp_path / "run" / "explain.html"
    figures = json.loads(result.page.with_suffix(".json").read_text())
    assert figures["steps"] == [9, 10] and figures["episodes"] == 12 and figures["groups"] == 6
    assert set(figures["pipelines"]) == {"grpo", "reinforce"}
    assert "reward_model" in figures["refused"]["hero"]
    text = result.page.read_text()
    assert text.count("<img") == 6 and "http" not in text


def test_responses_are_shown_as_text(tmp_path: Path) -> None:
    columns = episodes(
        group=[0, 0, 0, 0],
        length=[1] * 4,
        stratum=[0, 0, 1, 1],
        response=["<script>x", "b", "c", "d"],
    )
    columns["reward/verifier"] = [0.4, 0.6, 0.0, 0.2]
    path = write(tmp_path / "step_000003.parquet", **columns)
    section = tmp_path / "san.yaml"
    section.write_text("normalizer: {name: stratified, alpha: 1.0, eps: 1e-6}\n")
    text = explain_episodes(path, [str(section)], resamples=0).page.read_text()
    assert "&lt;script&gt;x" in text and "<script" not in text and "2 other signs" in text


def test_newest_steps_only(tmp_path: Path) -> None:
    for step in (2, 9, 10, 100):
        write(tmp_path / f"step_{step}.parquet", **episodes())
    assert [s.step for s in read_recorded(tmp_path, last=2)] == [10, 100]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"group": None}, "no column 'group'"),
        ({"reward/verifier": None}, "no column that begins with 'reward/'"),
        ({"length": [3, 4, None, 3, 2, 6]}, "length is null in row 2"),
        ({"reward/verifier": ["a"] * 6}, "'reward/verifier' is of type string"),
    ],
)
def test_bad_files_get_a_sentence(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    columns = episodes()
    for name, value in changes.items():
        columns.pop(name)
        if value is not None:
            columns[name] = value
    with pytest.raises(UserError, match=said):
        explain_episodes(write(tmp_path / "x.parquet", **columns))


def test_what_is_not_there_gets_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no file or run's folder"):
        explain_episodes(tmp_path / "nothing.parquet")
    with pytest.raises(UserError, match="record_episodes_every"):
        explain_episodes(tmp_path)
    (tmp_path / "text.parquet").write_text("not parquet")
    with pytest.raises(UserError, match="cannot be read as parquet"):
        explain_episodes(tmp_path / "text.parquet")
    empty = {k: pa.array([], pa.int64()) for k in ("group", "length", "reward/v")}
    with pytest.raises(UserError, match="has no episodes"):
        explain_episodes(write(tmp_path / "empty.parquet", **empty))
    good = write(tmp_path / "good.parquet", **episodes())
    with pytest.raises(UserError, match="did you mean 'grpo'"):
        explain_episodes(good, ["grppo"])
    with pytest.raises(UserError, match="process rewards"):
        explain_episodes(good, ["renorm"])
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("normalizer: {name: grpo, stdd: none}")
    with pytest.raises(UserError, match="stdd"):
        explain_episodes(good, [str(wrong)])
