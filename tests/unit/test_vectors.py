"""The independently computed numbers of shared/vectors, every case of every file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from rlnorm.advantage import AGGREGATORS, NORMALIZERS, SHAPINGS, AdvantagePipeline, RewardBatch

VECTORS = Path(__file__).resolve().parents[3] / "shared" / "vectors"
FILES = sorted(VECTORS.glob("*.json"))
CASES = {path.stem: json.loads(path.read_text()) for path in FILES}


def reward_batch(fields: dict[str, Any]) -> RewardBatch:
    """A RewardBatch from a vector's lists; null is an unscored reward."""

    def floats(values: list[float | None]) -> torch.Tensor:
        return torch.tensor([float("nan") if v is None else v for v in values], dtype=torch.float64)

    optional: dict[str, torch.Tensor] = {}
    for name in ("stratum", "truncated", "step_episode", "step_end"):
        if fields.get(name) is not None:
            optional[name] = torch.tensor(fields[name])
    if fields.get("step_reward") is not None:
        optional["step_reward"] = floats(fields["step_reward"])
    return RewardBatch(
        group=torch.tensor(fields["group"]),
        rewards={name: floats(values) for name, values in fields["rewards"].items()},
        length=torch.tensor(fields["length"]),
        **optional,
    )


def test_vectors_are_there() -> None:
    assert FILES, f"no vectors under {VECTORS}"
    assert all(CASES.values()), "a file of vectors without a case"


def test_vectors_cover_every_method() -> None:
    """What the vectors do not name has been checked against nothing independent."""
    used = {"shaping": set(), "normalizer": set(), "aggregator": set()}
    for cases in CASES.values():
        for case in cases:
            for kind, names in used.items():
                stages = case["config"].get(kind, [])
                stages = stages if isinstance(stages, list) else [stages]
                names.update(stage["name"] for stage in stages)
    registries = {"shaping": SHAPINGS, "normalizer": NORMALIZERS, "aggregator": AGGREGATORS}
    for kind, registry in registries.items():
        ours = {n for n in registry.names() if registry.resolve(n).__module__.startswith("rlnorm.")}
        assert used[kind] == ours, kind


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=f"{stem}-{number}")
        for stem, cases in CASES.items()
        for number, case in enumerate(cases)
    ],
)
def test_vector(case: dict[str, Any]) -> None:
    out = AdvantagePipeline.from_config(case["config"])(reward_batch(case["batch"]))
    for name in ("advantage", "weight"):
        want = torch.tensor(case["expected"][name], dtype=torch.float64)
        scale = max(1.0, float(want.abs().max()))
        torch.testing.assert_close(
            getattr(out, name).double(), want, rtol=case["rtol"], atol=case["atol"] * scale
        )
