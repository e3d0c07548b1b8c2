"""One prompt, one response."""

from __future__ import annotations

from rlnorm.environments.interface import Environment, Generator, Prompt
from rlnorm.episode import Episode


class SingleTurn(Environment):
    """The policy answers once; every response token is its own, the stratum is 0."""

    async def play(self, prompt: Prompt, engine: Generator) -> Episode:
        turn = await engine.generate(prompt.prompt_ids, self.max_response_length, prompt.seed)
        return Episode(
            group=prompt.group,
            sample=prompt.sample,
            row=prompt.row,
            prompt_ids=prompt.prompt_ids,
            response_ids=turn.token_ids,
            loss_mask=[1] * len(turn.token_ids),
            rollout_logprobs=turn.logprobs,
            response=engine.decode(turn.token_ids),
            answer=prompt.answer,
            truncated=turn.truncated,
            weight_version=turn.weight_version,
        )
