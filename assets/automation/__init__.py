"""What runs together, and when: jobs and schedules.

The door of the folder: ``assets.definitions`` takes ``JOBS`` and ``SCHEDULES``.
"""

from assets.automation.jobs import (
    RANGE_END,
    RANGE_START,
    harvest_job,
    publish_job,
    range_tags,
    replay_job,
    train_job,
)
from assets.automation.schedules import nightly_harvest, nightly_replay

JOBS = [harvest_job, replay_job, train_job, publish_job]
SCHEDULES = [nightly_harvest, nightly_replay]

__all__ = [
    "JOBS",
    "RANGE_END",
    "RANGE_START",
    "SCHEDULES",
    "harvest_job",
    "nightly_harvest",
    "nightly_replay",
    "publish_job",
    "range_tags",
    "replay_job",
    "train_job",
]
