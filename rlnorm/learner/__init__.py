"""Learners: Ray actors, one per rank, that train the policy with DeepSpeed."""
