"""Normalizers: rewards to advantages, one file per method."""

from rlnorm.advantage.normalizers.dr_grpo import DrGRPO
from rlnorm.advantage.normalizers.grpo import GRPO
from rlnorm.advantage.normalizers.reinforce import Reinforce
from rlnorm.advantage.normalizers.reinforce_baseline import ReinforceBaseline
from rlnorm.advantage.normalizers.rloo import RLOO

__all__ = ["GRPO", "RLOO", "DrGRPO", "Reinforce", "ReinforceBaseline"]
