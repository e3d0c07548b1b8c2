"""The numbers: what a pipeline makes of recorded episodes, and how good an estimate that gives.

Reads no file and draws no picture.

The gradient on scalars. Tilt the policy of prompt g towards reward, pi_theta(y) ~ pi(y) exp(
theta_g r(y)): the score of a response, d log pi_theta(y) / d theta_g at theta = 0, is
s_i = r_i - mean of g. So every episode's gradient is one number, and a step's estimate is the
vector over prompts

    G_g = sum over the group's episodes of  weight_i s_i,      G = sum_g G_g.

The recorded episodes of a prompt stand for its policy, and the n_g of a step are n_g draws with
replacement from them. The gradient of the mean reward is then T_g = n_g Var_g(r), up to one
factor that the learning rate takes up.

`held`: each recorded episode carries the weight it got. Then, exactly,

    E[G_g] = sum_i w_i s_i,        Var[G] = sum_g n_g Var_g(w s)     (Var_g divides by n_g).

`redrawn`: the pipeline is applied again to every redrawn step, so that the noise of its own
means, stds and moments counts too. No closed form covers all normalizers; this is the mean over
`resamples` draws, and `noise_se` says how far that may be off.

Bias is the angle between E[G] and T: 0 degrees is the reward's own gradient but for step size.
Noise is sd(G) / |E[G]| of one step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rlnorm.advantage import AdvantagePipeline, RewardBatch
from rlnorm.advantage.batch import AdvantageOutput
from rlnorm.advantage.normalizers.bnpo import BNPO, beta_normalizer
from rlnorm.advantage.normalizers.stratified import Stratified
from rlnorm.advantage.segments import Segments
from rlnorm.explain.recorded import RecordedStep

FEWEST_RESAMPLES_PER_STEP = 20
# Below these, nothing is said of it.
NOTABLE_CORRELATION = 0.3
NOTABLE_EQUAL_GROUPS = 0.5
NOTABLE_SIGN_CHANGES = 0.05
NOTABLE_SAMPLE_SIZE = 0.1
NOTABLE_GROUP_WEIGHT = 100.0


@dataclass(frozen=True)
class GradientEstimate:
    """Mean and variance of a step's gradient estimate on scalars, over all recorded steps.

    Attributes:
        expected: [K] E[G_g] of every prompt of every step.
        bias: degrees between `expected` and the reward's gradient; NaN where either is 0.
        noise: sd(G) / |E[G]| of a step; inf where E[G] is 0.
        mean, variance: E[G] and Var[G] of a step, averaged over the steps.
        noise_se: standard error of `noise`; 0 where it is exact.
    """

    expected: Tensor
    bias: float
    noise: float
    mean: float
    variance: float
    noise_se: float = 0.0


@dataclass(frozen=True)
class Diagnosis:
    """One pipeline on all recorded steps. Shapes: N episodes, K groups over all steps.

    Attributes:
        name: what the user called it.
        advantage, weight: [N] float64.
        zero_signal: share of groups whose advantages are all exactly 0.
        flipped: [N] bools, the advantage has the other sign than GRPO's.
        lost, gained: episodes with an advantage of 0 here and not in GRPO, and the reverse.
        length_correlation: Pearson, advantage and length; NaN where either is constant.
        weight_length_correlation: the same of |token weight| and length, of weights not 0.
        stratum_correlation: the same of advantage and stratum.
        sample_size: (sum |w|)^2 / sum w^2 (Kish) over the number of episodes.
        zero_signal_by_step: one share per step.
        held, redrawn: see this file's first lines; `redrawn` is None without resamples.
        warnings: sentences on what a user should know.
    """

    name: str
    advantage: Tensor
    weight: Tensor
    zero_signal: float
    flipped: Tensor
    lost: int
    gained: int
    length_correlation: float
    weight_length_correlation: float
    stratum_correlation: float
    sample_size: float
    zero_signal_by_step: list[float]
    held: GradientEstimate
    redrawn: GradientEstimate | None
    warnings: list[str]

    def numbers(self) -> dict[str, float | int | None]:
        """All plain figures by name; None for what is not defined."""
        low, middle, high = self.advantage.quantile(
            torch.tensor([0.05, 0.5, 0.95], dtype=self.advantage.dtype)
        ).tolist()
        values: dict[str, float | int] = {
            "advantage_mean": float(self.advantage.mean()),
            "advantage_std": float(self.advantage.std(correction=0)),
            "advantage_min": float(self.advantage.min()),
            "advantage_q05": low,
            "advantage_median": middle,
            "advantage_q95": high,
            "advantage_max": float(self.advantage.max()),
            "zero_signal_group_frac": self.zero_signal,
            "sign_flips": int(self.flipped.sum()),
            "signal_lost": self.lost,
            "signal_gained": self.gained,
            "length_correlation": self.length_correlation,
            "weight_length_correlation": self.weight_length_correlation,
            "stratum_correlation": self.stratum_correlation,
            "effective_sample_size_frac": self.sample_size,
        }
        for kind, estimate in (("held", self.held), ("redrawn", self.redrawn)):
            if estimate is not None:
                values |= {
                    f"{kind}_mean": estimate.mean,
                    f"{kind}_variance": estimate.variance,
                    f"{kind}_bias_degrees": estimate.bias,
                    f"{kind}_noise": estimate.noise,
                    f"{kind}_noise_se": estimate.noise_se,
                }
        return {k: v if math.isfinite(v) else None for k, v in values.items()}


class Recording:
    """What all pipelines share: the steps, the reward that scores, its groups and gradient.

    Args:
        steps: at least one.

    Attributes:
        reward: [N] sum of the named rewards, NaN where one is unscored.
        length: [N]; `stratum`: [N] or None; `group`: groups of each step apart, over all N.
        rate: [K] the groups' mean reward (scored episodes); NaN where none is scored.
        target: [K] T_g, the reward's own gradient.
        equal: [K] bools, all scored rewards of the group are equal.
    """

    def __init__(self, steps: list[RecordedStep]) -> None:
        self.steps = steps
        self.step_of_episode = torch.cat(
            [torch.full((step.batch.size,), place) for place, step in enumerate(steps)]
        )
        self.reward = torch.cat([_total(step.batch) for step in steps])
        self.length = torch.cat([step.batch.length for step in steps])
        self.group = Segments.of(self.step_of_episode).within(
            torch.cat([step.batch.group for step in steps])
        )
        strata = [step.batch.stratum for step in steps if step.batch.stratum is not None]
        self.stratum = torch.cat(strata) if len(strata) == len(steps) else None
        scored = self.reward.isfinite()
        value = self.reward.where(scored, 0.0)
        count = self.group.sum(scored.double())
        self.rate = self.group.sum(value) / count
        self.score = (value - self.group.spread(self.rate)).where(scored, 0.0)
        low = self.group.amin(self.reward.where(scored, math.inf))
        high = self.group.amax(self.reward.where(scored, -math.inf))
        self.equal = low >= high
        # exact: what rounding leaves of equal rewards is no signal
        self.score = self.score.masked_fill(self.group.spread(self.equal), 0.0)
        self.target = self.group.sum(self.score.square())

    def rows(self) -> Iterator[tuple[RecordedStep, slice]]:
        """Each step with the rows its episodes have here."""
        begin = 0
        for step in self.steps:
            yield step, slice(begin, begin + step.batch.size)
            begin += step.batch.size

    def apply(self, pipeline: AdvantagePipeline) -> list[AdvantageOutput]:
        """The pipeline on every step, each as one batch.

        Raises:
            ValueError: the pipeline needs what these episodes do not have.
        """
        if pipeline.per_step:
            raise ValueError("it needs process rewards of steps, and recorded episodes have none")
        return [pipeline(step.batch) for step in self.steps]


def diagnose(
    name: str,
    pipeline: AdvantagePipeline,
    recording: Recording,
    reference: AdvantagePipeline,
    resamples: int = 200,
    seed: int = 0,
) -> Diagnosis:
    """Everything about one pipeline.

    Args:
        name: what it is called in warnings.
        pipeline: what is explained.
        recording: the episodes.
        reference: GRPO, which sign changes are counted against.
        resamples: redrawn steps, shared among the recorded steps (at least 20 of each);
            0: none, and `redrawn` is None.
        seed: of the draws, the same for every pipeline, so that they are compared on the same.

    Raises:
        ValueError: the pipeline cannot take these episodes (no such reward, out of range, no
            strata, process rewards).
    """
    outputs = recording.apply(pipeline)
    advantage = torch.cat([out.advantage for out in outputs]).double()
    weight = torch.cat([out.weight for out in outputs]).double()
    grpo = torch.cat([out.advantage for out in recording.apply(reference)]).double()
    pull = weight.abs()
    diagnosis = Diagnosis(
        name=name,
        advantage=advantage,
        weight=weight,
        zero_signal=float((~recording.group.any(advantage != 0)).double().mean()),
        flipped=advantage * grpo < 0,
        lost=int(((advantage == 0) & (grpo != 0)).sum()),
        gained=int(((advantage != 0) & (grpo == 0)).sum()),
        length_correlation=correlation(advantage, recording.length),
        weight_length_correlation=correlation(pull[pull > 0], recording.length[pull > 0]),
        stratum_correlation=(
            math.nan if recording.stratum is None else correlation(advantage, recording.stratum)
        ),
        sample_size=float(pull.sum().square() / pull.square().sum() / len(pull))
        if pull.any()
        else 0.0,
        zero_signal_by_step=[out.metrics["zero_signal_group_frac"] for out in outputs],
        held=_held(recording, weight),
        redrawn=_redrawn(recording, pipeline, resamples, seed) if resamples else None,
        warnings=[],
    )
    return replace(diagnosis, warnings=list(_warnings(diagnosis, pipeline, recording)))


def correlation(left: Tensor, right: Tensor) -> float:
    """Pearson's, of two [N]; NaN where one is constant or N < 2."""
    if len(left) < 2 or bool((left == left[0]).all()) or bool((right == right[0]).all()):
        return math.nan
    return float(torch.corrcoef(torch.stack([left.double(), right.double()]))[0, 1])


