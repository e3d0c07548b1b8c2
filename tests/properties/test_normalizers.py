"""Properties of the advantage pipeline on random batches, and its agreement with plain loops.

500 examples each. Rewards are handed over in float32, as trainers have them; the loops compute
on the same float32 numbers in float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import loop_reference as loops
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlnorm.advantage import AdvantageOutput, AdvantagePipeline, RewardBatch

checked = settings(
    max_examples=500,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

NAN = float("nan")
LENGTHS = (0, 1, 2, 17, 900, 4096, 32_768)
# kind of rewards -> the values there are
REWARDS: dict[str, list[float]] = {
    "binary": [0.0, 1.0],
    "equal": [0.3],
    "close": [0.35, 0.4],
    "unit": [n / 100 for n in range(101)],
    "offset": [1e6, 1e6 + 0.25, 1e6 + 0.5, 1e6 + 1],
    "real": [n / 997 for n in range(-4000, 4001)],
}
UNSCORED = [NAN, float("inf"), float("-inf")]
UNIT = ("binary", "equal", "close", "unit")
POSITIVE = (*UNIT, "offset")

CONFIGS: dict[str, dict[str, Any]] = {
    "reinforce": {"name": "reinforce"},
    "reinforce_baseline": {"name": "reinforce_baseline"},
    "reinforce_baseline-batch": {"name": "reinforce_baseline", "baseline": "batch"},
    "grpo": {"name": "grpo"},
    "grpo-ddof0": {"name": "grpo", "ddof": 0, "eps": 1e-4},
    "grpo-lite": {"name": "grpo", "std": "batch"},
    "grpo-batch": {"name": "grpo", "mean": "batch", "std": "batch"},
    "grpo-scale-only": {"name": "grpo", "mean": "none"},
    "grpo-loo": {"name": "grpo", "leave_one_out": True},
    "dr_grpo": {"name": "dr_grpo"},
    "rloo": {"name": "rloo"},
    "reinforce_pp": {"name": "reinforce_pp"},
    "reinforce_pp_baseline": {"name": "reinforce_pp_baseline", "ddof": 0},
    "opo": {"name": "opo"},
    "bnpo": {"name": "bnpo"},
    "bnpo-bounded": {"name": "bnpo", "max_weight": 2.0},
    "maxrl": {"name": "maxrl"},
    "passk": {"name": "passk", "k": 3},
    "stratified": {"name": "stratified"},
    "stratified-pure": {"name": "stratified", "alpha": 1.0},
    "decomposed-bnpo": {"name": "decomposed", "inner": {"name": "bnpo"}},
    "decomposed-gdpo": {
        "name": "decomposed",
        "inner": {"name": "grpo"},
        "weights": {"first": 1.0, "second": 0.5},
        "combine": "sum",
        "batch_norm": True,
    },
}
AGGREGATORS: tuple[dict[str, Any], ...] = (
    {"name": "token_mean"},
    {"name": "seq_mean_token_mean"},
    {"name": "seq_mean_token_sum", "norm_length": 4096},
    {"name": "delta_l", "alpha": 0.75, "norm_length": 4096},
    {"name": "delta_l", "alpha": 1.0, "norm_length": 4096},
    {"name": "prompt_mean"},
)
# an episode's advantage depends on its own group alone
WITHIN_GROUP = (
    "reinforce",
    "reinforce_baseline",
    "grpo",
    "grpo-ddof0",
    "grpo-scale-only",
    "grpo-loo",
    "dr_grpo",
    "rloo",
    "opo",
    "maxrl",
    "passk",
    "stratified",
    "stratified-pure",
)
# a group without signal gives 0: all but those that take the batch's mean or nothing away
ZERO_WITHOUT_SIGNAL = (
    *(n for n in WITHIN_GROUP if n != "reinforce"),
    "grpo-lite",
    "bnpo",
    "bnpo-bounded",
    "decomposed-bnpo",
)


def kinds(name: str) -> tuple[str, ...]:
    """Kinds of rewards that a normalizer takes."""
    if "bnpo" in name:
        return UNIT
    return POSITIVE if name in ("maxrl", "passk") else tuple(REWARDS)


@dataclass(frozen=True)
class Case:
    """A batch in lists; rewards are float32 numbers."""

    group: list[int]
    first: list[float]
    second: list[float]
    length: list[int]
    stratum: list[int]

    def batch(self, dtype: torch.dtype = torch.float32) -> RewardBatch:
        return RewardBatch(
            group=torch.tensor(self.group),
            rewards={
                "first": torch.tensor(self.first, dtype=dtype),
                "second": torch.tensor(self.second, dtype=dtype),
            },
            length=torch.tensor(self.length),
            stratum=torch.tensor(self.stratum),
        )

    def rows(self, rows: list[int]) -> Case:
        """The episodes `rows`, in that order."""
        return Case(*([values[i] for i in rows] for values in vars(self).values()))


def columns(longest: int, **choices: Sequence[Any]) -> st.SearchStrategy[dict[str, list[Any]]]:
    """1 to `longest` rows, a choice of each kind in every row, as columns by name.

    A row is drawn as one integer that holds all of its choices: draws are most of the time.
    """

    def decode(rows: list[int]) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {name: [] for name in choices}
        for row in rows:
            for name, values in choices.items():
                row, place = divmod(row, len(values))
                found[name].append(values[place])
        return found

    largest = math.prod(len(values) for values in choices.values()) - 1
    return st.lists(st.integers(0, largest), min_size=1, max_size=longest).map(decode)


@st.composite
def cases(draw: st.DrawFn, names: tuple[str, ...] = UNIT, missing: bool = False) -> Case:
    """1 to 16 episodes in up to 5 groups and 3 strata."""
    values = REWARDS[draw(st.sampled_from(names))]
    # one of four is unscored, if any may be
    values = values + UNSCORED * (1 + len(values) // 9) if missing else values
    case = draw(
        columns(
            16,
            group=range(5),
            first=values,
            second=values,
            length=LENGTHS,
            stratum=range(3),
        )
    )
    case["first"], case["second"] = _float32(case["first"]), _float32(case["second"])
    return Case(**case)


def _float32(values: list[float]) -> list[float]:
    return np.asarray(values, dtype=np.float32).tolist()


@cache
def pipeline(name: str, aggregator: int = 0) -> AdvantagePipeline:
    """By the name in CONFIGS and the place in AGGREGATORS; none of them has a state."""
    config: dict[str, Any] = {"normalizer": CONFIGS[name], "aggregator": AGGREGATORS[aggregator]}
    if CONFIGS[name]["name"] != "decomposed":
        config["shaping"] = [{"name": "sum", "weights": {"first": 1.0}}]
    return AdvantagePipeline.from_config(config)


def drawn(data: st.DataObject, missing: bool = False) -> tuple[str, AdvantagePipeline, Case]:
    """A normalizer, its pipeline, and a batch for it."""
    name = data.draw(st.sampled_from(sorted(CONFIGS)))
    aggregator = data.draw(st.integers(0, len(AGGREGATORS) - 1))
    return name, pipeline(name, aggregator), data.draw(cases(kinds(name), missing))


def same(
    got: torch.Tensor,
    want: torch.Tensor,
    rtol: float = 1e-5,
    atol: float = 1e-7,
    scale: float | None = None,
) -> None:
    """Equal up to rtol, and atol of `scale` (by default the largest entry)."""
    if scale is None:
        scale = float(want.abs().max()) if want.numel() else 0.0
    torch.testing.assert_close(got, want, rtol=rtol, atol=atol * scale)


def same_output(
    got: AdvantageOutput,
    want: AdvantageOutput,
    *,
    got_rows: Sequence[int] | None = None,
    want_rows: Sequence[int] | None = None,
) -> None:
    """Advantages, weights and factors, of these rows of the two outputs."""
    scale = {"weight": weight_scale(want)}
    for field in ("advantage", "weight", "factor"):
        left, right = getattr(got, field), getattr(want, field)
        same(
            left if got_rows is None else left[list(got_rows)],
            right if want_rows is None else right[list(want_rows)],
            scale=scale.get(field),
        )


def weight_scale(out: AdvantageOutput) -> float:
    """A weight is as exact as its advantage, and those of the only tokens may be near 0."""
    return float(out.advantage.abs().max() * out.factor.max())


@checked
@given(st.data())
def test_permutation_permutes(data: st.DataObject) -> None:
    _, run, case = drawn(data, missing=True)
    order = data.draw(st.permutations(range(len(case.group))))
    same_output(run(case.rows(order).batch()), run(case.batch()), want_rows=order)


@checked
@given(st.data())
def test_relabelling_changes_nothing(data: st.DataObject) -> None:
    _, run, case = drawn(data, missing=True)
    label = st.one_of(st.integers(-(2**62), 2**62), st.integers(-20, 20))
    groups = data.draw(st.lists(label, min_size=5, max_size=5, unique=True))
    strata = data.draw(st.lists(label, min_size=3, max_size=3, unique=True))
    relabelled = replace(
        case,
        group=[groups[g] for g in case.group],
        stratum=[strata[s] for s in case.stratum],
    )
    same_output(run(relabelled.batch()), run(case.batch()))


@checked
@given(st.data())
def test_shift_of_a_group_changes_nothing(data: st.DataObject) -> None:
    name = data.draw(
        st.sampled_from(["grpo", "grpo-ddof0", "rloo", "dr_grpo", "stratified", "stratified-pure"])
    )
    case = data.draw(cases(("binary", "equal", "close", "unit", "real")))
    shift = data.draw(st.lists(st.integers(-1000, 1000), min_size=5, max_size=5))
    shifted = replace(
        case, first=[r + shift[g] for r, g in zip(case.first, case.group, strict=True)]
    )
    run = pipeline(name)
    # in float64, where the sum loses nothing that matters
    got, want = run(shifted.batch(torch.float64)), run(case.batch(torch.float64))
    same(got.advantage, want.advantage, atol=1e-6)


@checked
@given(st.data())
def test_scale_of_a_group_changes_nothing_up_to_eps(data: st.DataObject) -> None:
    normalizer = data.draw(st.sampled_from(["grpo", "stratified"]))
    eps = data.draw(st.sampled_from([0.0, 1e-6]))
    case = data.draw(cases(("binary", "equal", "close", "unit", "real")))
    scale = data.draw(st.lists(st.sampled_from([0.125, 0.5, 3.0, 1000.0]), min_size=5, max_size=5))
    scaled = replace(
        case, first=[r * scale[g] for r, g in zip(case.first, case.group, strict=True)]
    )
    run = AdvantagePipeline.from_config(
        {
            "shaping": [{"name": "sum", "weights": {"first": 1.0}}],
            "normalizer": {"name": normalizer, "eps": eps},
        }
    )
    got, want = run(scaled.batch(torch.float64)), run(case.batch(torch.float64))
    # the closest unequal rewards are 1/997 apart, so a std is at least 1/997/sqrt(20) = 2.2e-4,
    # scaled 2.8e-5: eps is at most 3.6 % of it
    same(got.advantage, want.advantage, rtol=0.04 if eps else 1e-6, atol=1e-6)


@checked
@given(st.data())
def test_groups_without_signal_give_exactly_zero(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(ZERO_WITHOUT_SIGNAL))
    values = st.sampled_from([0.1, 0.2, 0.3, 0.35, 0.7, 0.9, 1 / 3, 1.0, 0.0])
    if "bnpo" not in name:
        values = st.one_of(values, st.sampled_from([1e6 + 0.1, 1e-30]))
    sizes = data.draw(st.lists(st.integers(1, 16), min_size=1, max_size=5))
    group = [g for g, n in enumerate(sizes) for _ in range(n)]
    equal = data.draw(st.lists(values, min_size=len(sizes), max_size=len(sizes)))
    first = _float32([equal[g] for g in group])
    case = Case(group, first, first, [7] * len(group), [i % 3 for i in range(len(group))])
    # and a group with signal beside them
    other = Case([99, 99, 99], [0.0, 1.0, 1.0], [0.0, 1.0, 0.0], [1, 2, 3], [0, 0, 1])
    both = Case(*(vars(case)[f] + vars(other)[f] for f in vars(case)))
    for dtype in (torch.float32, torch.float64):
        out = pipeline(name)(both.batch(dtype))
        assert not out.advantage[: len(group)].any()
        assert not out.weight[: len(group)].any()


@checked
@given(st.data())
def test_strata_without_signal_give_exactly_zero(data: st.DataObject) -> None:
    """Pure SAN: whatever the group, a stratum that is equal in itself is 0."""
    case = data.draw(cases(("equal", "close", "unit")))
    value = _float32([0.1, 0.7, 0.3])
    case = replace(case, first=[value[s] for s in case.stratum])
    assert not pipeline("stratified-pure")(case.batch()).advantage.any()


@checked
@given(st.data())
def test_unscored_is_as_if_it_were_not_there(data: st.DataObject) -> None:
    """NaN, +inf and -inf: the output is that of the batch without those episodes, 0 for them."""
    name, run, case = drawn(data, missing=True)
    named = CONFIGS[name]["name"] == "decomposed"
    kept = [
        i
        for i, (a, b) in enumerate(zip(case.first, case.second, strict=True))
        if np.isfinite(a) and (not named or np.isfinite(b))
    ]
    out = run(case.batch())
    gone = sorted(set(range(len(case.group))) - set(kept))
    for field in ("advantage", "weight", "factor"):
        assert not getattr(out, field)[gone].any()
        assert getattr(out, field).isfinite().all()
    assert out.metrics["unscored_episodes"] == len(gone)
    if kept:
        same_output(out, run(case.rows(kept).batch()), got_rows=kept)


@checked
@given(st.data())
def test_unscored_changes_no_other_group(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(WITHIN_GROUP))
    case = data.draw(cases(kinds(name)))
    row = data.draw(st.integers(0, len(case.group) - 1))
    bad = data.draw(st.sampled_from([NAN, float("inf"), float("-inf")]))
    hurt = replace(case, first=[bad if i == row else r for i, r in enumerate(case.first)])
    before, after = pipeline(name)(case.batch()), pipeline(name)(hurt.batch())
    others = [i for i, g in enumerate(case.group) if g != case.group[row]]
    assert torch.equal(after.advantage[others], before.advantage[others])
    assert after.advantage[row] == 0 and after.weight[row] == 0


@checked
@given(st.data())
def test_shards_gathered_equal_the_whole(data: st.DataObject) -> None:
    """Ranks hold any part of the episodes, gather all scalars, and keep their own rows."""
    _, run, case = drawn(data, missing=True)
    n = len(case.group)
    rank = data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))
    gathered = [i for r in range(4) for i in range(n) if rank[i] == r]
    out, whole = run(case.rows(gathered).batch()), run(case.batch())
    mine = {i: place for place, i in enumerate(gathered)}
    same_output(out, whole, got_rows=[mine[i] for i in range(n)])


def reference(
    normalizer: dict[str, Any], aggregator: dict[str, Any], case: Case
) -> tuple[list[float], list[float]]:
    """Advantages and weights by the loops."""
    named = {"first": case.first, "second": case.second}
    needed = named if normalizer["name"] == "decomposed" else {"first": case.first}
    n = len(case.group)
    scored = [i for i in range(n) if all(np.isfinite(r[i]) for r in needed.values())]
    advantage, weight = [0.0] * n, [0.0] * n

    def at(values: list[Any], rows: list[int]) -> list[Any]:
        return [values[i] for i in rows]

    found = loops.normalize(
        normalizer,
        at(case.first, scored),
        at(case.group, scored),
        at(case.length, scored),
        at(case.stratum, scored),
        {name: at(r, scored) for name, r in needed.items()},
    )
    for i, value in zip(scored, found, strict=True):
        advantage[i] = value
    counted = [i for i in scored if case.length[i] > 0]
    if counted:
        x = loops.factors(aggregator, at(case.length, counted), at(case.group, counted))
        for i, value in zip(counted, x, strict=True):
            weight[i] = advantage[i] * value
    return advantage, weight


@pytest.mark.parametrize("name", sorted(CONFIGS))
@checked
@given(st.data())
def test_against_loops(name: str, data: st.DataObject) -> None:
    """Relative error at most 1e-5, or 1e-7 of the batch's largest advantage near 0."""
    aggregator = data.draw(st.integers(0, len(AGGREGATORS) - 1))
    case = data.draw(cases(kinds(name), missing=True))
    out = pipeline(name, aggregator)(case.batch())
    advantage, weight = (
        torch.tensor(values, dtype=torch.float64)
        for values in reference(CONFIGS[name], AGGREGATORS[aggregator], case)
    )
    same(out.advantage.double(), advantage)
    same(out.weight.double(), weight, scale=weight_scale(out))


