"""The objective against methods.md's numbers (Part A, 3.2, 4, 5) and brute-force gradients."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from rlnorm.objective import (
    SURROGATES,
    ImportanceSampling,
    Objective,
    TokenBatch,
    cispo_surrogate,
    clipped_surrogate,
    gspo_surrogate,
    kl_penalty,
)

RATIOS = torch.tensor([0.5, 0.9, 1.0, 1.25, 1.3, 4.0], dtype=torch.float64)
# deltas old - rollout of section 5's three episodes, tokens flat
DELTAS = torch.tensor([0.1, 0.9, -0.2, 0.01, -0.02, 0.0, -1.5, 0.3, -0.4], dtype=torch.float64)
EPISODE = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2])


def close(got: Tensor, want: list[float], digits: float = 6e-7) -> None:
    torch.testing.assert_close(
        got.detach(), torch.tensor(want, dtype=got.dtype), rtol=0.0, atol=digits
    )


@pytest.mark.parametrize(
    ("advantage", "clip_high", "dual_clip", "loss"),
    [
        (1.0, 0.2, None, [-0.5, -0.9, -1.0, -1.2, -1.2, -1.2]),
        (1.0, 0.28, None, [-0.5, -0.9, -1.0, -1.25, -1.28, -1.28]),
        (-1.0, 0.2, None, [0.8, 0.9, 1.0, 1.25, 1.3, 4.0]),
        (-1.0, 0.2, 3.0, [0.8, 0.9, 1.0, 1.25, 1.3, 3.0]),
        (1.0, 0.2, 3.0, [-0.5, -0.9, -1.0, -1.2, -1.2, -1.2]),
    ],
)
def test_clipped_values(
    advantage: float, clip_high: float, dual_clip: float | None, loss: list[float]
) -> None:
    weight = torch.full_like(RATIOS, advantage)
    terms, _ = clipped_surrogate(
        RATIOS.log(), torch.zeros_like(RATIOS), weight, 0.2, clip_high, dual_clip
    )
    close(-terms, loss)


def test_clipped_takes_the_gradient_where_it_says() -> None:
    for advantage in (1.0, -1.0):
        logprob = RATIOS.log().requires_grad_()
        weight = torch.full_like(RATIOS, advantage)
        terms, stopped = clipped_surrogate(logprob, torch.zeros_like(RATIOS), weight, 0.2, 0.2, 3.0)
        (gradient,) = torch.autograd.grad(terms.sum(), logprob)
        assert torch.equal(gradient == 0, stopped)
        close(gradient[~stopped], (RATIOS * advantage)[~stopped].tolist())


@pytest.mark.parametrize(("advantage", "loss"), [(1.0, -1.0004), (-1.0, 1.051271)])
def test_gspo_values(advantage: float, loss: float) -> None:
    logprob = torch.tensor([0.1, -0.05, 0.02, 0.13], dtype=torch.float64)
    terms, _ = gspo_surrogate(
        logprob,
        torch.zeros(4, dtype=torch.float64),
        torch.full((4,), advantage, dtype=torch.float64),
        torch.zeros(4, dtype=torch.long),
        3e-4,
        4e-4,
    )
    close(-terms, [loss] * 4)


def test_gspo_gradient_is_that_of_the_sequence_ratio() -> None:
    """Two interleaved episodes, against the paper's sequence form by autograd."""
    torch.manual_seed(0)
    episode = torch.tensor([0, 1, 0, 1, 1, 0, 1])
    logprob = torch.randn(7, dtype=torch.float64).requires_grad_()
    old = (logprob + 0.1 * torch.randn(7)).detach()
    advantage = torch.tensor([0.7, -1.3], dtype=torch.float64)
    length = torch.bincount(episode)
    weight = (advantage / length)[episode]
    terms, _ = gspo_surrogate(logprob, old, weight, episode, 10.0, 10.0)
    (got,) = torch.autograd.grad(terms.sum(), logprob)
    loss = torch.zeros((), dtype=torch.float64)
    for number in range(2):
        of = episode == number
        loss = loss + advantage[number] * torch.exp((logprob - old)[of].mean())
    (want,) = torch.autograd.grad(loss, logprob)
    torch.testing.assert_close(got, want)


