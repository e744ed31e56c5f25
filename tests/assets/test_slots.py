"""Nothing hangs: the slot of a run that was really killed is free within a minute."""

import logging
import os
import shutil
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import dagster as dg
import pytest
from dagster._core.workspace.context import IWorkspaceProcessContext
from dagster._daemon.monitoring import concurrency
from dagster._time import get_current_datetime

from tests.places import ROOT

RUN = """
import signal, sys
import dagster as dg

@dg.op(pool="lake")
def hold():
    print("held", flush=True)
    signal.pause()

@dg.job
def held():
    hold()

with dg.DagsterInstance.from_config(".") as instance:
    held.execute_in_process(instance=instance, run_id=sys.argv[1])
"""


def test_a_killed_runs_slot_is_freed_within_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(ROOT / "dagster.yaml", tmp_path)
    monkeypatch.chdir(tmp_path)
    run_id = "7c0ffee0-0000-4000-8000-000000000001"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        command = [sys.executable, "-c", RUN, run_id]
        with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as run:
            assert run.stdout is not None
            assert "held\n" in iter(run.stdout.readline, "")
            os.kill(run.pid, signal.SIGKILL)
        slots = instance.event_log_storage.get_concurrency_info
        assert slots("lake").active_slot_count == 1
        # The run's launcher sees that its process is gone; the daemon's turn comes after.
        found = instance.get_run_by_id(run_id)
        assert found is not None
        instance.report_run_failed(found)
        settings = instance.run_monitoring_settings
        wait = settings["free_slots_after_run_end_seconds"] + settings["poll_interval_seconds"]
        assert wait <= 60
        now = get_current_datetime()
        monkeypatch.setattr(
            concurrency, "get_current_datetime", lambda: now + timedelta(seconds=wait)
        )
        daemon = cast(IWorkspaceProcessContext, cast(Any, SimpleNamespace(instance=instance)))
        list(concurrency.execute_concurrency_slots_iteration(daemon, logging.getLogger()))
        assert slots("lake").active_slot_count == 0
