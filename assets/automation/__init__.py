"""What runs together, and when: jobs and schedules.

The door of the folder: ``assets.definitions`` takes ``JOBS`` and ``SCHEDULES``.
"""

from assets.automation.jobs import (
    RANGE_END,
    RANGE_START,
    harvest_job,
    pairs_job,
    publish_job,
    range_tags,
    replay_job,
    train_job,
)
from assets.automation.schedules import (
    nightly_harvest,
    nightly_pairs,
    nightly_replay,
    weekly_publish,
    weekly_train,
)

JOBS = [harvest_job, replay_job, pairs_job, train_job, publish_job]
SCHEDULES = [nightly_harvest, nightly_replay, nightly_pairs, weekly_train, weekly_publish]

__all__ = [
    "JOBS",
    "RANGE_END",
    "RANGE_START",
    "SCHEDULES",
    "harvest_job",
    "nightly_harvest",
    "nightly_pairs",
    "nightly_replay",
    "pairs_job",
    "publish_job",
    "range_tags",
    "replay_job",
    "train_job",
    "weekly_publish",
    "weekly_train",
]