def test_cispo_values_and_gradient() -> None:
    for low, high, weights in (
        (0.2, 0.2, [0.8, 0.9, 1.0, 1.2, 1.2, 1.2]),  # verl's defaults
        (1.0, 4.0, RATIOS.tolist()),  # no lower bound, cap 5 as ScaleRL
    ):
        logprob = RATIOS.log().requires_grad_()
        terms, _ = cispo_surrogate(
            logprob, torch.zeros_like(RATIOS), torch.full_like(RATIOS, -0.5), low, high
        )
        (gradient,) = torch.autograd.grad(terms.sum(), logprob)
        close(gradient, [-0.5 * w for w in weights])
        close(terms, (-0.5 * torch.tensor(weights, dtype=torch.float64) * RATIOS.log()).tolist())


@pytest.mark.parametrize(("estimator", "value"), [("k1", 0.2), ("k2", 0.02), ("k3", 0.018730753)])
def test_kl_values(estimator: str, value: float) -> None:
    got = kl_penalty(
        torch.tensor([-1.0], dtype=torch.float64),
        torch.tensor([-1.2], dtype=torch.float64),
        estimator,
    )
    close(got, [value], digits=5e-10)


def test_k2_has_the_gradient_of_the_kl() -> None:
    """E over the policy of k2's gradient = the KL's gradient, summed over a small vocabulary."""
    torch.manual_seed(0)
    logits = torch.randn(5, dtype=torch.float64).requires_grad_()
    reference = torch.randn(5, dtype=torch.float64).log_softmax(0)
    logprob = logits.log_softmax(0)
    kl = (logprob.exp() * (logprob - reference)).sum()
    (want,) = torch.autograd.grad(kl, logits, retain_graph=True)
    surrogate = (logprob.exp().detach() * kl_penalty(logprob, reference, "k2")).sum()
    (got,) = torch.autograd.grad(surrogate, logits)
    torch.testing.assert_close(got, want)
    for estimator in ("k1", "k3"):
        value = (logprob.exp() * kl_penalty(logprob, reference, estimator)).sum()
        torch.testing.assert_close(value, kl)


@pytest.mark.parametrize(
    ("correction", "want"),
    [
        (
            ImportanceSampling("token", 2.0),
            [1.105171, 2.0, 0.818731, 1.010050, 0.980199, 1.0, 0.223130, 1.349859, 0.670320],
        ),
        (
            ImportanceSampling("token", 5.0, "mask", 0.5),
            [1.105171, 2.459603, 0.818731, 1.010050, 0.980199, 1.0, 0.0, 1.349859, 0.670320],
        ),
        (
            ImportanceSampling("token", 5.0, "truncate", 0.5),
            [1.105171, 2.459603, 0.818731, 1.010050, 0.980199, 1.0, 0.5, 1.349859, 0.670320],
        ),
        (ImportanceSampling("sequence", 2.0), [2.0] * 3 + [0.990050] * 3 + [0.201897] * 3),
        (
            ImportanceSampling("sequence", 3.0, "mask"),
            [2.225541] * 3 + [0.990050] * 3 + [0.201897] * 3,
        ),
        (
            ImportanceSampling("sequence", 2.0, "mask", 0.5),
            [0.0] * 3 + [0.990050] * 3 + [0.0] * 3,
        ),
        (ImportanceSampling(), [1.0] * 9),
    ],
)
def test_importance_sampling_table(correction: ImportanceSampling, want: list[float]) -> None:
    got = correction(DELTAS - 3.0, torch.full_like(DELTAS, -3.0), EPISODE)
    close(got, want)


def test_importance_sampling_survives_a_huge_gap() -> None:
    old, rollout = torch.zeros(2), torch.tensor([-500.0, 500.0])
    episode = torch.tensor([0, 1])
    for level in ("token", "sequence"):
        truncated = ImportanceSampling(level, 2.0)(old, rollout, episode)  # type: ignore[arg-type]
        assert truncated.tolist() == [2.0, 0.0]
        masked = ImportanceSampling(level, 2.0, "mask", 0.5)(  # type: ignore[arg-type]
            old, rollout, episode
        )
        assert masked.tolist() == [0.0, 0.0]


