"""The code location: assets, checks, jobs, schedules and resources. Importing it reads no file."""

import warnings
from collections.abc import Mapping
from typing import Any

import dagster as dg

# backfill_policy and asset_check are marked beta or preview upstream.
warnings.filterwarnings("ignore", category=dg.BetaWarning)
warnings.filterwarnings("ignore", category=dg.PreviewWarning)
# The smaller of the two policies is right: a night has paid stages.
warnings.filterwarnings("ignore", "Asset job night materializes assets with varying")

from assets import (  # noqa: E402
    alerts,
    checks,
    money,
    night,
    preferences,
    publication,
    schedules,
    traces,
    training,
)
from assets.replay import build_replay, teacher_key  # noqa: E402
from assets.resources import default_resources  # noqa: E402
from composer_pipeline.errors import InputError  # noqa: E402
from composer_pipeline.settings import Settings  # noqa: E402
from composer_pipeline.teachers.teachers import TeacherSet  # noqa: E402


def build_defs(
    settings: Settings | None = None, resource_overrides: Mapping[str, Any] | None = None
) -> dg.Definitions:
    """Return the definitions for some settings; those of the environment by default."""
    settings = settings or Settings.from_env()
    teachers = _teachers(settings)
    reply_keys = [teacher_key(teacher.name) for teacher in teachers.teachers] if teachers else []
    return dg.Definitions(
        assets=[
            traces.raw_sessions,
            traces.trace_states,
            traces.edit_outcomes,
            money.budget,
            money.replay_plan,
            *([build_replay(teachers)] if teachers else []),
            preferences.error_hints,
            *preferences.build_preferences(reply_keys),
            publication.published_dataset,
            training.trained_model,
            training.model_evaluation,
            training.report,
            night.tonights_model,
        ],
        asset_checks=[
            *checks.CHECKS,
            *publication.CHECKS,
            night.gates,
            *checks.build_table_checks(reply_keys),
            *checks.build_reply_checks(reply_keys),
        ],
        jobs=[*schedules.JOBS, money.set_ceiling, money.choose_ceiling],
        schedules=[
            *schedules.SCHEDULES,
            schedules.build_retention(settings.keep_runs_days),
        ],
        sensors=[alerts.build_alerts()],
        resources={**default_resources(settings), **(resource_overrides or {})},
        executor=executor_of(settings.executor),
    )


#: Steps wait for the network or start a process of their own, so few at once are enough.
_MOST_STEPS = 4


def executor_of(name: str) -> dg.ExecutorDefinition:
    """Return an executor: ``in_process``, ``multiprocess``, or ``k8s`` (one job per step)."""
    if name == "in_process":
        return dg.in_process_executor
    if name == "multiprocess":
        preload = {"forkserver": {"preload_modules": ["assets.definitions"]}}
        return dg.multiprocess_executor.configured(
            {"max_concurrent": _MOST_STEPS, "start_method": preload}
        )
    if name == "k8s":
        try:
            from dagster_k8s import k8s_job_executor
        except ImportError as error:
            raise InputError("COMPOSER_EXECUTOR=k8s needs the extra `deploy`") from error
        return k8s_job_executor.configured({"max_concurrent": _MOST_STEPS})
    raise InputError(f"COMPOSER_EXECUTOR: {name!r} is none of in_process, multiprocess, k8s")


def _teachers(settings: Settings) -> TeacherSet | None:
    try:
        return TeacherSet.load(settings.teachers)
    except InputError as error:
        dg.get_dagster_logger("teachers").error(f"{error}. The graph has no teacher_replies.")
        return None


@dg.definitions
def defs() -> dg.Definitions:
    """Return the definitions that Dagster loads."""
    return build_defs()
