"""rlnorm's pipeline inside the real TRL: the gradient of one optimizer step, on the tiny model.

Stochastic gradient descent with learning rate 1 and no clipping makes a step's change of the
parameters minus the gradient, whatever TRL does in between.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from rlnorm.integrations.pipelines import interruptions

pytest.importorskip("trl")

from datasets import Dataset  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402
from trl import GRPOConfig, GRPOTrainer  # noqa: E402

from rlnorm.integrations.trl import AdvantageGRPOTrainer, check_version  # noqa: E402

SAMPLES, PROMPTS, LIMIT = 4, 2, 12
CENTERED = {"normalizer": {"name": "dr_grpo"}, "aggregator": {"name": "token_mean"}}


def spread(completion_ids: list[list[int]], **_: Any) -> list[float]:
    """A reward that tells responses apart without knowing anything."""
    return [sum(ids) % 7 / 7 for ids in completion_ids]


def digits(completion_ids: list[list[int]], **_: Any) -> list[float | None]:
    """Another one, that leaves some responses unscored."""
    return [None if len(ids) % 4 == 0 else float(len(set(ids)) % 2) for ids in completion_ids]


class Recording:
    """Keeps what each generation batch was made into."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.batches: list[dict[str, Any]] = []
        self.rewards: list[Tensor] = []
        self.micro_batches: list[dict[str, Any]] = []

    def _calculate_rewards(self, *args: Any) -> Tensor:
        rewards: Tensor = super()._calculate_rewards(*args)  # type: ignore[misc]
        self.rewards.append(rewards.clone())
        return rewards

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        batch: dict[str, Any] = super()._generate_and_score_completions(inputs)  # type: ignore[misc]
        self.batches.append(dict(batch))
        return batch

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        self.micro_batches.append(inputs)
        return super()._compute_loss(model, inputs)  # type: ignore[misc]


class Ours(Recording, AdvantageGRPOTrainer):
    pass


class Theirs(Recording, GRPOTrainer):
    pass


def make(
    kind: type, tiny: Path, out: Path, rewards: Any = spread, settings: Any = None, **kwargs: Any
) -> Any:
    """A trainer for one step of PROMPTS * SAMPLES responses."""
    lines = (tiny / "train.jsonl").read_text(encoding="utf-8").splitlines()[: 4 * PROMPTS]
    rows = [
        {"prompt": [{"role": "user", "content": json.loads(line)["problem"]}]} for line in lines
    ]
    config = dict(
        output_dir=str(out),
        per_device_train_batch_size=PROMPTS * SAMPLES,
        num_generations=SAMPLES,
        max_completion_length=LIMIT,
        max_steps=1,
        learning_rate=1.0,
        optim="sgd",
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        temperature=1.0,
        seed=5,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        model_init_kwargs={"dtype": "float32"},
    )
    return kind(
        model=str(tiny / "model"),
        reward_funcs=rewards,
        args=GRPOConfig(**{**config, **(settings or {})}),
        train_dataset=Dataset.from_list(rows),
        **kwargs,
    )


def change(trainer: Any, tiny: Path) -> Tensor:
    """Train, then the parameters' change, flat, in float64: minus the gradient."""
    trainer.train()
    before = AutoModelForCausalLM.from_pretrained(tiny / "model", dtype=torch.float32)
    after = trainer.accelerator.unwrap_model(trainer.model)
    pairs = zip(before.parameters(), after.parameters(), strict=True)
    return torch.cat([(b.detach() - a.detach()).double().flatten() for a, b in pairs])


def gradient(tiny: Path, batch: dict[str, Any], weight: Tensor) -> Tensor:
    """Of minus the sum over trained tokens of weight * log-prob, one response at a time."""
    model = AutoModelForCausalLM.from_pretrained(tiny / "model", dtype=torch.float32)
    for i in range(len(weight)):
        prompt = batch["prompt_ids"][i][batch["prompt_mask"][i] > 0]
        answer = batch["completion_ids"][i][batch["completion_mask"][i] > 0]
        trained = batch.get("tool_mask", batch["completion_mask"])[i][: len(answer)]
        logits = model(torch.cat([prompt, answer])[None]).logits[0, len(prompt) - 1 : -1]
        log_probs = logits.log_softmax(-1).gather(1, answer[:, None])[:, 0]
        (-weight[i] * (log_probs * trained).sum()).backward()
    return torch.cat([p.grad.double().flatten() for p in model.parameters()])  # type: ignore[union-attr]


