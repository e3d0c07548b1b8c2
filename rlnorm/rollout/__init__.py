"""Rollout: Ray actors that hold vLLM engines, and the pool that shares prompts out among them."""
