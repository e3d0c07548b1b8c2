"""Rewards: what scores an episode. Names are loaded on first use, so that importing this package
imports none of math-verify, sympy and torch."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlnorm.rewards.math_verifier import MathVerifier

__all__ = ["MathVerifier"]


def __getattr__(name: str) -> object:
    if name == "MathVerifier":
        from rlnorm.rewards.math_verifier import MathVerifier

        return MathVerifier
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