def centered_weights(batch: dict[str, Any], reward: Tensor) -> Tensor:
    """CENTERED, written out: the reward minus its group's mean, over all trained tokens."""
    groups = reward.double().view(-1, SAMPLES)
    trained = batch.get("tool_mask", batch["completion_mask"])
    return (groups - groups.mean(1, keepdim=True)).flatten() / trained.sum()


def only_batch(trainer: Any) -> dict[str, Any]:
    """In the order of generation: TRL shuffles it afterwards, for the micro-batches."""
    assert len(trainer.batches) == 1
    batch: dict[str, Any] = trainer.batches[0]
    return batch


def assert_same(found: Tensor, right: Tensor) -> None:
    assert right.norm() > 1e-4
    assert (found - right).norm() <= 1e-5 * right.norm()


@pytest.mark.parametrize("micro_batch, accumulation", [(8, 1), (4, 2), (2, 4)])
def test_step_is_gradient_of_weighted_sum(
    tiny: Path, tmp_path: Path, micro_batch: int, accumulation: int
) -> None:
    settings = dict(
        per_device_train_batch_size=micro_batch, gradient_accumulation_steps=accumulation
    )
    trainer = make(Ours, tiny, tmp_path, settings=settings, advantage=CENTERED)
    found = -change(trainer, tiny)
    batch = only_batch(trainer)
    assert_same(found, gradient(tiny, batch, centered_weights(batch, trainer.rewards[0][:, 0])))


def test_first_of_two_optimizer_steps_estimates_the_whole(tiny: Path, tmp_path: Path) -> None:
    settings = dict(per_device_train_batch_size=SAMPLES, steps_per_generation=2)
    trainer = make(Ours, tiny, tmp_path, settings=settings, advantage=CENTERED)
    found = -change(trainer, tiny)
    batch = only_batch(trainer)
    weight = centered_weights(batch, trainer.rewards[0][:, 0])
    micro_batch = trainer.micro_batches[0]
    columns = ("prompt_ids", "completion_ids")
    rows = torch.stack(
        [(batch[key][None] == micro_batch[key][:, None]).all(-1) for key in columns]
    ).all(0)
    place = rows.int().argmax(1)  # equal responses to one prompt have equal weights
    assert len(place) == SAMPLES and rows.any(1).all()
    assert_same(found, 2 * gradient(tiny, micro_batch, weight[place]))


OURS_AND_THEIRS = {
    "dapo": (
        {"normalizer": {"name": "grpo", "eps": 1e-4}, "aggregator": {"name": "token_mean"}},
        {"loss_type": "dapo"},
    ),
    "grpo": (
        {
            "normalizer": {"name": "grpo", "eps": 1e-4},
            "aggregator": {"name": "seq_mean_token_mean"},
        },
        {"loss_type": "grpo"},
    ),
    "dr_grpo": (
        {"normalizer": {"name": "dr_grpo"}, "aggregator": {"name": "seq_mean_token_sum"}},
        {"loss_type": "dr_grpo", "scale_rewards": "none"},
    ),
    "lite_ppo": (
        {
            "normalizer": {"name": "grpo", "std": "batch", "eps": 1e-4},
            "aggregator": {"name": "token_mean"},
        },
        {"loss_type": "dapo", "scale_rewards": "batch"},
    ),
    "kl": (
        {"normalizer": {"name": "grpo", "eps": 1e-4}, "aggregator": {"name": "token_mean"}},
        {"loss_type": "dapo", "beta": 0.5},
    ),
}


@pytest.mark.parametrize("case", OURS_AND_THEIRS)
def test_equals_what_trl_has_itself(tiny: Path, tmp_path: Path, case: str) -> None:
    advantage, settings = OURS_AND_THEIRS[case]
    # two steps, so that the KL to the first model is not 0 in the second
    steps = {"max_steps": 2} if case == "kl" else {}
    theirs = make(Theirs, tiny, tmp_path, settings={**settings, **steps})
    right = change(theirs, tiny)
    kept = {key: value for key, value in settings.items() if key == "beta"}
    ours = make(Ours, tiny, tmp_path, settings={**kept, **steps}, advantage=advantage)
    assert_same(change(ours, tiny), right)


