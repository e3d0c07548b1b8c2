"""Aggregators: response lengths to the factor of the advantage, one file per method."""

from rlnorm.advantage.aggregators.delta_l import DeltaL
from rlnorm.advantage.aggregators.prompt_mean import PromptMean
from rlnorm.advantage.aggregators.seq_mean_token_mean import SeqMeanTokenMean
from rlnorm.advantage.aggregators.seq_mean_token_sum import SeqMeanTokenSum
from rlnorm.advantage.aggregators.token_mean import TokenMean

__all__ = ["DeltaL", "PromptMean", "SeqMeanTokenMean", "SeqMeanTokenSum", "TokenMean"]
