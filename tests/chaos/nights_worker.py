"""One process of the nights' test: one Dagster run, until done or killed at a step.

Run by ``nights_daemon`` through a fork server.
"""

import importlib
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dagster as dg
from dagster._cli.api import _execute_run_command_body
from dagster._core.storage.event_log.sqlite import SqliteEventLogStorage

#: What a fork server imports once, and not each run.
PRELOAD = [
    "nights_worker", "assets.definitions", "composer_pipeline.maintenance.status",
    "composer_pipeline.normalization.stage", "composer_pipeline.preferences.vote_rows",
    "composer_pipeline.preferences.quality", "composer_pipeline.states.previews",
    "composer_pipeline.teachers.run", "composer_pipeline.teachers.plan",
    "composer_pipeline.states.load",
]  # fmt: skip
#: What Dagster writes when a step begins, and when it has ended, well or not.
EVENTS = {"before": {"STEP_START"}, "after": {"STEP_SUCCESS", "STEP_FAILURE"}}
#: The modules that say by which version something was parsed.
PARSING = [
    "composer_pipeline.traces.parse",
    "composer_pipeline.traces.states",
    "composer_pipeline.traces.ingest",
]


def parse_as(version: str) -> None:
    """Let this process parse as another version of the parser would say that it did."""
    for name in PARSING:
        module = importlib.import_module(name)
        assert module.PARSER_VERSION
        module.__dict__["PARSER_VERSION"] = version


def work(
    home: Path, run_id: str, env: Mapping[str, str], kill: tuple[str, str] | None, parser: str
) -> None:
    """Execute a run as ``dagster api execute_run`` does.

    Args:
        home: has the instance's ``dagster.yaml``.
        run_id: the run.
        env: settings and secrets.
        kill: (step, ``before`` or ``after``): a SIGKILL when the step has done nothing, or all of
            its work and Dagster does not know yet.
        parser: the version of the parser that this process is of.
    """
    log = os.open(home / f"{run_id}.log", os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(env)
    parse_as(parser)
    if kill:
        _die_at(*kill)
    with dg.DagsterInstance.from_config(str(home)) as instance:
        _execute_run_command_body(run_id, instance, lambda _: None, set_exit_code_on_failure=False)


def _die_at(step: str, when: str) -> None:
    store = SqliteEventLogStorage.store_event

    def stored(self: Any, event: Any) -> None:
        told = event.dagster_event
        if told and told.step_key == step and told.event_type_value in EVENTS[when]:
            os.kill(os.getpid(), signal.SIGKILL)
        store(self, event)

    SqliteEventLogStorage.store_event = stored  # type: ignore[method-assign]
