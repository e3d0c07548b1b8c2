"""From episodes to micro-batches of tensors: sharing out over ranks, filling up, padding.

Which episode lands where changes memory and time, never the gradient: weights are computed on
the whole step before anything is split. Pure functions; no model, no communication.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rlnorm.episode import EpisodeBlock, Ints


@dataclass(frozen=True)
class MicroBatch:
    """What one forward pass takes; B episodes padded to T tokens, K trainable tokens.

    Attributes:
        input_ids: [B, T].
        position: [K] into the flattened [B * T], the token before each target.
        target: [K] token ids.
        rollout_logprob: [K].
        episode: [K] which of the B episodes, counted over the batch.
        weight: [K] advantage times aggregator factor.
        factor: [K] aggregator factor.
    """

    input_ids: Tensor
    position: Tensor
    target: Tensor
    rollout_logprob: Tensor
    episode: Tensor
    weight: Tensor
    factor: Tensor


def share_out(lengths: Ints, ranks: int) -> list[Ints]:
    """Episode indices for each rank: the longest first, each to the rank with the fewest tokens,
    and among those to the one with the fewest episodes."""
    shares: list[list[int]] = [[] for _ in range(ranks)]
    load = [(0, 0)] * ranks
    for index in np.argsort(-lengths, kind="stable"):
        rank = min(range(ranks), key=lambda r: (*load[r], r))
        shares[rank].append(int(index))
        load[rank] = (load[rank][0] + int(lengths[index]), load[rank][1] + 1)
    return [np.asarray(share, dtype=np.int64) for share in shares]


def fill_up(indices: Ints, lengths: Ints, max_tokens: int, max_episodes: int | None) -> list[Ints]:
    """Cut a rank's episodes into micro-batches of similar length, each within the limits.

    `max_tokens` counts padding: the longest episode's length times the number of episodes.
    """
    batches: list[list[int]] = []
    longest = 0
    for index in indices[np.argsort(-lengths[indices], kind="stable")]:
        full = not batches or (len(batches[-1]) + 1) * longest > max_tokens
        if full or (max_episodes is not None and len(batches[-1]) >= max_episodes):
            batches.append([])
            longest = max(int(lengths[index]), 1)
        batches[-1].append(int(index))
    return [np.asarray(batch, dtype=np.int64) for batch in batches]


class StepEpisodes:
    """All episodes of a step with their token weights, from which micro-batches are made."""

    def __init__(self, blocks: list[EpisodeBlock], weight: Tensor, factor: Tensor) -> None:
        self.blocks = blocks
        self.weight = weight
        self.factor = factor
        self.places = [(block, i) for block in blocks for i in range(len(block))]
        self.lengths = np.concatenate(
            [np.diff(b.prompt_offsets) + np.diff(b.response_offsets) for b in blocks]
        )

    def micro_batch(self, indices: Ints, device: torch.device) -> MicroBatch:
        """The tensors of these episodes. No indices give a batch of one token without targets,
        which a rank runs that has fewer micro-batches than the others."""
        width = int(self.lengths[indices].max()) if len(indices) else 1
        ids = np.zeros((max(len(indices), 1), width), dtype=np.int64)
        position, target, logprob, episode = [], [], [], []
        for row, index in enumerate(indices):
            block, i = self.places[index]
            prompt, span = block.prompt(i), block.span(i)
            response = block.response_ids[span]
            ids[row, : len(prompt)] = prompt
            ids[row, len(prompt) : len(prompt) + len(response)] = response
            trained = np.flatnonzero(block.loss_mask[span])
            position.append(row * width + len(prompt) - 1 + trained)
            target.append(response[trained])
            logprob.append(block.rollout_logprobs[span][trained])
            episode.append(np.full(len(trained), row, dtype=np.int64))

        def join(parts: list[Ints], dtype: torch.dtype) -> Tensor:
            flat = np.concatenate(parts) if parts else np.empty(0)
            return torch.as_tensor(flat, dtype=dtype, device=device)

        rows = join(episode, torch.long)
        chosen = torch.as_tensor(indices, dtype=torch.long, device=device)
        return MicroBatch(
            input_ids=torch.as_tensor(ids, device=device),
            position=join(position, torch.long),
            target=join(target, torch.long),
            rollout_logprob=join(logprob, torch.float32),
            episode=rows,
            weight=self.weight.to(device)[chosen][rows],
            factor=self.factor.to(device)[chosen][rows],
        )
