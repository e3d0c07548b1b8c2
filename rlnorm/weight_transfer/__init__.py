"""New weights from the learners to the rollout engines, through vLLM's weight-transfer interface.

Importing this package imports neither torch nor vLLM; the engine class is in `host`.
"""

HOST_BACKEND = "rlnorm_host"
