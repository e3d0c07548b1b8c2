"""Mean over prompts of the mean over the prompt's tokens."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rlnorm.advantage.interfaces import Aggregator
from rlnorm.advantage.registry import AGGREGATORS
from rlnorm.advantage.segments import Segments


@AGGREGATORS.register("prompt_mean")
@dataclass(frozen=True)
class PromptMean(Aggregator):
    """x_i = 1 / (P sum_j L_j), j over i's group, P groups with tokens; [N'] -> [N'].

    The token mean as DAPO's equation 8 writes it, over one prompt's responses (arXiv
    2503.14476); DAPO's code takes it over the batch, which is `token_mean`. Every prompt counts
    the same, and within a prompt every token.
    """

    def __call__(self, length: Tensor, group: Segments) -> Tensor:
        return 1.0 / (group.count * group.spread(group.sum(length)))
