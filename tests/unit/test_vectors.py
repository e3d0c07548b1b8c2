"""The independently computed numbers of shared/vectors, case by case."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from rlnorm.advantage import AGGREGATORS, NORMALIZERS, SHAPINGS, AdvantagePipeline, RewardBatch

VECTORS = Path(__file__).resolve().parents[3] / "shared" / "vectors"


def _cases() -> list[Any]:
    """Every case whose methods this version has; the README lists what it has."""
    cases = []
    for path in sorted(VECTORS.glob("*.json")):
        for number, case in enumerate(json.loads(path.read_text())):
            config = case["config"]
            stages = [(SHAPINGS, stage) for stage in config.get("shaping", [])]
            stages += [(NORMALIZERS, config["normalizer"]), (AGGREGATORS, config["aggregator"])]
            if all(stage["name"] in registry.names() for registry, stage in stages):
                cases.append(pytest.param(case, id=f"{path.stem}-{number}"))
    return cases


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
    assert len(_cases()) >= 30, f"few or no vectors under {VECTORS}"


@pytest.mark.parametrize("case", _cases())
def test_vector(case: dict[str, Any]) -> None:
    out = AdvantagePipeline.from_config(case["config"])(reward_batch(case["batch"]))
    for name in ("advantage", "weight"):
        want = torch.tensor(case["expected"][name], dtype=torch.float64)
        scale = max(1.0, float(want.abs().max()))
        torch.testing.assert_close(
            getattr(out, name).double(), want, rtol=case["rtol"], atol=case["atol"] * scale
        )
