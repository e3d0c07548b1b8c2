"""One weight transfer, from all learner ranks to all rollout engines, bucket by bucket."""

from __future__ import annotations

from rlnorm.learner.group import LearnerGroup
from rlnorm.rollout.pool import RolloutPool

BUCKET_BYTES = 512 << 20


def transfer_weights(learners: LearnerGroup, rollout: RolloutPool, version: int) -> None:
    """Bring the learners' weights to every engine under this version.

    Sampling stops, every bucket goes through the object store, the prefix cache is reset,
    sampling goes on. While the engines load one bucket the learners gather the next.
    """
    buckets = learners.weight_buckets(BUCKET_BYTES)
    rollout.begin_weight_update()
    ready = learners.weights(buckets[0])
    for index in range(len(buckets)):
        bucket = ready
        if index + 1 < len(buckets):
            ready = learners.weights(buckets[index + 1])
        rollout.load_bucket(bucket)
    rollout.finish_weight_update(version)
