"""The code location: assets, checks, jobs, schedules and resources put together.

Belongs here: the wiring, built lazily so that importing this module reads no file.
``build_defs`` takes overrides, so that tests and the demo can swap resources.
"""

import warnings
from collections.abc import Mapping
from typing import Any

import dagster as dg

# backfill_policy and asset_check are marked beta or preview upstream; said once, here.
warnings.filterwarnings("ignore", category=dg.BetaWarning)
warnings.filterwarnings("ignore", category=dg.PreviewWarning)

from assets import automation, checks, preferences, publication, traces, training  # noqa: E402
from assets.replay import build_replay, teacher_key  # noqa: E402
from assets.resources import default_resources  # noqa: E402
from composer_pipeline.replay.teachers import TeacherSet  # noqa: E402
from composer_pipeline.settings import Settings  # noqa: E402


def build_defs(
    settings: Settings | None = None, resource_overrides: Mapping[str, Any] | None = None
) -> dg.Definitions:
    """Return the definitions.

    Args:
        settings: where things are; from the environment when not given.
        resource_overrides: resources by name that replace the default ones.

    Raises:
        InputError: the teacher file cannot be read.
    """
    settings = settings or Settings.from_env()
    teachers = TeacherSet.load(settings.teachers)
    reply_keys = [teacher_key(teacher.name) for teacher in teachers.teachers]
    return dg.Definitions(
        assets=[
            traces.raw_sessions,
            traces.trace_states,
            build_replay(teachers),
            preferences.error_hints,
            *preferences.build_preferences(reply_keys),
            publication.published_dataset,
            training.trained_model,
            training.model_evaluation,
        ],
        asset_checks=[
            *checks.CHECKS,
            *publication.CHECKS,
            *checks.build_budget_checks(reply_keys),
        ],
        jobs=[*automation.JOBS, publication.nightly_publish_job],
        schedules=[*automation.SCHEDULES, publication.nightly_publish],
        resources={**default_resources(settings), **(resource_overrides or {})},
        executor=dg.in_process_executor,
    )


@dg.definitions
def defs() -> dg.Definitions:
    """Return the definitions of the environment's settings, for Dagster to load."""
    return build_defs()
