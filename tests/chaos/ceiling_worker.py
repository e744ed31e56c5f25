"""One process of the ceiling's chaos test: one Dagster run of some days, until done or killed.

Run by ``ceiling_driver`` through a fork server, which imports this module once.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import dagster as dg

import composer_pipeline.maintenance.status
import composer_pipeline.preferences.vote_rows
import composer_pipeline.states.load
import composer_pipeline.states.previews
import composer_pipeline.teachers.plan
import composer_pipeline.teachers.run  # noqa: F401  not while a run's life is measured
from assets.definitions import build_defs
from assets.schedules import range_tags
from examples.demo.profile import demo_settings

NAMES = ["careful", "steady"]


def instance_of(root: Path) -> dg.DagsterInstance:
    """Return the Dagster instance of a schedule; all its processes share it."""
    home = root / "dagster"
    home.mkdir(exist_ok=True)
    return dg.DagsterInstance.local_temp(str(home))


def work(
    root: Path, url: str, run_id: str, days: tuple[str, str], usd: str, tags: Mapping[str, str]
) -> None:
    """Replay a range of days in one run, as Dagster's daemon would start it."""
    log = os.open(root / f"{run_id}.log", os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ["COMPOSER_OPENROUTER_URL"] = url
    settings = demo_settings(
        lake=str(root / "lake"), teachers=str(root / "teachers.yaml"), max_usd="1000"
    )
    with instance_of(root) as instance:
        build_defs(settings).resolve_job_def("replay_and_pair").execute_in_process(
            instance=instance,
            run_id=run_id,
            tags={**range_tags(*days), **tags},
            run_config={"ops": {"replay": {"config": {"max_usd": usd}}}},
            asset_selection=[dg.AssetKey(["teacher_replies", name]) for name in NAMES],
            raise_on_error=False,
        )
