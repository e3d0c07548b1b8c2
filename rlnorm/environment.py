"""Environment variables that every process of ours is told, wherever it starts. Nothing else."""

from __future__ import annotations

import os

ENVIRONMENT = {
    # Ray starts workers at the lowest priority but four: whatever else runs would starve them
    "RAY_worker_niceness": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "DO_NOT_TRACK": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_VERBOSITY": "error",
    "DS_LOG_LEVEL": "error",
}


def quiet() -> None:
    """Set them where the user has not; must come before the libraries are imported."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
