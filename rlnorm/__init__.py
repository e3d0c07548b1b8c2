"""rlnorm: reinforcement learning of language models with swappable, explainable normalization."""

__version__ = "0.1.0"
