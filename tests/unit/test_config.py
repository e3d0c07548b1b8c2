"""Config files and overrides become the right typed values."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from rlnorm.config import Config, Precision
from rlnorm.config_loading import differences, load_config, save_config, to_plain
from rlnorm.errors import UserError
from tests.conftest import REPOSITORY

QUICKSTART = REPOSITORY / "configs" / "quickstart.yaml"


def test_numbers_that_yaml_takes_for_text(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(
        "model: {path: m}\ndata: {path: d}\nadvantage: {normalizer: {name: grpo}}\n"
        "learner: {lr: 1e-6, weight_decay: '1e-2', mini_batches: 1e0}\n"
        "trainer: {name: 010, trackers: []}\n"
    )
    config = load_config(path)
    assert config.learner.lr == 1e-6 and type(config.learner.lr) is float
    assert config.learner.weight_decay == 0.01
    assert config.learner.mini_batches == 1 and type(config.learner.mini_batches) is int
    config = load_config(
        path, ["learner.lr=1e-5", "trainer.steps=1e3", "trainer.name=1e3", "data.chat=false"]
    )
    assert config.learner.lr == 1e-5
    assert config.trainer.steps == 1000
    assert config.trainer.name == "1e3"
    assert config.data.chat is False
    assert load_config(path, ["trainer.name=010"]).trainer.name == "010"


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("data.chat=maybe", "data.chat is 'maybe', it must be true or false."),
        ("trainer.seed=null", "trainer.seed is null, it must be a whole number."),
        ("learner.dtype=float16", "learner.dtype is 'float16'; did you mean"),
        ("learner.lr=[1]", "learner.lr is [1], it must be a number."),
        ("trainer=3", "trainer is 3, it must be a section."),
        ("learner.lr.peak=1", "learner.lr is not a section"),
    ],
)
def test_wrong_types_name_their_key(override: str, sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        load_config(QUICKSTART, [override])
    assert sentence in str(caught.value)


def test_groups_are_found_from_anywhere(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "defaults: [{advantage: dr_grpo}, {model: tiny}, {data: addition}, "
        "{environment: exact_match}, _self_]\nlearner: {lr: 3e-4}\n"
    )
    config = load_config(path)
    assert config.advantage["normalizer"] == {"name": "dr_grpo"}
    assert config.learner.lr == 3e-4
    config = load_config(path, ["advantage=rloo", "advantage.aggregator.name=token_mean"])
    assert config.advantage["normalizer"] == {"name": "rloo"}
    assert config.trainer.name == "mine_advantage-rloo_name-token_mean"


def test_saved_config_repeats_the_run(tmp_path: Path) -> None:
    config = load_config(QUICKSTART, ["advantage=dr_grpo", "learner.dtype=bfloat16"])
    save_config(config, tmp_path / "config.yaml")
    again = load_config(tmp_path / "config.yaml")
    assert again == config
    assert again.learner.dtype is Precision.bfloat16
    other = load_config(tmp_path / "config.yaml", ["advantage=rloo"])
    assert other.advantage["normalizer"] == {"name": "rloo"}
    assert yaml.safe_load((tmp_path / "config.yaml").read_text()) == to_plain(config)


def test_what_may_change_when_a_run_goes_on() -> None:
    # its own figures: those of the shipped config are tuned, and no business of this test
    base = ["learner.lr=0.001", "trainer.steps=120"]
    saved = to_plain(load_config(QUICKSTART, base))
    same = [
        *base,
        "trainer.steps=500",
        "learner.ranks=2",
        "learner.zero_stage=3",
        "cluster.device=cpu",
    ]
    assert differences(saved, load_config(QUICKSTART, same)) == []
    changed = load_config(QUICKSTART, [*base, "advantage=rloo", "learner.lr=1.0"])
    assert differences(saved, changed) == [
        "advantage.aggregator.name: 'seq_mean_token_mean' there, 'token_mean' now",
        "advantage.normalizer.name: 'grpo' there, 'rloo' now",
        "learner.lr: 0.001 there, 1.0 now",
    ]
    # the schedule's length is part of the learning rate
    decaying = to_plain(load_config(QUICKSTART, [*base, "learner.schedule=linear"]))
    longer = load_config(QUICKSTART, [*base, "learner.schedule=linear", "trainer.steps=500"])
    assert differences(decaying, longer) == ["trainer.steps: 120 there, 500 now"]


@pytest.mark.parametrize("path", sorted((REPOSITORY / "configs").glob("*.yaml")), ids=str)
def test_shipped_configs_load(path: Path) -> None:
    assert isinstance(load_config(path), Config)


@pytest.mark.parametrize(
    "group", sorted((REPOSITORY / "configs" / "advantage").glob("*.yaml")), ids=lambda p: p.stem
)
def test_shipped_advantages_build(group: Path) -> None:
    from rlnorm.config_checks import build_pipeline

    build_pipeline(load_config(QUICKSTART, [f"advantage={group.stem}"]))


def test_secrets_stay_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "very-secret")
    save_config(load_config(QUICKSTART), tmp_path / "config.yaml")
    assert "very-secret" not in (tmp_path / "config.yaml").read_text()
