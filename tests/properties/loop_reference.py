"""The formulas of methods.md, Part 0, once more: plain Python loops in float64.

Written from the document and not from rlnorm: lists in, lists out, nothing shared. It is what
the vectorized code is held against on random batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

Rows = list[int]
NAN = float("nan")


def finite(value: float) -> bool:
    return math.isfinite(value)


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def std(values: Sequence[float], ddof: int) -> float:
    if len(values) <= ddof:
        return 0.0
    center = mean(values)
    return math.sqrt(math.fsum((v - center) ** 2 for v in values) / (len(values) - ddof))


def rows_by(keys: Sequence[Any]) -> dict[Any, Rows]:
    sets: dict[Any, Rows] = {}
    for row, key in enumerate(keys):
        sets.setdefault(key, []).append(row)
    return sets


def grpo(
    r: list[float],
    group: list[Any],
    mean_level: str = "group",
    std_level: str = "group",
    ddof: int = 1,
    eps: float = 1e-6,
    leave_one_out: bool = False,
) -> list[float]:
    sets = {"group": rows_by(group), "batch": {0: list(range(len(r)))}}
    out = []
    for i, value in enumerate(r):
        advantage, silent = value, False
        for level, use in ((mean_level, "mean"), (std_level, "std")):
            if level == "none":
                continue
            members = next(rows for rows in sets[level].values() if i in rows)
            values = [r[j] for j in members]
            silent |= max(values) == min(values)
            if silent:
                continue
            if use == "mean":
                others = [r[j] for j in members if j != i] if leave_one_out else values
                advantage = value - mean(others)
            else:
                advantage /= std(values, ddof) + eps
        out.append(0.0 if silent else advantage)
    return out


def whiten(r: list[float], length: list[float], ddof: int, eps: float) -> list[float]:
    counted = [v for v, n in zip(r, length, strict=True) if n > 0]
    tokens = math.fsum(length)
    if not counted or tokens <= ddof or max(counted) == min(counted):
        return [0.0] * len(r)
    center = math.fsum(n * v for v, n in zip(r, length, strict=True)) / tokens
    squares = math.fsum(n * (v - center) ** 2 for v, n in zip(r, length, strict=True))
    return [(v - center) / math.sqrt(squares / (tokens - ddof) + eps) for v in r]


def opo(r: list[float], group: list[Any], length: list[float]) -> list[float]:
    out = [0.0] * len(r)
    for rows in rows_by(group).values():
        tokens = sum(length[j] for j in rows)
        if tokens == 0 or len({r[j] for j in rows}) == 1:
            continue
        baseline = math.fsum(length[j] * r[j] for j in rows) / tokens
        for i in rows:
            out[i] = r[i] - baseline
    return out


def bnpo(r: list[float], group: list[Any], max_weight: float = 1e6) -> list[float]:
    sets = rows_by(group)
    rate = {g: mean([r[j] for j in rows]) for g, rows in sets.items()}
    several = [rate[g] for g, rows in sets.items() if len(rows) > 1]
    alpha = beta = 1.0
    if len(several) > 1:
        mu, v = mean(several), std(several, 1) ** 2
        if v > 1e-12 and 0 < mu < 1:
            c = mu * (1 - mu) / v - 1
            alpha, beta = max(1.0, 1 + c * mu / 3), max(1.0, 1 + c * (1 - mu) / 3)
    out = [0.0] * len(r)
    for g, rows in sets.items():
        if len({r[j] for j in rows}) == 1:
            continue
        p = rate[g]
        log_b = math.lgamma(alpha) + math.lgamma(beta) - math.lgamma(alpha + beta)
        log_f = (alpha - 1) * math.log(p) + (beta - 1) * math.log1p(-p) - log_b
        weight = max_weight if -log_f > math.log(max_weight) else math.exp(-log_f)
        for i in rows:
            out[i] = weight * (r[i] - p)
    return out


def maxrl(r: list[float], group: list[Any], eps: float = 1e-6) -> list[float]:
    out = [0.0] * len(r)
    for rows in rows_by(group).values():
        center = mean([r[j] for j in rows])
        if len({r[j] for j in rows}) > 1:
            for i in rows:
                out[i] = (r[i] - center) / (center + eps)
    return out


def passk(r: list[float], group: list[Any], k: int) -> list[float]:
    out = [0.0] * len(r)
    for rows in rows_by(group).values():
        n, c = len(rows), sum(r[j] >= 0.5 for j in rows)
        if c == 0 or n - c < k:
            continue
        rho = 1 - math.comb(n - c, k) / math.comb(n, k)
        s = math.sqrt(rho * (1 - rho)) + 1e-6
        for i in rows:
            wrong = 1 - rho - math.comb(n - c - 1, k - 1) / math.comb(n - 1, k - 1)
            out[i] = ((1 - rho) if r[i] >= 0.5 else wrong) / s
    return out


def stratified(
    r: list[float], group: list[Any], stratum: list[int], alpha: float = 0.8
) -> list[float]:
    inside = grpo(r, list(zip(group, stratum, strict=True)))
    return [alpha * a + (1 - alpha) * b for a, b in zip(inside, grpo(r, group), strict=True)]


def decomposed(
    named: list[list[float]],
    inner: Callable[[list[float]], list[float]],
    weights: list[float],
    combine: str,
    batch_norm: bool,
) -> list[float]:
    parts = [[w * a for a in inner(r)] for r, w in zip(named, weights, strict=True)]
    total = [math.fsum(values) for values in zip(*parts, strict=True)]
    if combine == "mean":
        total = [value / len(named) for value in total]
    return grpo(total, [], "batch", "batch") if batch_norm else total


def normalize(
    config: dict[str, Any],
    r: list[float],
    group: list[Any],
    length: list[float],
    stratum: list[int],
    named: dict[str, list[float]],
) -> list[float]:
    """Advantages of scored samples by the config of the normalizer."""
    settings = dict(config)
    name = settings.pop("name")
    if name == "reinforce":
        return list(r)
    if name == "reinforce_baseline":
        return grpo(r, group, settings.get("baseline", "group"), "none")
    if name in ("grpo", "dr_grpo", "rloo"):
        if name != "grpo":
            settings = {"std": "none", "leave_one_out": name == "rloo"}
        levels = settings.pop("mean", "group"), settings.pop("std", "group")
        return grpo(r, group, *levels, **settings)
    if name == "reinforce_pp":
        return whiten(r, length, settings.get("ddof", 1), 1e-8)
    if name == "reinforce_pp_baseline":
        return whiten(grpo(r, group, "group", "none"), length, settings.get("ddof", 1), 1e-8)
    if name == "opo":
        return opo(r, group, length)
    if name == "bnpo":
        return bnpo(r, group, **settings)
    if name == "maxrl":
        return maxrl(r, group)
    if name == "passk":
        return passk(r, group, **settings)
    if name == "stratified":
        return stratified(r, group, stratum, **settings)
    assert name == "decomposed"

    def inner(values: list[float]) -> list[float]:
        return normalize(settings["inner"], values, group, length, stratum, {})

    weights = settings.get("weights") or dict.fromkeys(named, 1.0)
    return decomposed(
        [named[n] for n in weights],
        inner,
        list(weights.values()),
        settings.get("combine", "mean"),
        settings.get("batch_norm", False),
    )


def factors(config: dict[str, Any], length: list[float], group: list[Any]) -> list[float]:
    """x_i of the episodes that count (all lengths above 0)."""
    n, norm = len(length), config.get("norm_length", 0)
    if config["name"] == "token_mean":
        return [1 / sum(length)] * n
    if config["name"] == "seq_mean_token_mean":
        return [1 / (n * v) for v in length]
    if config["name"] == "seq_mean_token_sum":
        return [1 / (n * norm)] * n
    if config["name"] == "delta_l":
        alpha = config.get("alpha", 0.75)
        total = math.fsum(v**-alpha for v in length)
        return [v**-alpha / (norm * total) for v in length]
    assert config["name"] == "prompt_mean"
    sets = rows_by(group)
    return [1 / (len(sets) * sum(length[j] for j in sets[g])) for g in group]


def hero(
    verifier: list[float],
    score: list[float],
    group: list[Any],
    alpha: float = 0.1,
    beta: float = 0.1,
    w_min: float = 0.4,
    w_max: float = 3.0,
    k: float = 6.0,
    sigma_bar: float | None = None,
    difficulty_weighting: bool = True,
) -> list[float]:
    out = [NAN] * len(score)
    sets = {
        g: [j for j in rows if finite(verifier[j]) and finite(score[j])]
        for g, rows in rows_by(group).items()
    }
    sigma = {g: std([score[j] for j in rows], 0) if rows else 0.0 for g, rows in sets.items()}
    center = mean(list(sigma.values())) if sigma_bar is None else sigma_bar
    for g, rows in sets.items():
        w = w_min + (w_max - w_min) / (1 + math.exp(-k * (sigma[g] - center)))
        for i in rows:
            alike = [score[j] for j in rows if (verifier[j] >= 0.5) == (verifier[i] >= 0.5)]
            place = (score[i] - min(alike)) / (max(alike) - min(alike) + 1e-6)
            low, width = (1 - beta, beta) if verifier[i] >= 0.5 else (-alpha, alpha)
            out[i] = (low + 2 * width * place) * (w if difficulty_weighting else 1.0)
    return out


def renorm(
    outcome: list[float],
    step_episode: Rows,
    step_end: list[int],
    step_reward: list[float],
    mode: str = "calibrated",
    beta: float = 1.0,
    invalid: str = "exclude",
    gamma: float = 1.0,
    credit: str = "step",
) -> list[float]:
    out = [NAN] * len(step_end)
    for episode, steps in rows_by(step_episode).items():
        steps = sorted(steps, key=lambda s: step_end[s])
        if not finite(outcome[episode]):
            continue
        for s in steps:
            process = step_reward[s]
            if not finite(process) and invalid == "zero":
                process = 0.0
            out[s] = process if mode == "sum" else process + outcome[episode] - beta
            if s == steps[-1]:
                out[s] = outcome[episode]
        if credit == "return_to_go":
            own = [out[s] for s in steps]
            for t, s in enumerate(steps):
                if finite(own[t]):
                    out[s] = math.fsum(
                        gamma ** (k - t) * own[k] for k in range(t, len(own)) if finite(own[k])
                    )
    return out
