"""Aggregators: response lengths to the factor of the advantage, one file per method."""

from rlnorm.advantage.aggregators.seq_mean_token_mean import SeqMeanTokenMean
from rlnorm.advantage.aggregators.seq_mean_token_sum import SeqMeanTokenSum
from rlnorm.advantage.aggregators.token_mean import TokenMean

__all__ = ["SeqMeanTokenMean", "SeqMeanTokenSum", "TokenMean"]
