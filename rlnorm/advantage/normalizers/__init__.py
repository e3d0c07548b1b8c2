"""Normalizers: rewards to advantages, one file per method."""

from rlnorm.advantage.normalizers.bnpo import BNPO
from rlnorm.advantage.normalizers.decomposed import Decomposed
from rlnorm.advantage.normalizers.dr_grpo import DrGRPO
from rlnorm.advantage.normalizers.grpo import GRPO
from rlnorm.advantage.normalizers.maxrl import MaxRL
from rlnorm.advantage.normalizers.opo import OPO
from rlnorm.advantage.normalizers.passk import PassK
from rlnorm.advantage.normalizers.reinforce import Reinforce
from rlnorm.advantage.normalizers.reinforce_baseline import ReinforceBaseline
from rlnorm.advantage.normalizers.reinforce_pp import ReinforcePP
from rlnorm.advantage.normalizers.reinforce_pp_baseline import ReinforcePPBaseline
from rlnorm.advantage.normalizers.rloo import RLOO
from rlnorm.advantage.normalizers.stratified import Stratified

__all__ = [
    "BNPO",
    "GRPO",
    "OPO",
    "RLOO",
    "Decomposed",
    "DrGRPO",
    "MaxRL",
    "PassK",
    "Reinforce",
    "ReinforceBaseline",
    "ReinforcePP",
    "ReinforcePPBaseline",
    "Stratified",
]