def test_unscored_responses_and_named_rewards(tiny: Path, tmp_path: Path) -> None:
    advantage = {
        "shaping": [{"name": "sum", "weights": {"spread": 1.0, "digits": 0.5}}],
        **CENTERED,
    }
    trainer = make(Ours, tiny, tmp_path, rewards=[spread, digits], advantage=advantage)
    found = -change(trainer, tiny)
    batch = only_batch(trainer)
    named = trainer.rewards[0].double()
    assert named.isnan().any() and not named.isnan().all()
    total = named[:, 0] + 0.5 * named[:, 1]
    scored = total.isfinite()
    weight = torch.zeros(len(total), dtype=torch.float64)
    group = torch.arange(len(total)) // SAMPLES
    tokens = batch["completion_mask"].sum(1)
    for i in scored.nonzero().flatten().tolist():
        peers = scored & (group == group[i])
        weight[i] = (total[i] - total[peers].mean()) / tokens[scored].sum()
    assert_same(found, gradient(tiny, batch, weight))
    logged = {key for entry in trainer.state.log_history for key in entry}
    assert "advantage/unscored_episodes" in logged


def test_strata_are_the_tools_interruptions(tiny: Path, tmp_path: Path) -> None:
    """A rollout function of the user's own, whose responses hold 0 or 1 tool results."""
    masks = [[1] * 6, [1, 1, 0, 0, 1, 1]] * (PROMPTS * SAMPLES // 2)

    def rollout(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(3)
        ids = torch.randint(10, 30, (len(prompts), 6), generator=generator).tolist()
        return {
            "prompt_ids": [[11, 12, 13]] * len(prompts),
            "completion_ids": ids,
            "logprobs": None,
            "env_mask": masks[: len(prompts)],
        }

    advantage = {
        "normalizer": {"name": "stratified", "alpha": 1.0},
        "aggregator": {"name": "token_mean"},
    }
    trainer = make(Ours, tiny, tmp_path, advantage=advantage, rollout_func=rollout)
    found = -change(trainer, tiny)
    batch = only_batch(trainer)
    reward = trainer.rewards[0][:, 0].double()
    stratum = torch.arange(len(reward)) // SAMPLES * 2 + torch.arange(len(reward)) % 2
    weight = torch.zeros_like(reward)
    for label in stratum.unique():
        inside = stratum == label
        values = reward[inside]
        deviation = values.std(correction=trainer.pipeline.normalizer.ddof)
        weight[inside] = (values - values.mean()) / (deviation + trainer.pipeline.normalizer.eps)
    assert_same(found, gradient(tiny, batch, weight / batch["tool_mask"].sum()))


def test_strata_of_the_users_function(tiny: Path, tmp_path: Path) -> None:
    """All in one stratum is GRPO; the function sees what a reward function sees."""
    seen: list[int] = []

    def stratum(prompts: list[Any], completions: list[Any], **columns: Any) -> list[int]:
        seen.append(len(completions))
        return [3] * len(prompts)

    name = {"normalizer": {"name": "stratified", "alpha": 1.0, "eps": 1e-4}}
    trainer = make(Ours, tiny, tmp_path, advantage=name, stratum=stratum)
    grpo = {"normalizer": {"name": "grpo", "ddof": trainer.pipeline.normalizer.ddof, "eps": 1e-4}}
    found = change(trainer, tiny)
    assert seen == [PROMPTS * SAMPLES]
    assert_same(found, change(make(Ours, tiny, tmp_path, advantage=grpo), tiny))


@pytest.mark.parametrize(
    "wrong, words",
    [
        ({"settings": {"loss_type": "bnpo"}}, ["loss_type", "'bnpo'", "'dapo'"]),
        ({"settings": {"scale_rewards": "batch"}}, ["scale_rewards", "'batch'", "'group'"]),
        ({"settings": {"reward_weights": [2.0]}}, ["reward_weights", "shaping"]),
        (
            {"settings": {"multi_objective_aggregation": "normalize_then_sum"}},
            ["multi_objective_aggregation", "decomposed"],
        ),
        ({"advantage": "hero"}, ["'reward_model'", "'spread'"]),
        ({"advantage": "renorm"}, ["renorm", "one reward per response"]),
        ({"advantage": "stratified"}, ["'stratified'", "no tools", "stratum"]),
        ({"advantage": "bmpo"}, ["bmpo", "bnpo"]),
        ({"advantage": {"normalizer": {"name": "grpo", "epsi": 1}}}, ["epsi", "eps"]),
    ],
)
def test_contradictions_are_refused(
    tiny: Path, tmp_path: Path, wrong: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ValueError) as error:
        make(Ours, tiny, tmp_path, **{"advantage": CENTERED, **wrong})
    for word in words:
        assert word in str(error.value)


def test_other_versions_of_trl_are_refused() -> None:
    check_version("1.16.3")
    for version in ("1.15.0", "1.17.0", "2.0.0"):
        with pytest.raises(ImportError, match=version):
            check_version(version)


def test_resumed_run_equals_uninterrupted_one_with_its_state(tiny: Path, tmp_path: Path) -> None:
    """HERO's running mean is kept in the checkpoint; without it the second step would differ."""
    advantage = {
        "shaping": [
            {
                "name": "hero",
                "verifier": "digits",
                "reward_model": "spread",
                "sigma_bar": "ema",
            }
        ],
        **CENTERED,
    }

    def run(folder: str, steps: int, resume: bool = False) -> Any:
        settings = {
            "max_steps": steps,
            "save_strategy": "steps",
            "save_steps": 1,
            "learning_rate": 0.1,
        }
        trainer = make(
            Ours,
            tiny,
            tmp_path / folder,
            rewards=[spread, digits],
            settings=settings,
            advantage=advantage,
        )
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    whole = run("whole", 2)
    run("parts", 1)
    resumed = run("parts", 2, resume=True)
    state = whole.pipeline.state_dict()
    assert state["shaping"][0]["sigma_bar"] is not None
    assert resumed.pipeline.state_dict() == state
    right = load_file(tmp_path / "whole/checkpoint-2/model.safetensors")
    found = load_file(tmp_path / "parts/checkpoint-2/model.safetensors")
    for name, value in right.items():
        assert torch.equal(found[name], value), name

    (tmp_path / "parts/checkpoint-2/rlnorm_advantage.json").unlink()
    with pytest.raises(ValueError, match="rlnorm_advantage.json"):
        run("parts", 3, resume=True)


def test_two_processes_take_the_step_of_one(tiny: Path, tmp_path: Path) -> None:
    """Groups are split over the processes: two responses of each prompt's four in either."""
    subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        + ["-m", "tests.unit.test_trl", str(tiny), str(tmp_path)],
        check=True,
        cwd=Path(__file__).parents[2],
        timeout=300,
    )
    parts = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    assert torch.equal(parts[0]["change"], parts[1]["change"])
    reward = parts[0]["reward"]
    assert reward.tolist() == parts[1]["reward"].tolist()
    tokens = sum(part["completion_mask"].sum() for part in parts)
    groups = reward.double().view(-1, SAMPLES)
    weight = (groups - groups.mean(1, keepdim=True)).flatten() / tokens
    half = len(weight) // 2
    right = sum(
        gradient(tiny, part, weight[rank * half : (rank + 1) * half])
        for rank, part in enumerate(parts)
    )
    assert isinstance(right, Tensor)
    assert_same(-parts[0]["change"], right)


def one_of_two_processes(tiny: Path, out: Path) -> None:
    settings = dict(per_device_train_batch_size=PROMPTS * SAMPLES // 2, ddp_backend="gloo")
    trainer = make(Ours, tiny, out, settings=settings, advantage=CENTERED)
    moved = change(trainer, tiny)
    batch = only_batch(trainer)
    kept = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")
    torch.save(
        {"change": moved, "reward": trainer.rewards[0][:, 0], **{key: batch[key] for key in kept}},
        out / f"{trainer.accelerator.process_index}.pt",
    )


@pytest.mark.parametrize(
    "mask, count",
    [
        ([1, 1, 1, 0, 0], 0),  # padding is nobody's speech
        ([1, 0, 0, 1, 0], 1),
        ([1, 0, 1, 0, 1], 2),
        ([0, 1, 0, 0, 1], 1),  # before the policy's first word nothing was interrupted
        ([0, 0, 0, 0, 0], 0),
    ],
)
def test_interruptions(mask: list[int], count: int) -> None:
    assert interruptions(torch.tensor([mask])).tolist() == [count]


if __name__ == "__main__":
    one_of_two_processes(Path(sys.argv[1]), Path(sys.argv[2]))
