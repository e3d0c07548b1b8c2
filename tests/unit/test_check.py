"""Broken configs are refused with the right sentence and exit code 2, before anything starts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rlnorm import cli
from tests.conftest import REPOSITORY

Check = Callable[..., tuple[int, str, str]]


@pytest.fixture
def check(tiny: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Check:
    """`rlnorm check` in this process: exit code, standard output, error output."""

    def run(*overrides: str, config: Path | None = None) -> tuple[int, str, str]:
        arguments = [
            "rlnorm",
            "check",
            str(config or REPOSITORY / "configs" / "quickstart.yaml"),
            f"model.path={tiny / 'model'}",
            f"data.path={tiny / 'train.jsonl'}",
            f"data.eval_path={tiny / 'test.jsonl'}",
            *overrides,
        ]
        monkeypatch.setattr("sys.argv", arguments)
        code = 0
        try:
            cli.main()
        except SystemExit as end:
            code = int(end.code or 0)
        captured = capsys.readouterr()
        return code, " ".join(captured.out.split()), captured.err.strip()

    return run


def test_good_config_prints_the_arithmetic(check: Check) -> None:
    code, out, err = check("learner.mini_batches=4", "learner.epochs=2", "learner.lr=1e-6")
    assert (code, err) == (0, "")
    assert "64 prompts x 16 samples = 1024 episodes of at most 24 tokens" in out
    assert "4 mini-batches x 2 epochs = 8 optimizer steps of 256 episodes" in out
    assert "2300 prompts to train on, 200 to evaluate on" in out
    assert "nothing was started" in out


BROKEN = {
    "unknown key": (["learner.learning_rate=1"], "learner.learning_rate is not a config key"),
    "nearest key": (["trainer.stepz=1"], "did you mean trainer.steps?"),
    "key of another section": (["lr=1"], "did you mean learner.lr?"),
    "unknown group": (["advantage=gpro"], "advantage is 'gpro', and there is no such config; did"),
    "unknown normalizer": (
        ["advantage.normalizer.name=grop"],
        "normalizer.name 'grop' is not known; did you mean 'grpo'?",
    ),
    "unknown setting": (
        ["advantage.normalizer.epss=1"],
        "advantage.normalizer.epss is not a setting of 'grpo'; did you mean 'eps'?",
    ),
    "not a number": (["learner.lr=fast"], "learner.lr is 'fast', it must be a number."),
    "not whole": (["trainer.steps=1.5"], "trainer.steps is 1.5, it must be a whole number."),
    "out of range": (["learner.lr=-1"], "learner.lr is -1.0, it must be above 0."),
    "does not divide": (
        ["learner.mini_batches=3"],
        "learner.mini_batches is 3 and does not divide trainer.prompts_per_step 64; 2 would.",
    ),
    "too many ranks": (
        ["learner.ranks=17", "trainer.prompts_per_step=1"],
        "learner.ranks is 17, and a mini-batch has only 16 episodes",
    ),
    "temperature 0": (["rollout.temperature=0"], "rollout.temperature is 0.0; training must"),
    "top_p": (["rollout.top_p=0.9"], "rollout.allow_truncated_sampling=true"),
    "one sample": (["rollout.samples_per_prompt=1"], "needs at least 2."),
    "context": (["rollout.max_response_length=250"], "266 tokens, and the model's context is 256."),
    "no such model": (["model.path=./nowhere"], "model.path is './nowhere', and there is no such"),
    "no such file": (["data.path=nothing.jsonl"], "data.path is 'nothing.jsonl', and there is no"),
    "column": (
        ["data.prompt_column=text"],
        "data.prompt_column is 'text', and",
    ),
    "all too long": (
        ["data.max_prompt_length=3"],
        "data.max_prompt_length is 3 tokens, and all",
    ),
    "reward": (
        ["environment.rewards.verifier.name=maths"],
        "environment.rewards.verifier: reward.name 'maths' is not known; did you mean 'math'?",
    ),
    "accuracy": (["environment.accuracy=score"], "environment.accuracy is 'score', and"),
    "weights": (
        ["advantage.shaping=[{name: sum, weights: {scores: 1}}]"],
        "advantage.shaping[0].weights.scores: environment.rewards has only verifier.",
    ),
    "not an override": (["learner.lr"], "is not of the form key=value"),
    "no key": (["=3"], "The override '=3' is not of the form key=value."),
    "open bracket": (["learner.lr=[1"], "learner.lr is '[1', it must be a number."),
    "unicode": (["data.path=/tmp/josé/x y.jsonl"], "data.path is '/tmp/josé/x y.jsonl', and there"),
    "file as model": ([f"model.path={__file__}"], "which is a file; it must be a model's folder."),
    "name alone": (["advantage.normalizer=grpo"], "write normalizer.name=grpo."),
    "not writable": (["trainer.output_dir=/proc/x"], "nothing can be written in /proc."),
    "micro-batch": (
        ["learner.micro_batch_tokens=10"],
        "one episode can have 24 tokens",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_config(name: str, check: Check) -> None:
    overrides, sentence = BROKEN[name]
    code, _, err = check(*overrides)
    assert code == 2
    assert sentence in err
    assert len(err.splitlines()) == 1 and "Traceback" not in err


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ([], "has no rows."),
        (['{"problem": "1+1=", "answer": null}'], "Row 0 of"),
        (['{"problem": "1+1=", "answer": "2"}', '{"problem": "x"'], "line 2 is not JSON"),
        (['{"text": "1+1="}'], "has none of problem, question, prompt; it has text."),
    ],
)
def test_broken_data(lines: list[str], sentence: str, check: Check, tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text("\n".join(lines))
    code, _, err = check(f"data.path={path}")
    assert code == 2 and sentence in err and len(err.splitlines()) == 1


def test_bad_rows_are_skipped_and_counted_where_the_config_says_so(
    check: Check, tmp_path: Path
) -> None:
    path = tmp_path / "some.jsonl"
    rows = ['\ufeff{"problem": "1+1=", "answer": 2}', "", '{"problem": null, "answer": "1"}']
    rows += ['{"problem": "' + "9" * 40 + '+1=", "answer": "3"}']
    path.write_text("\n".join(rows), encoding="utf-8")
    code, out, _ = check(f"data.path={path}", "data.bad_rows=skip", "trainer.prompts_per_step=1")
    assert code == 0
    assert "data.path: 1 prompts longer than the limit were dropped." in out
    assert "data.path: 1 rows without prompt or answer were skipped." in out
    assert "1 prompts to train on" in out


def test_unreadable_gold_is_a_data_error(check: Check, tmp_path: Path) -> None:
    path = tmp_path / "gold.jsonl"
    path.write_text('{"problem": "1+1=", "answer": "2"}\n{"problem": "2", "answer": "\\\\frac{"}\n')
    code, _, err = check(f"data.path={path}", "environment=math")
    assert code == 2 and "Row 1 of" in err and "cannot read the gold answer" in err


def test_tokenizers_without_what_is_needed(check: Check, tiny: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny / "model", folder)
    (folder / "chat_template.jinja").unlink()
    code, _, err = check(f"model.path={folder}")
    assert code == 2 and "no chat template; set data.chat=false" in err
    assert check(f"model.path={folder}", "data.chat=false")[0] == 0
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    # no pad token is needed: padding is by length
    del settings["pad_token"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    assert check(f"model.path={folder}", "data.chat=false")[0] == 0
    del settings["eos_token"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    code, _, err = check(f"model.path={folder}", "data.chat=false")
    assert code == 2 and "no end-of-sequence token" in err
    for file in folder.glob("tokenizer*"):
        file.unlink()
    code, _, err = check(f"model.path={folder}")
    assert code == 2 and "no tokenizer can be loaded from it" in err


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["advantage=stratified"], "counts nothing that could be a stratum."),
        (["advantage=renorm"], "has no process rewards."),
        (["advantage=hero"], "advantage needs a reward named 'reward_model', and"),
        (["objective.surrogate=ppo"], "objective.surrogate is 'ppo'; it can be cispo, clipped,"),
        (["objective.dual_clip=0.5"], "objective.dual_clip is 0.5, it must be above 1."),
        (["objective.importance_floor=3"], "floor is 3.0 and cap 2.0"),
    ],
)
def test_what_the_environment_must_give(overrides: list[str], sentence: str, check: Check) -> None:
    code, _, err = check(*overrides)
    assert code == 2 and sentence in err and len(err.splitlines()) == 1


def test_hero_under_a_std_normalizer_is_warned_of(check: Check) -> None:
    rewards = "environment.rewards={verifier: {name: math}, reward_model: {name: exact_match}}"
    settings = ["advantage=hero", "advantage.normalizer.name=grpo", rewards]
    code, out, _ = check(*settings)
    assert code == 0 and "warning: shaping 'hero' multiplies every reward of a group" in out
