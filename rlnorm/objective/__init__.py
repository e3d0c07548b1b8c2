"""The objective: token weights and log-probs in, a scalar to minimise out. torch only.

Normalization is not done here: weights come ready from `rlnorm.advantage`, and the objective is
a plain sum, so that it does not change with micro-batches, ranks or order.
"""

from rlnorm.objective.importance_sampling import ImportanceSampling
from rlnorm.objective.kl import KL_ESTIMATORS, kl_penalty
from rlnorm.objective.objective import Objective, TokenBatch
from rlnorm.objective.surrogate import clipped_surrogate

__all__ = [
    "KL_ESTIMATORS",
    "ImportanceSampling",
    "Objective",
    "TokenBatch",
    "clipped_surrogate",
    "kl_penalty",
]
