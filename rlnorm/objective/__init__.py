"""The objective: token weights and log-probs in, a scalar to minimise out. torch only.

Normalization is not done here: weights come ready from `rlnorm.advantage`, and the objective is
a plain sum, so that it does not change with micro-batches, ranks or order.
"""

from rlnorm.objective.importance_sampling import ImportanceSampling
from rlnorm.objective.kl import KL_ESTIMATORS, kl_penalty
from rlnorm.objective.objective import Objective, TokenBatch
from rlnorm.objective.surrogate import (
    SURROGATES,
    cispo_surrogate,
    clipped_surrogate,
    gspo_surrogate,
    policy_gradient_surrogate,
)

__all__ = [
    "KL_ESTIMATORS",
    "SURROGATES",
    "ImportanceSampling",
    "Objective",
    "TokenBatch",
    "cispo_surrogate",
    "clipped_surrogate",
    "gspo_surrogate",
    "kl_penalty",
    "policy_gradient_surrogate",
]
