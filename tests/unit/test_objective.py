"""The objective's terms against numbers worked out by hand (methods.md, part A)."""

from __future__ import annotations

import math

import pytest
import torch

from rlnorm.objective import (
    ImportanceSampling,
    Objective,
    TokenBatch,
    clipped_surrogate,
    kl_penalty,
)

RATIOS = torch.tensor([0.5, 0.9, 1.0, 1.25, 1.3, 4.0], dtype=torch.float64)


@pytest.mark.parametrize(
    ("advantage", "high", "want"),
    [
        (1.0, 0.2, [0.5, 0.9, 1.0, 1.2, 1.2, 1.2]),
        (1.0, 0.28, [0.5, 0.9, 1.0, 1.25, 1.28, 1.28]),
        (-1.0, 0.2, [-0.8, -0.9, -1.0, -1.25, -1.3, -4.0]),
    ],
)
def test_clipped_surrogate(advantage: float, high: float, want: list[float]) -> None:
    weight = torch.full_like(RATIOS, advantage)
    terms, clipped = clipped_surrogate(RATIOS.log(), torch.zeros_like(RATIOS), weight, 0.2, high)
    torch.testing.assert_close(terms, torch.tensor(want, dtype=torch.float64))
    assert clipped.tolist() == [
        abs(t - r * advantage) > 1e-9 for t, r in zip(want, RATIOS, strict=True)
    ]


def test_clip_takes_the_gradient_away() -> None:
    logprob = torch.tensor([0.5, -0.5, 0.1], requires_grad=True)
    weight = torch.tensor([1.0, -1.0, 2.0])
    clipped_surrogate(logprob, torch.zeros(3), weight, 0.2, 0.2)[0].sum().backward()
    assert logprob.grad is not None
    torch.testing.assert_close(logprob.grad, torch.tensor([0.0, 0.0, 2.0 * math.exp(0.1)]))


@pytest.mark.parametrize(("name", "want"), [("k1", 0.2), ("k2", 0.02), ("k3", 0.018730753)])
def test_kl(name: str, want: float) -> None:
    found = kl_penalty(torch.tensor([-1.0]), torch.tensor([-1.2]), name)
    assert float(found) == pytest.approx(want, rel=1e-5)


def test_importance_sampling() -> None:
    """The table of methods.md, part A 5: three episodes of three tokens."""
    deltas = torch.tensor([0.1, 0.9, -0.2, 0.01, -0.02, 0.0, -1.5, 0.3, -0.4], dtype=torch.float64)
    episode = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2])
    zero = torch.zeros_like(deltas)
    token = ImportanceSampling("token", cap=2.0)(deltas, zero, episode)
    want = [1.105171, 2.0, 0.818731, 1.010050, 0.980199, 1.0, 0.223130, 1.349859, 0.670320]
    torch.testing.assert_close(token, torch.tensor(want, dtype=torch.float64), rtol=1e-5, atol=0)
    sequence = ImportanceSampling("sequence", cap=2.0)(deltas, zero, episode)
    want = [2.0] * 3 + [0.990050] * 3 + [0.201897] * 3
    torch.testing.assert_close(sequence, torch.tensor(want, dtype=torch.float64), rtol=1e-5, atol=0)
    assert torch.equal(ImportanceSampling()(deltas, zero, episode), torch.ones_like(deltas))


def test_whole_objective() -> None:
    """-sum weight * is * surrogate + kl_coef * sum factor * KL, gradient by hand on-policy."""
    logprob = torch.tensor([-1.0, -2.0, -0.5], dtype=torch.float64, requires_grad=True)
    rollout = torch.tensor([-1.1, -2.0, -3.0], dtype=torch.float64)
    reference = torch.tensor([-1.2, -2.0, -0.4], dtype=torch.float64)
    weight = torch.tensor([0.3, -0.2, 0.1], dtype=torch.float64)
    factor = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
    objective = Objective(
        kl_coef=0.1, kl="k2", importance_sampling=ImportanceSampling("token", cap=2.0)
    )
    loss, sums = objective(
        TokenBatch(
            logprob=logprob,
            entropy=torch.ones(3, dtype=torch.float64),
            old_logprob=None,
            rollout_logprob=rollout,
            reference_logprob=reference,
            weight=weight,
            factor=factor,
            episode=torch.tensor([0, 0, 1]),
        )
    )
    importance = torch.tensor([math.exp(0.1), 1.0, 2.0], dtype=torch.float64)
    difference = torch.tensor([0.2, 0.0, -0.1], dtype=torch.float64)
    want = -(weight * importance).sum() + 0.1 * (factor * difference**2 / 2).sum()
    torch.testing.assert_close(loss.detach(), want)
    loss.backward()
    assert logprob.grad is not None
    torch.testing.assert_close(logprob.grad, -weight * importance + 0.1 * factor * difference)
    assert float(sums["tokens"]) == 3 and float(sums["rollout_gap_max"]) == pytest.approx(2.5)
    assert float(sums["kl"]) == pytest.approx(0.02 + 0.005)
