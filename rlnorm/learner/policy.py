"""The policy as a module: tokens in, log-probs and entropies of chosen tokens out.

Full logits of a micro-batch never exist: the vocabulary projection runs over chunks of tokens,
recomputed in the backward pass. Only the model's forward pass lives here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class Policy(nn.Module):
    """A causal language model that gives log-probs of given next tokens.

    One forward call does it all, so that DeepSpeed's hooks see every parameter.
    """

    def __init__(self, model: Any, temperature: float, chunk_tokens: int) -> None:
        super().__init__()
        self.model = model
        self.temperature = temperature
        self.chunk_tokens = chunk_tokens

    def forward(self, input_ids: Tensor, position: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Log-prob and entropy of `target` tokens.

        Args:
            input_ids: [B, T], padded on the right. Attention is causal, so padding is never
                looked at by what stands before it and needs no mask.
            position: [K] indices into the flattened [B * T]: where the token *before* each
                target stands.
            target: [K] token ids.

        Returns:
            [K] float32 log-probs at the sampling temperature, [K] entropies in nats (detached).
        """
        decoder = self.model.get_decoder()
        hidden = decoder(input_ids=input_ids, use_cache=False).last_hidden_state
        chosen = hidden.flatten(0, 1).index_select(0, position)
        logprobs, entropies = [], []
        for states, ids in zip(
            chosen.split(self.chunk_tokens), target.split(self.chunk_tokens), strict=True
        ):
            if torch.is_grad_enabled():
                logprob, entropy = checkpoint(self._project, states, ids, use_reentrant=False)
            else:
                logprob, entropy = self._project(states, ids)
            logprobs.append(logprob)
            entropies.append(entropy.detach())
        return torch.cat(logprobs), torch.cat(entropies)

    def _project(self, states: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.model.get_output_embeddings()(states).float() / self.temperature
        logprob = torch.log_softmax(logits, dim=-1)
        with torch.no_grad():
            entropy = -(logprob.exp() * logprob).sum(dim=-1)
        return logprob.gather(-1, ids.unsqueeze(-1)).squeeze(-1), entropy


def load_model(
    path: str, dtype: torch.dtype, attention: str, trust_remote_code: bool, checkpointing: bool
) -> Any:
    """The Hugging Face model, dropout off, for training."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        path,
        dtype=dtype,
        attn_implementation=attention,
        trust_remote_code=trust_remote_code,
    )
    model.config.use_cache = False
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    model.train()
    return model
