"""Time of a pipeline call on one core: 65,536 episodes in 4,096 groups, every normalizer.

    python tests/bench/bench_normalizers.py [results.json]

The limit of 20 ms each is on the least of the repeats, the time that the work takes when nobody
else has the core, its caches and its memory; the median is printed beside it, and is up to twice
that on a busy machine. The ratio (of medians) is that of a plain Python loop over
the groups to the vectorized call, for GRPO, on the same numbers; the loop does torch operations
per group, as verl's published one does.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from rlnorm.advantage import NORMALIZERS, AdvantagePipeline, RewardBatch

EPISODES, GROUPS, LIMIT_MS, REPEATS = 65_536, 4_096, 20.0, 25

SETTINGS: dict[str, dict[str, Any]] = {
    "passk": {"k": 4},
    "decomposed": {"inner": {"name": "grpo"}, "combine": "sum", "batch_norm": True},
}
VARIANTS: dict[str, dict[str, Any]] = {
    "grpo (LitePPO)": {"name": "grpo", "std": "batch"},
    "decomposed (bnpo)": {"name": "decomposed", "inner": {"name": "bnpo"}},
}
SHAPINGS: dict[str, dict[str, Any]] = {
    "hero, dr_grpo": {"shaping": [{"name": "hero", "reward_model": "format"}]},
    "renorm, dr_grpo": {
        "shaping": [{"name": "renorm", "outcome": "verifier"}],
        "credit": "return_to_go",
    },
}


def batch(sparse_ids: bool) -> RewardBatch:
    """Shuffled groups of 16, binary and unit rewards, three steps an episode."""
    draw = torch.Generator().manual_seed(0)
    group = torch.arange(GROUPS).repeat_interleave(EPISODES // GROUPS)
    group = group[torch.randperm(EPISODES, generator=draw)]
    if sparse_ids:
        group = torch.randint(-(2**62), 2**62, (GROUPS,), generator=draw)[group]
    step_episode = torch.arange(EPISODES).repeat_interleave(3)
    return RewardBatch(
        group=group,
        rewards={
            "verifier": (torch.rand(EPISODES, generator=draw) < 0.5).float(),
            "format": torch.rand(EPISODES, generator=draw),
        },
        length=torch.randint(0, 32_769, (EPISODES,), generator=draw),
        stratum=torch.randint(0, 4, (EPISODES,), generator=draw),
        step_episode=step_episode,
        step_end=torch.tensor([1, 2, 3]).repeat(EPISODES),
        step_reward=torch.rand(3 * EPISODES, generator=draw),
    )


def fresh(data: RewardBatch) -> RewardBatch:
    """The same tensors in a batch that has cached nothing."""
    fields = ("group", "rewards", "length", "stratum", "step_episode", "step_end", "step_reward")
    return RewardBatch(**{name: getattr(data, name) for name in fields})


def milliseconds(call: Callable[[], Any], repeats: int = REPEATS) -> tuple[float, float]:
    """Median and least time of a call on the clock, after two that warm up."""
    for _ in range(min(2, repeats)):
        call()
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - begun))
    return statistics.median(times), min(times)


def grpo_loop(group: torch.Tensor, reward: torch.Tensor) -> torch.Tensor:
    """GRPO as a loop over episodes into lists and over groups, as trainers publish it."""
    members: dict[int, list[int]] = {}
    for row, label in enumerate(group.tolist()):
        members.setdefault(label, []).append(row)
    advantage = torch.zeros_like(reward)
    for rows in members.values():
        values = reward[rows]
        advantage[rows] = (values - values.mean()) / (values.std() + 1e-6)
    return advantage


def main() -> int:
    """Print the table, write it as JSON where asked; 1 if a normalizer is over the limit."""
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    configs = {n: {"normalizer": {"name": n, **SETTINGS.get(n, {})}} for n in NORMALIZERS.names()}
    configs |= {label: {"normalizer": normalizer} for label, normalizer in VARIANTS.items()}
    for ids, data in (("dense", batch(False)), ("sparse", batch(True))):
        for label, config in configs.items():
            named = label.startswith("decomposed")
            shaping = {} if named else {"shaping": [{"name": "sum", "weights": {"verifier": 1.0}}]}
            rows.append(_measured(label, ids, {**shaping, **config}, data))
        for label, shaping in SHAPINGS.items():
            rows.append(_measured(label, ids, {**shaping, "normalizer": {"name": "dr_grpo"}}, data))
    print(f"{EPISODES} episodes, {GROUPS} groups, one thread, float32 in; milliseconds\n")
    print(f"{'normalizer':28}{'ids':8}{'median':>8}{'least':>8}")
    for row in rows:
        late = "  over the limit" if row["least_ms"] > LIMIT_MS and row["limited"] else ""
        print(f"{row['label']:28}{row['ids']:8}{row['median_ms']:8.2f}{row['least_ms']:8.2f}{late}")
    data = batch(False)
    loop, _ = milliseconds(lambda: grpo_loop(data.group, data.rewards["verifier"]), repeats=3)
    vectorized = next(row for row in rows if row["label"] == "grpo")["median_ms"]
    print(f"\ngrpo as a Python loop: {loop:.0f} ms, {loop / vectorized:.0f} times the pipeline")
    if len(sys.argv) > 1:
        result = {"rows": rows, "grpo_loop_ms": loop, "grpo_loop_ratio": loop / vectorized}
        with open(sys.argv[1], "w") as file:
            json.dump(result, file, indent=1)
    return int(any(row["limited"] and row["least_ms"] > LIMIT_MS for row in rows))


def _measured(label: str, ids: str, config: dict[str, Any], data: RewardBatch) -> dict[str, Any]:
    pipeline = AdvantagePipeline.from_config(
        {**config, "aggregator": {"name": "delta_l", "norm_length": 32_768}}
    )
    median, least = milliseconds(lambda: pipeline(fresh(data)))
    return {
        "label": label,
        "ids": ids,
        "median_ms": median,
        "least_ms": least,
        # the limit is of the normalizers; shapings are listed beside them
        "limited": label not in SHAPINGS,
    }


if __name__ == "__main__":
    sys.exit(main())
