"""Shaping methods: named rewards to one reward per episode or per step, one file per method."""

from rlnorm.advantage.shaping.sum import Sum

__all__ = ["Sum"]
