"""Rewards in, policy-gradient weights out: the normalizations rlnorm exists for.

Here live the three stages (shaping, normalizer, aggregator), one file per method, and the
pipeline that composes them. This package imports torch and nothing heavier, so that any
trainer, or a bare GPU machine, can use it. Nothing here knows of tokens, models or Ray.
"""

from rlnorm.advantage.batch import AdvantageOutput, RewardBatch
from rlnorm.advantage.pipeline import AdvantagePipeline
from rlnorm.advantage.registry import AGGREGATORS, NORMALIZERS, SHAPINGS

__all__ = [
    "AGGREGATORS",
    "NORMALIZERS",
    "SHAPINGS",
    "AdvantageOutput",
    "AdvantagePipeline",
    "RewardBatch",
]