def tokens(old: bool) -> TokenBatch:
    torch.manual_seed(1)
    logprob = -torch.rand(9, dtype=torch.float64)
    shifted = logprob + 0.2 * torch.randn(9, dtype=torch.float64)
    return TokenBatch(
        logprob=logprob.requires_grad_(),
        entropy=torch.ones(9, dtype=torch.float64),
        old_logprob=shifted if old else None,
        rollout_logprob=shifted - DELTAS,
        reference_logprob=-torch.rand(9, dtype=torch.float64),
        weight=torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)[EPISODE],
        factor=torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)[EPISODE],
        episode=EPISODE,
    )


@pytest.mark.parametrize("surrogate", SURROGATES)
def test_single_update_has_the_policy_gradient(surrogate: str) -> None:
    """Without old log-probs the ratio is 1: every surrogate's gradient is weight * grad logprob,
    whatever its clip."""
    batch = tokens(old=False)
    loss, sums = Objective(surrogate=surrogate, clip_low=3e-4, clip_high=4e-4)(batch)
    (gradient,) = torch.autograd.grad(loss, batch.logprob)
    torch.testing.assert_close(gradient, -batch.weight)
    assert float(sums["clip_frac"]) == 0
    assert float(sums["ratio"]) == 9


@pytest.mark.parametrize("surrogate", SURROGATES)
def test_objective_against_a_loop(surrogate: str) -> None:
    """Loss and gradient against a loop over tokens, written from the formulas."""
    batch = tokens(old=True)
    objective = Objective(
        clip_low=0.1,
        clip_high=0.15,
        kl_coef=0.3,
        kl="k3",
        importance_sampling=ImportanceSampling("sequence", 2.0, "mask", 0.1),
        surrogate=surrogate,
        dual_clip=1.2,
    )
    assert batch.old_logprob is not None and batch.reference_logprob is not None
    loss, _ = objective(batch)
    (got,) = torch.autograd.grad(loss, batch.logprob)

    def bounded(ratio: Tensor, weight: Tensor) -> Tensor:
        term = torch.minimum(ratio * weight, ratio.clamp(0.9, 1.15) * weight)
        return torch.maximum(term, 1.2 * weight) if weight < 0 else term

    want_loss = torch.zeros((), dtype=torch.float64)
    for number in range(3):
        rows = (batch.episode == number).nonzero().flatten()
        log_ratio = batch.logprob[rows] - batch.old_logprob[rows]
        gap = float((batch.old_logprob - batch.rollout_logprob)[rows].sum())
        correction = math.exp(gap) if 0.1 <= math.exp(gap) <= 2.0 else 0.0
        for place, row in enumerate(rows):
            weight = batch.weight[row]
            if surrogate == "clipped":
                term = bounded(log_ratio[place].exp(), weight)
            elif surrogate == "gspo":
                term = bounded(log_ratio.mean().exp(), weight)
            elif surrogate == "cispo":
                kept = min(max(float(log_ratio[place].detach().exp()), 0.9), 1.15)
                term = kept * weight * batch.logprob[row]
            else:
                term = weight * batch.logprob[row]
            difference = batch.logprob[row] - batch.reference_logprob[row]
            k3 = torch.exp(-difference) - 1 + difference
            want_loss = want_loss - correction * term + 0.3 * batch.factor[row] * k3
    (want,) = torch.autograd.grad(want_loss, batch.logprob)
    torch.testing.assert_close(loss, want_loss)
    torch.testing.assert_close(got, want)


def test_refusals() -> None:
    for settings in ({"surrogate": "gpso"}, {"kl": "k4"}, {"dual_clip": 0.5}):
        with pytest.raises(ValueError, match=f"objective.{next(iter(settings))}"):
            Objective(**settings)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="floor"):
        ImportanceSampling("token", cap=0.5, floor=1.0)
    with pytest.raises(ValueError, match="mode"):
        ImportanceSampling("token", mode="drop")  # type: ignore[arg-type]
