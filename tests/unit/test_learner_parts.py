"""Micro-batches, the learning rate, and the policy's log-probs, each against a plain version."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlnorm.learner.batching import StepEpisodes, fill_up, share_out
from rlnorm.learner.policy import Policy
from rlnorm.learner.schedule import LearningRate
from rlnorm.prepare.tiny import make_model
from tests.pipeline.probe import random_episodes

lengths_lists = st.lists(st.integers(1, 50), min_size=1, max_size=40).map(
    lambda values: np.asarray(values, dtype=np.int64)
)


@given(lengths_lists, st.integers(1, 6))
def test_share_out_is_complete_and_balanced(lengths: np.ndarray, ranks: int) -> None:
    shares = share_out(lengths, ranks)
    assert sorted(np.concatenate(shares).tolist()) == list(range(len(lengths)))
    tokens = [int(lengths[share].sum()) for share in shares]
    assert max(tokens) - min(tokens) <= int(lengths.max())


@given(lengths_lists, st.integers(50, 200), st.one_of(st.none(), st.integers(1, 5)))
def test_fill_up_keeps_the_limits(lengths: np.ndarray, tokens: int, episodes: int | None) -> None:
    batches = fill_up(np.arange(len(lengths)), lengths, tokens, episodes)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) * int(lengths[batch].max()) <= tokens
        assert episodes is None or len(batch) <= episodes


def test_micro_batch_holds_the_trainable_tokens() -> None:
    scalars, block = random_episodes(seed=0, groups=3, samples=3, vocabulary=90, longest=9)
    weight = torch.arange(9.0)
    episodes = StepEpisodes([block], weight, weight + 100)
    indices = np.array([4, 0, 7])
    micro = episodes.micro_batch(indices, torch.device("cpu"))
    flat = micro.input_ids.flatten()
    seen = 0
    for row, index in enumerate(indices):
        prompt, response = block.prompt(index), block.response_ids[block.span(index)]
        width = micro.input_ids.shape[1]
        ids = micro.input_ids[row, : len(prompt) + len(response)]
        np.testing.assert_array_equal(ids.numpy(), np.concatenate([prompt, response]))
        for t in np.flatnonzero(block.loss_mask[block.span(index)]):
            assert int(micro.target[seen]) == response[t]
            # the token after `position` is the target
            assert int(micro.position[seen]) == row * width + len(prompt) + t - 1
            assert int(flat[micro.position[seen] + 1]) == response[t]
            assert float(micro.weight[seen]) == index and float(micro.factor[seen]) == index + 100
            assert int(micro.episode[seen]) == row
            seen += 1
    assert seen == len(micro.target) == int(scalars.length[indices].sum())


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_policy_logprobs_and_entropy(temperature: float) -> None:
    """Chunked and padded equals whole and alone, gradients too."""
    torch.manual_seed(0)
    model = make_model(50).double()
    ids = torch.randint(50, (2, 9))
    position = torch.tensor([0, 3, 7, 9, 12])
    target = torch.randint(50, (5,))
    policy = Policy(model, temperature, chunk_tokens=2)
    logprob, entropy = policy(ids, position, target)
    logprob.sum().backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    full = torch.log_softmax(model(input_ids=ids).logits.flatten(0, 1).float() / temperature, -1)
    want = full[position, target]
    want.sum().backward()
    torch.testing.assert_close(logprob, want)
    torch.testing.assert_close(
        entropy, torch.distributions.Categorical(full.exp()).entropy()[position]
    )
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, rtol=1e-4, atol=1e-6)
    assert not entropy.requires_grad


def test_padding_on_the_right_changes_nothing() -> None:
    torch.manual_seed(0)
    policy = Policy(make_model(50), 1.0, 8)
    ids = torch.randint(50, (1, 6))
    position, target = torch.tensor([2, 3, 4]), ids[0, 3:6]
    alone, _ = policy(ids, position, target)
    for filler in (0, 49):
        padded = torch.cat([ids, torch.full((1, 5), filler)], dim=1)
        torch.testing.assert_close(policy(padded, position, target)[0], alone)


def test_learning_rate() -> None:
    rate = LearningRate(peak=2.0, warmup=4, total=12, schedule="cosine")
    assert [rate.at(step) for step in (1, 2, 4)] == [0.5, 1.0, 2.0]
    assert rate.at(5) == 2.0
    assert rate.at(9) == pytest.approx(2.0 * 0.5 * (1 + math.cos(math.pi / 2)))
    linear = LearningRate(peak=2.0, warmup=0, total=8, schedule="linear")
    assert linear.at(1) == 2.0 and linear.at(5) == 1.0 and linear.at(99) == 0.0
    assert LearningRate(1e-3, 0, 5, "constant").at(1000) == 1e-3