def _total(batch: RewardBatch) -> Tensor:
    """[N] sum of the named rewards, NaN where one is unscored."""
    return torch.stack([batch.reward(name, "reward") for name in sorted(batch.rewards)]).sum(0)


def _held(recording: Recording, weight: Tensor) -> GradientEstimate:
    """The exact mean and variance with every episode's weight as recorded."""
    pull = weight * recording.score
    group = recording.group
    expected = group.sum(pull)
    variance = group.sum(group.centered(pull).square())  # n_g times the mean square
    steps = len(recording.steps)
    return _estimate(recording, expected, float(variance.sum()) / steps, None, 0)


def _redrawn(
    recording: Recording, pipeline: AdvantagePipeline, resamples: int, seed: int
) -> GradientEstimate:
    """Mean and variance over redrawn steps, the pipeline applied to each."""
    draws = max(FEWEST_RESAMPLES_PER_STEP, resamples // len(recording.steps))
    expected = torch.zeros(recording.group.count, dtype=torch.float64)
    spread = torch.zeros(recording.group.count, dtype=torch.float64)
    variance = 0.0
    for place, (step, rows) in enumerate(recording.rows()):
        generator = torch.Generator().manual_seed(seed * 1_000_003 + place)
        index = recording.group.index[rows]
        score = recording.score[rows]
        inside = step.batch.groups
        order = torch.argsort(inside.index, stable=True)
        first = inside.size.cumsum(0) - inside.size
        estimates = torch.zeros(draws, recording.group.count, dtype=torch.float64)
        for estimate in estimates:
            uniform = torch.rand(step.batch.size, generator=generator, dtype=torch.float64)
            offset = (uniform * inside.spread(inside.size)).long()
            pick = order[inside.spread(first) + offset]
            weight = pipeline(_drawn(step.batch, pick)).weight.double()
            estimate.index_add_(0, index, weight * score[pick])
        expected += estimates.mean(0)
        spread += estimates.var(0)
        variance += float(estimates.sum(1).var()) / len(recording.steps)
    return _estimate(recording, expected, variance, spread / draws, draws * len(recording.steps))


def _drawn(batch: RewardBatch, pick: Tensor) -> RewardBatch:
    """The batch with episode i replaced by episode pick[i] of the same group."""
    return RewardBatch(
        group=batch.group,
        rewards={name: reward[pick] for name, reward in batch.rewards.items()},
        length=batch.length[pick],
        stratum=None if batch.stratum is None else batch.stratum[pick],
        truncated=None if batch.truncated is None else batch.truncated[pick],
    )


def _estimate(
    recording: Recording, expected: Tensor, variance: float, chance: Tensor | None, draws: int
) -> GradientEstimate:
    """`chance` [K]: the variance that `expected` has itself, from the number of draws."""
    bias = math.nan
    if bool(expected.any()) and bool(recording.target.any()):
        direction = recording.target / recording.target.norm()
        along = expected @ direction
        across = (expected - along * direction).square().sum()
        if chance is not None:
            across -= (chance * (1 - direction.square())).sum()
        bias = math.degrees(math.atan2(math.sqrt(max(float(across), 0.0)), float(along)))
    mean = float(expected.sum()) / len(recording.steps)
    noise = math.sqrt(variance) / abs(mean) if mean else math.inf
    relative = 0.0
    if draws:  # of a standard deviation, and of the mean it is divided by
        relative = math.sqrt(1 / (2 * (draws - 1)) + noise**2 / draws)
    return GradientEstimate(
        expected=expected,
        bias=bias,
        noise=noise,
        mean=mean,
        variance=variance,
        noise_se=noise * relative,
    )


def _warnings(d: Diagnosis, pipeline: AdvantagePipeline, recording: Recording) -> Iterator[str]:
    """What a user should know of this pipeline on these episodes."""
    yield from pipeline.warnings()
    moved = recording.group.any(d.advantage != 0)
    single = recording.group.size == 1
    groups = recording.group.count
    if bool(single.any()):
        what = "gets an advantage" if bool((single & moved).any()) else "teaches it nothing"
        yield f"{int(single.sum())} of {groups} groups have one episode, which {what}."
    equal = recording.equal & ~single
    if bool((equal & moved).any()):
        yield (
            f"{int((equal & moved).sum())} groups of equal rewards get advantages that are not 0: "
            "all their responses are pushed the same way."
        )
    elif float(equal.double().mean()) >= NOTABLE_EQUAL_GROUPS:
        yield (
            f"{float(equal.double().mean()):.0%} of the groups have equal rewards and teach it "
            "nothing: choose prompts of middling difficulty, or more samples."
        )
    if isinstance(pipeline.normalizer, Stratified):
        yield from _stratum_warnings(recording)
    if isinstance(pipeline.normalizer, BNPO):
        yield from _bnpo_warnings(pipeline.normalizer, recording)
    if abs(d.length_correlation) >= NOTABLE_CORRELATION:
        direction = "longer" if d.length_correlation > 0 else "shorter"
        yield (
            f"advantage and length correlate by {d.length_correlation:+.2f}: it rewards "
            f"{direction} responses."
        )
    if abs(d.weight_length_correlation) >= NOTABLE_CORRELATION:
        which = "long" if d.weight_length_correlation > 0 else "short"
        yield (
            f"token weight and length correlate by {d.weight_length_correlation:+.2f}: a token "
            f"of a {which} response counts more."
        )
    flips = float(d.flipped.double().mean())
    if flips >= NOTABLE_SIGN_CHANGES:
        yield f"{flips:.0%} of the episodes are pushed the other way than by GRPO."
    if 0 < d.sample_size < NOTABLE_SAMPLE_SIZE:
        yield (
            f"few episodes carry the gradient: the effective sample size is {d.sample_size:.1%} "
            "of the episodes."
        )


def _stratum_warnings(recording: Recording) -> Iterator[str]:
    assert recording.stratum is not None
    strata = recording.group.within(recording.stratum)
    if strata.count == recording.group.count:
        yield "every group has one stratum only: it is the same as GRPO here."
    single = int((strata.size == 1).sum())
    if single:
        yield (
            f"{single} of {strata.count} strata have one episode, whose within-stratum "
            "advantage is 0."
        )


def _bnpo_warnings(normalizer: BNPO, recording: Recording) -> Iterator[str]:
    """Where the moments of the success rates fix no Beta density, or a group weighs too much."""
    flat = 0
    heaviest = (0.0, 0.0)
    for place in range(len(recording.steps)):
        inside = recording.group.any(recording.step_of_episode == place)
        counted = inside & (recording.group.size > 1) & recording.rate.isfinite()
        span = normalizer.max_value - normalizer.min_value
        rate = (recording.rate[counted] - normalizer.min_value) / span
        alpha, beta = beta_normalizer(rate)
        flat += int(alpha == 1 and beta == 1)
        live = rate[(rate > 0) & (rate < 1)]
        if len(live):
            density = torch.distributions.Beta(alpha, beta).log_prob(live)
            weight = (-density).exp().clamp(max=normalizer.max_weight)
            ratio = float(weight.max() / weight.median())
            heaviest = max(heaviest, (ratio, float(live[weight.argmax()])))
    if flat:
        yield (
            f"in {flat} of {len(recording.steps)} steps the moments of the success rates are out "
            "of range for a Beta density (rates equal, or spread to 0 and 1 only): "
            "alpha = beta = 1, which is REINFORCE with baseline."
        )
    if heaviest[0] >= NOTABLE_GROUP_WEIGHT:
        yield (
            f"a group with success rate {heaviest[1]:.3f} weighs {heaviest[0]:,.0f} times as much "
            "as the median group: lower normalizer.max_weight."
        )
