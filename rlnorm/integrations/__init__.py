"""The advantage pipeline inside other trainers: one file per trainer, each an optional dependency.

Nothing in rlnorm imports these modules, and none of them imports another.
"""
