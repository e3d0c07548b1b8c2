"""Shaping methods: named rewards to one reward per episode or per step, one file per method."""

from rlnorm.advantage.shaping.hero import Hero
from rlnorm.advantage.shaping.overlong import Overlong
from rlnorm.advantage.shaping.renorm import ReNorm
from rlnorm.advantage.shaping.sum import Sum

__all__ = ["Hero", "Overlong", "ReNorm", "Sum"]
