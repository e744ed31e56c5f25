"""Dagster's daemon, one night after the other, at the test's own clock.

Schedules are ticked at times that the test gives; everything else goes by the machine's clock, but
that the monitor of slots is as far ahead as it has to wait for (:attr:`Nights.wait_s`).
"""

import logging
import multiprocessing
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from datetime import time as clock
from pathlib import Path
from typing import Any
from unittest import mock

import dagster as dg
import nights_worker
import yaml
from dagster._core.launcher import CheckRunHealthResult, LaunchRunContext, RunLauncher, WorkerStatus
from dagster._core.remote_origin import InProcessCodeLocationOrigin
from dagster._core.scheduler.instigation import (
    InstigatorState,
    InstigatorStatus,
    InstigatorType,
    ScheduleInstigatorData,
    TickStatus,
)
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import InProcessWorkspaceLoadTarget
from dagster._daemon.monitoring import concurrency, run_monitoring
from dagster._daemon.run_coordinator.queued_run_coordinator_daemon import (
    QueuedRunCoordinatorDaemon,
)
from dagster._scheduler.scheduler import launch_scheduled_runs
from dagster._serdes import ConfigurableClass
from dagster._time import get_current_datetime

from tests.places import ROOT

#: Schedules that are turned on, and when they tick.
SCHEDULES = {
    "nightly_harvest": clock(2, 30),
    "nightly_replay": clock(3, 30),
    "nightly_pairs": clock(4, 30),
}
_LOOK_EVERY_S = 0.25
_LOG = logging.getLogger("nights")


class Launcher(RunLauncher, ConfigurableClass):
    """Starts each run as a process, and knows which of them live."""

    home, parser = Path(), ""

    def __init__(self, inst_data: Any = None) -> None:
        self._inst_data = inst_data
        self.env: Mapping[str, str] = {}
        #: job -> (step, before or after): the next run of that job dies there.
        self.kills: dict[str, tuple[str, str]] = {}
        self.processes: dict[str, Any] = {}
        super().__init__()  # type: ignore[no-untyped-call]

    inst_data = property(lambda self: self._inst_data)

    @classmethod
    def config_type(cls) -> dict[str, Any]:
        return {}

    @classmethod
    def from_config_value(cls, inst_data: Any, config_value: Mapping[str, Any]) -> "Launcher":
        return cls(inst_data)

    supports_check_run_worker_health = True

    def launch_run(self, context: LaunchRunContext) -> None:
        run = context.dagster_run
        process = multiprocessing.get_context("forkserver").Process(
            target=nights_worker.work,
            args=(self.home, run.run_id, self.env, self.kills.pop(run.job_name, None), self.parser),
        )
        process.start()
        self.processes[run.run_id] = process

    def terminate(self, run_id: str) -> bool:
        self.processes[run_id].terminate()
        return True

    def check_run_worker_health(self, run: dg.DagsterRun) -> CheckRunHealthResult:
        process = self.processes[run.run_id]
        if process.is_alive():
            return CheckRunHealthResult(WorkerStatus.RUNNING)
        good = process.exitcode == 0
        return CheckRunHealthResult(WorkerStatus.SUCCESS if good else WorkerStatus.FAILED)

    def killed(self) -> int:
        return sum(process.exitcode == -9 for process in self.processes.values())


