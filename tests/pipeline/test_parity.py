"""vLLM's and the learner's log-probs agree after every transfer, and not without it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlnorm.preflight import load_tokenizer
from rlnorm.weight_transfer.transfer import transfer_weights
from tests.pipeline.conftest import tiny_config
from tests.pipeline.system import System, requests

# real engines start in a minute on an idle machine, and in several on a busy one
pytestmark = pytest.mark.timeout(1800)


def untied_copy(tiny: Path, folder: Path) -> Path:
    """The tiny model with an output layer of its own."""
    from transformers import AutoModelForCausalLM

    shutil.copytree(tiny, folder)
    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    weight = model.get_input_embeddings().weight.detach()
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(weight + 0.05 * torch.randn_like(weight))
    shutil.rmtree(folder / "model")
    shutil.copytree(tiny / "model", folder / "model")
    model.save_pretrained(folder / "model")
    assert json.loads((folder / "model/config.json").read_text())["tie_word_embeddings"] is False
    return folder


@pytest.fixture(scope="module", params=["tied", "untied"])
def system(request: Any, tiny: Path, tmp_path_factory: Any) -> Iterator[System]:
    folder = tiny
    if request.param == "untied":
        folder = untied_copy(tiny, tmp_path_factory.mktemp("untied") / "tiny")
    system = System(
        tiny_config(folder, "learner.lr=1e-3", "learner.warmup_steps=0", "rollout.threads=2")
    )
    yield system
    system.cluster.close()


def test_logprobs_agree_after_every_transfer(system: System) -> None:
    assert system.gap(system.sample(requests(16, 8))) <= 1e-3
    for version in (1, 2, 3):
        block = system.sample(requests(16, 8, seed=version))
        assert set(block.weight_version) == {version - 1}
        system.learn(block, version)
        if version == 1:
            assert system.gap(block) > 0.01, "the update did not move the log-probs"
        transfer_weights(system, system.rollout, version)  # type: ignore[arg-type]
        assert system.gap(system.sample(requests(16, 8, seed=9))) <= 1e-3, f"after {version}"
    # and without a transfer they do not agree
    system.learn(system.sample(requests(16, 8, seed=4)), 4)
    assert system.gap(system.sample(requests(16, 8, seed=9))) > 0.01


def test_sampling_is_repeatable_and_belongs_to_the_episode(system: System) -> None:
    everything = requests(12, 8)
    first, again = system.sample(everything), system.sample(everything)
    for field in ("response_ids", "response_offsets", "rollout_logprobs"):
        np.testing.assert_array_equal(getattr(first, field), getattr(again, field))
    # other company, other order: the same tokens for the same seeds
    few = [everything[i] for i in (50, 3, 17)]
    block = system.sample(few)
    for position, index in enumerate((50, 3, 17)):
        np.testing.assert_array_equal(
            block.response_ids[block.span(position)], first.response_ids[first.span(index)]
        )
    assert len({tuple(first.response_ids[first.span(i)]) for i in range(8)}) > 1


def test_tokens_and_text_are_what_the_engine_sampled(system: System) -> None:
    block = system.sample(requests(8, 4))
    tokenizer = load_tokenizer(system.config)
    for i in range(len(block)):
        ids = block.response_ids[block.span(i)]
        assert block.response[i] == tokenizer.decode(ids, skip_special_tokens=True)
        assert block.truncated[i] == (ids[-1] != tokenizer.eos_token_id)
        assert len(ids) <= 8
        row = system.prompts.row.index(int(block.row[i]))
        assert block.prompt(i).tolist() == system.prompts.prompt_ids[row]
    greedy = system.sample(requests(8, 2), temperature=0.0)
    for prompt in range(8):
        np.testing.assert_array_equal(
            greedy.response_ids[greedy.span(2 * prompt)],
            greedy.response_ids[greedy.span(2 * prompt + 1)],
        )