def test_equal_rewards_of_float32_noise() -> None:
    """0.3 six times and 0.7 seven times: |A| of 0.89 and 0.80 in naive float32 versions."""
    case = Case([0] * 6 + [1] * 7, [0.3] * 6 + [0.7] * 7, [0.0] * 13, [5] * 13, [0] * 13)
    for name in ZERO_WITHOUT_SIGNAL:
        assert not pipeline(name)(case.batch()).advantage.any(), name


@checked
@given(st.data())
def test_hero_against_loops_and_its_order(data: st.DataObject) -> None:
    """The formulas, and: in a group, every right answer above every wrong one."""
    verdicts = [0.0, 1.0] * 6 + UNSCORED
    values = [n / 991 for n in range(-5000, 5001)] + UNSCORED * 200
    drawn = data.draw(columns(16, group=range(4), verdict=verdicts, score=values))
    group, verifier, scores = drawn["group"], drawn["verdict"], _float32(drawn["score"])
    n = len(group)
    alpha = data.draw(st.integers(1, 60)) / 100
    beta = data.draw(st.integers(1, 99 - round(100 * alpha))) / 100
    sigma_bar = data.draw(st.sampled_from([None, 0.7]))
    weighting = data.draw(st.booleans())
    run = AdvantagePipeline.from_config(
        {
            "shaping": [
                {
                    "name": "hero",
                    "alpha": alpha,
                    "beta": beta,
                    "sigma_bar": sigma_bar,
                    "difficulty_weighting": weighting,
                }
            ],
            "normalizer": {"name": "reinforce"},
        }
    )
    out = run(
        RewardBatch(
            group=torch.tensor(group),
            rewards={"verifier": torch.tensor(verifier), "reward_model": torch.tensor(scores)},
            length=torch.ones(n, dtype=torch.long),
        )
    )
    want = loops.hero(
        verifier,
        scores,
        group,
        alpha,
        beta,
        sigma_bar=sigma_bar,
        difficulty_weighting=weighting,
    )
    same(out.advantage.double(), torch.tensor(want, dtype=torch.float64).nan_to_num(nan=0.0))
    for i in range(n):
        for j in range(n):
            scored = np.isfinite([want[i], want[j]]).all() and group[i] == group[j]
            if scored and verifier[i] == 1 and verifier[j] == 0:
                assert out.advantage[i] > out.advantage[j]