class Nights:
    """The daemon of one lake. Use :func:`nights`."""

    def __init__(self, process: Any, first: date) -> None:
        self.process, self.instance, self.day = process, process.instance, first
        launcher = self.instance.run_launcher
        assert isinstance(launcher, Launcher)
        self.launcher = launcher
        self.failed_ticks: list[str] = []
        settings = self.instance.run_monitoring_settings
        #: The longest time for which the slot of a dead run is held.
        self.wait_s = (
            settings["free_slots_after_run_end_seconds"] + settings["poll_interval_seconds"]
        )
        self._queue = QueuedRunCoordinatorDaemon(interval_seconds=1)
        began = datetime.combine(first, clock(), UTC).timestamp()
        for schedule in self._schedules():
            data = ScheduleInstigatorData(schedule.cron_schedule, began)
            self.instance.add_instigator_state(
                InstigatorState(
                    schedule.get_remote_origin(), InstigatorType.SCHEDULE,
                    InstigatorStatus.RUNNING, data,
                )
            )  # fmt: skip

    def _schedules(self) -> Iterator[Any]:
        (location,) = self.process.create_request_context().code_locations
        for repository in location.get_repositories().values():
            yield from (s for s in repository.get_schedules() if s.name in SCHEDULES)

    def night(self) -> None:
        """Tick each schedule, and see its runs to their ends; then it is the next day."""
        for at in SCHEDULES.values():
            now = datetime.combine(self.day, at, UTC) + timedelta(seconds=30)
            list(launch_scheduled_runs(self.process, _LOG, now, {}))
            self._until_idle()
        self.day += timedelta(days=1)
        for schedule in self._schedules():
            (tick,) = self.instance.get_ticks(
                schedule.get_remote_origin_id(), schedule.selector_id, limit=1
            )
            if tick.status == TickStatus.FAILURE:
                self.failed_ticks.append(f"{schedule.name}: {tick.error.message.strip()[-200:]}")

    def _until_idle(self) -> None:
        """Go round as the daemon's threads do, until no run is queued or going on."""
        while self.instance.get_runs_count(dg.RunsFilter(statuses=_UNFINISHED)):
            list(self._queue.run_iteration(self.process))
            list(run_monitoring.execute_run_monitoring_iteration(self.process, _LOG))
            with _ahead(self.wait_s):
                list(concurrency.execute_concurrency_slots_iteration(self.process, _LOG))
            time.sleep(_LOOK_EVERY_S)
        for process in self.launcher.processes.values():
            process.join()

    def queued_s(self) -> float:
        """Return the longest time for which a run was queued, with what the monitor skipped."""
        waits: list[float] = [0.0]
        for run in self.instance.get_runs():
            stats = self.instance.get_run_stats(run.run_id)
            waits.append((stats.launch_time or 0) - (stats.enqueued_time or 0))
        return max(waits) + float(self.wait_s)

    def steps(self) -> list[tuple[str, str]]:
        """Return (job, step) of everything that has run so far, each once, in its order."""
        found: dict[tuple[str, str], None] = {}
        for run in self.instance.get_runs(ascending=True):
            for record in self.instance.all_logs(run.run_id, {dg.DagsterEventType.STEP_START}):
                event = record.dagster_event
                found[run.job_name, event.step_key if event else ""] = None
        return list(found)


_UNFINISHED = [
    dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.NOT_STARTED, dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING,
]  # fmt: skip


@contextmanager
def _ahead(seconds: float) -> Iterator[None]:
    def later() -> datetime:
        return get_current_datetime() + timedelta(seconds=seconds)

    with mock.patch.object(concurrency, "get_current_datetime", later):
        yield


@contextmanager
def nights(home: Path, env: Mapping[str, str], first: date) -> Iterator[Nights]:
    """Yield the daemon of an instance in ``home``, whose code location has ``env``'s settings."""
    config = yaml.safe_load((ROOT / "dagster.yaml").read_text())
    for section in ("storage", "compute_logs", "local_artifact_storage"):
        for value in config[section].values():
            if isinstance(value, dict) and "base_dir" in value:
                value["base_dir"] = str(home / "dagster")
    config["run_launcher"] = {"module": "nights_daemon", "class": "Launcher"}
    (home / "dagster.yaml").write_text(yaml.safe_dump(config))
    target = LoadableTargetOrigin(
        module_name="assets.definitions", attribute="defs", working_directory=str(ROOT)
    )
    with (
        mock.patch.dict(os.environ, env),
        dg.DagsterInstance.from_config(str(home)) as instance,
        WorkspaceProcessContext(
            instance, InProcessWorkspaceLoadTarget(InProcessCodeLocationOrigin(target))
        ) as process,
    ):
        found = Nights(process, first)
        found.launcher.home, found.launcher.env = home, dict(env)
        yield found
