"""Surrogates: what each token's weight multiplies. Pure functions of log-probs and weights.

Each gives [T] terms to be maximised, and [T] bools of the tokens that its clip acts on.
"""

from __future__ import annotations

import torch
from torch import Tensor

SURROGATES = ("clipped", "gspo", "cispo", "policy_gradient")


def clipped_surrogate(
    logprob: Tensor,
    old_logprob: Tensor,
    weight: Tensor,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> tuple[Tensor, Tensor]:
    """PPO's clipped ratio; Schulman et al. 2017, arXiv 1707.06347, equation 7.

    min(rho * w, clip(rho, 1 - clip_low, 1 + clip_high) * w), rho = exp(logprob - old_logprob).
    A clip_high above clip_low is DAPO's clip-higher (arXiv 2503.14476).

    Args:
        logprob: [T] of the policy, with gradient.
        old_logprob: [T] of the policy that is being improved, no gradient.
        weight: [T] signed token weights; their sign is the advantage's.
        dual_clip: for negative weights the term is at least dual_clip * w (Ye et al. 2020, arXiv
            1912.09729), so that a token whose probability exploded cannot dominate; None: off.

    Returns:
        [T] terms to be maximised, and [T] bools where a clip took the gradient away.
    """
    return _clipped(torch.exp(logprob - old_logprob), weight, clip_low, clip_high, dual_clip)


def gspo_surrogate(
    logprob: Tensor,
    old_logprob: Tensor,
    weight: Tensor,
    episode: Tensor,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> tuple[Tensor, Tensor]:
    """GSPO's clipped sequence ratio in token form; Zheng et al. 2025, arXiv 2507.18071,
    equations 7 and 14.

    s = exp(mean over the episode's trainable tokens of logprob - old_logprob), and per token
    s_t = sg[s] * exp(logprob - sg[logprob]): s in value, while each token keeps its own
    gradient. With one weight for all tokens, the sum's gradient is that of L * w * clip(s). The
    clip is far narrower than PPO's: the paper has 3e-4 below and 4e-4 above.

    Args:
        episode: [T] index of the token's episode; all of its trainable tokens are here.

    Others as in `clipped_surrogate`.
    """
    log_ratio = (logprob - old_logprob).detach()
    count = int(episode.max()) + 1 if episode.numel() else 0
    total = log_ratio.new_zeros(count).index_add_(0, episode, log_ratio)
    mean = total / torch.bincount(episode, minlength=count).clamp(min=1)
    ratio = torch.exp(mean[episode] + (logprob - logprob.detach()))
    return _clipped(ratio, weight, clip_low, clip_high, dual_clip)


def cispo_surrogate(
    logprob: Tensor, old_logprob: Tensor, weight: Tensor, clip_low: float, clip_high: float
) -> tuple[Tensor, Tensor]:
    """CISPO; MiniMax-M1 2025, arXiv 2506.13585, equation 4.

    sg[clip(rho, 1 - clip_low, 1 + clip_high)] * w * logprob: the ratio is a clipped constant, so
    no token loses its gradient. Both bounds are offsets from 1; clip_low = 1 takes the lower one
    away, as the paper does. (TRL's epsilon_high is the bound itself, not an offset: its default
    of 0.2 caps every weight at 0.2.)
    """
    ratio = torch.exp(logprob - old_logprob).detach()
    kept = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    return kept * weight * logprob, kept != ratio


def policy_gradient_surrogate(logprob: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """REINFORCE, w * logprob; Williams 1992. No ratio: exact on-policy, biased after an update."""
    return weight * logprob, torch.zeros_like(logprob, dtype=torch.bool)


def _clipped(
    ratio: Tensor, weight: Tensor, clip_low: float, clip_high: float, dual_clip: float | None
) -> tuple[Tensor, Tensor]:
    unclipped = ratio * weight
    clipped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * weight
    term, stopped = torch.minimum(unclipped, clipped), clipped < unclipped
    if dual_clip is not None:
        least = dual_clip * weight
        low = (weight < 0) & (term < least)
        term, stopped = torch.where(low, least, term), stopped | low
    return term, stopped
