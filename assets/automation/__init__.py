"""What runs together, and when: jobs, schedules and sensors.

The door of the folder: ``assets.definitions`` takes ``JOBS`` and ``SCHEDULES``, and builds what
settings turn on and off.
"""

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import (
    UnresolvedAssetJobDefinition,
)

from assets.automation.adopt import TOLD, adopt, tell_lake
from assets.automation.alerts import build_alerts
from assets.automation.jobs import (
    RANGE_END,
    RANGE_START,
    harvest_job,
    nightly_publish_job,
    pairs_job,
    plan_job,
    publish_job,
    range_tags,
    replay_job,
    train_job,
)
from assets.automation.retention import build_retention, forget_old_runs
from assets.automation.schedules import (
    nightly_harvest,
    nightly_pairs,
    nightly_publish,
    nightly_replay,
    weekly_publish,
    weekly_train,
)

JOBS: list[dg.JobDefinition | UnresolvedAssetJobDefinition] = [
    harvest_job,
    plan_job,
    replay_job,
    pairs_job,
    train_job,
    publish_job,
    nightly_publish_job,
    forget_old_runs,
    adopt,
]
SCHEDULES = [
    nightly_harvest,
    nightly_replay,
    nightly_pairs,
    nightly_publish,
    weekly_train,
    weekly_publish,
]

__all__ = [
    "JOBS",
    "RANGE_END",
    "RANGE_START",
    "SCHEDULES",
    "TOLD",
    "adopt",
    "build_alerts",
    "build_retention",
    "forget_old_runs",
    "harvest_job",
    "nightly_harvest",
    "nightly_pairs",
    "nightly_publish",
    "nightly_replay",
    "pairs_job",
    "plan_job",
    "publish_job",
    "range_tags",
    "replay_job",
    "tell_lake",
    "train_job",
    "weekly_publish",
    "weekly_train",
]