@dataclass(frozen=True)
class Steps:
    """Episodes with steps, in lists."""

    group: list[int]
    outcome: list[float]
    length: list[int]
    step_episode: list[int]
    step_end: list[int]
    step_reward: list[float]

    def batch(self) -> RewardBatch:
        return RewardBatch(
            group=torch.tensor(self.group),
            rewards={"outcome": torch.tensor(self.outcome)},
            length=torch.tensor(self.length),
            step_episode=torch.tensor(self.step_episode),
            step_end=torch.tensor(self.step_end),
            step_reward=torch.tensor(self.step_reward),
        )


@st.composite
def stepped(draw: st.DrawFn) -> Steps:
    """1 to 8 episodes of 1 to 5 steps, the flat list in any order."""
    scores = [n / 100 for n in range(101)] + [NAN] * 15
    outcomes = [0.0, 1.0, 1.0, 0.5, NAN]
    episodes = draw(columns(8, group=range(3), outcome=outcomes, length=LENGTHS))
    flat = [
        (episode, 3 * t + 2, score)
        for episode in range(len(episodes["group"]))
        for t, score in enumerate(draw(columns(5, score=scores))["score"])
    ]
    draw(st.randoms(use_true_random=False)).shuffle(flat)
    step_episode, step_end, step_reward = (list(c) for c in zip(*flat, strict=True))
    return Steps(
        **episodes,
        step_episode=step_episode,
        step_end=step_end,
        step_reward=_float32(step_reward),
    )


