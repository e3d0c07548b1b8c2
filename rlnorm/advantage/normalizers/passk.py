"""Pass@k training: the advantage of an episode in the sets of k that contain it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rlnorm.advantage.batch import Samples
from rlnorm.advantage.interfaces import Normalizer
from rlnorm.advantage.registry import NORMALIZERS

EPS = 1e-6


@NORMALIZERS.register("passk")
@dataclass(frozen=True)
class PassK(Normalizer):
    """Analytical advantage of pass@k; Chen et al. 2025, arXiv 2508.10751. [M] -> [M].

    With n members of a group, c right (reward >= 0.5), rho = 1 - C(n-c, k) / C(n, k) the share
    of k-sets with a right one, s = sqrt(rho (1 - rho)) + 1e-6:

        right:  (1 - rho) / s
        wrong:  (1 - rho - C(n-c-1, k-1) / C(n-1, k-1)) / s

    Attributes:
        k: size of the set, at least 1.

    A group with c = 0 or n - c < k (every set is alike) gives exactly 0.
    """

    k: int

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"normalizer.k is {self.k}, it must be at least 1")

    def __call__(self, samples: Samples) -> Tensor:
        group = samples.group
        right = samples.reward >= 0.5
        n = group.size.to(samples.reward.dtype)
        c = group.sum(right.to(samples.reward.dtype))
        wrong = n - c
        silent = (c == 0) | (wrong < self.k)
        # C(n-c, k) / C(n, k), 1 - rho itself, so that a small one keeps its digits
        fails = (self._log_choose(wrong, silent) - self._log_choose(n, silent)).exp()
        scale = (fails * (1 - fails)).clamp(min=0.0).sqrt() + EPS
        # C(n-c-1, k-1) / C(n-1, k-1) = fails * n / (n - c): the difference, without cancellation
        of_wrong = -fails * c / wrong.clamp(min=1.0)
        advantage = torch.where(
            right, group.spread(fails / scale), group.spread(of_wrong / scale)
        )
        return advantage.masked_fill(group.spread(silent), 0.0)

    def _log_choose(self, n: Tensor, silent: Tensor) -> Tensor:
        """log C(n, k), but for a constant of k; anything finite where `silent`."""
        n = n.masked_fill(silent, float(self.k))
        return torch.lgamma(n + 1) - torch.lgamma(n - self.k + 1)