@checked
@given(st.data())
def test_steps_against_loops(data: st.DataObject) -> None:
    case = data.draw(stepped())
    shaping = {
        "mode": data.draw(st.sampled_from(["calibrated", "sum"])),
        "invalid": data.draw(st.sampled_from(["exclude", "zero"])),
        "beta": data.draw(st.sampled_from([1.0, 0.5])),
        "gamma": data.draw(st.sampled_from([1.0, 0.9])),
    }
    credit = data.draw(st.sampled_from(["step", "return_to_go"]))
    normalizer = data.draw(
        st.sampled_from(
            [CONFIGS[n] for n in ("reinforce", "grpo", "grpo-lite", "dr_grpo", "reinforce_pp")]
        )
    )
    aggregator = data.draw(st.sampled_from(AGGREGATORS))
    run = AdvantagePipeline.from_config(
        {
            "shaping": [{"name": "renorm", **shaping}],
            "credit": credit,
            "normalizer": normalizer,
            "aggregator": aggregator,
        }
    )
    out = run(case.batch())
    reward = loops.renorm(
        case.outcome,
        case.step_episode,
        case.step_end,
        case.step_reward,
        credit=credit,
        **shaping,
    )
    scored = [s for s, r in enumerate(reward) if np.isfinite(r)]
    advantage = [0.0] * len(reward)
    found = loops.normalize(
        normalizer,
        [reward[s] for s in scored],
        [case.group[case.step_episode[s]] for s in scored],
        [1.0] * len(scored),
        [],
        {},
    )
    for s, value in zip(scored, found, strict=True):
        advantage[s] = value
    counted = sorted({case.step_episode[s] for s in scored})
    counted = [e for e in counted if case.length[e] > 0]
    x = [0.0] * len(case.group)
    if counted:
        found = loops.factors(
            aggregator, [case.length[e] for e in counted], [case.group[e] for e in counted]
        )
        for e, value in zip(counted, found, strict=True):
            x[e] = value
    weight = [a * x[e] for a, e in zip(advantage, case.step_episode, strict=True)]
    # sums of step rewards differ by rounding between the two; near-ties are divided by eps
    tolerance = 1e-7 if normalizer["name"] in ("reinforce", "dr_grpo") else 1e-5
    same(out.advantage.double(), torch.tensor(advantage, dtype=torch.float64), atol=tolerance)
    want = torch.tensor(weight, dtype=torch.float64)
    same(out.weight.double(), want, atol=tolerance, scale=weight_scale(out))


@checked
@given(stepped())
def test_renorm_bounds(case: Steps) -> None:
    """beta 1: with a wrong outcome no judged step is rewarded, each costs exactly 1 against a
    right outcome; with a right one every judged step keeps its score, at least 0."""
    run = AdvantagePipeline.from_config(
        {"shaping": [{"name": "renorm"}], "normalizer": {"name": "reinforce"}}
    )
    wrong = run(replace(case, outcome=[0.0] * len(case.outcome)).batch()).advantage
    right = run(replace(case, outcome=[1.0] * len(case.outcome)).batch()).advantage
    last = dict(
        (e, s)
        for _, e, s in sorted(
            zip(case.step_end, case.step_episode, range(len(case.step_end)), strict=True)
        )
    )
    for s, score in enumerate(case.step_reward):
        if s == last[case.step_episode[s]]:
            assert (wrong[s], right[s]) == (0, 1)
        elif np.isfinite(score):
            assert -1 <= wrong[s] <= 0 <= right[s] <= 1
            assert float(right[s]) == pytest.approx(score, abs=1e-7)
            assert float(right[s] - wrong[s]) == pytest.approx(1, abs=1e-7)
        else:
            assert wrong[s] == right[s] == 0
