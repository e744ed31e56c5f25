"""Runs at the same time, in processes of their own, on both stores of Dagster and of the ledger."""

import multiprocessing
import os
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

from assets.definitions import build_defs
from assets.schedules import range_tags
from composer_pipeline.lake.store import Lake
from composer_pipeline.settings import recipes_dir
from composer_pipeline.states.load import load_states
from composer_pipeline.teachers.ledger.ledger import Ledger
from composer_pipeline.testing.openrouter.server import LoopbackOpenRouter
from composer_pipeline.testing.personas import Script
from examples.demo.profile import demo_settings
from tests.fixtures.lake_states import write_sessions
from tests.fixtures.postgres import PostgresServer
from tests.fixtures.waiting import wait_until

pytestmark = pytest.mark.slow

DAYS, NAMES = ["2026-11-16", "2026-11-17"], ["careful", "steady"]
#: Two runs of the same days and one of a part of them.
RUNS = [(DAYS[0], DAYS[1]), (DAYS[0], DAYS[1]), (DAYS[1], DAYS[1])]


def one_run(home: str, env: Mapping[str, str], days: tuple[str, str]) -> None:
    """Buy some days' replies and make their pairs; ends with 1 where the run failed."""
    log = os.open(f"{home}/{os.getpid()}.log", os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(env)
    settings = demo_settings(
        lake=f"{home}/lake", teachers=f"{home}/teachers.yaml", max_usd="5"
    ).model_copy(update={"ledger": env["COMPOSER_LEDGER"]})
    with dg.DagsterInstance.from_config(home) as instance:
        done = build_defs(settings).resolve_job_def("replay_and_pair").execute_in_process(
            instance=instance, tags=range_tags(*days), raise_on_error=False
        )  # fmt: skip
        raise SystemExit(0 if done.success else 1)


@pytest.fixture(params=["sqlite", "postgres"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[dict[str, Any], str]:
    """What ``dagster.yaml`` says of the storage, and where the ledger is."""
    if request.param == "sqlite":
        return {"sqlite": {"base_dir": str(tmp_path / "dagster")}}, str(tmp_path / "ledger.db")
    server: PostgresServer = request.getfixturevalue("postgres_server")
    url = server.database().replace("postgresql://", "postgresql+psycopg2://")
    return {"postgres": {"postgres_url": url}}, server.database()


def test_runs_at_once_buy_everything_once(
    stores: tuple[dict[str, Any], str], tmp_path: Path
) -> None:
    storage, ledger = stores
    (tmp_path / "dagster.yaml").write_text(
        yaml.safe_dump({"storage": storage, "telemetry": {"enabled": False}})
    )
    data = yaml.safe_load((recipes_dir() / "teachers" / "demo.yaml").read_text())
    data["teachers"] = [t for t in data["teachers"] if t["name"] in NAMES]
    (tmp_path / "teachers.yaml").write_text(yaml.safe_dump(data))
    lake = Lake(tmp_path / "lake")
    for number, day in enumerate(DAYS):
        write_sessions(lake, sessions=1, turns=6, day=day, first=number)
    held = True
    with (
        LoopbackOpenRouter(
            Script.from_states(load_states(lake), {}), lifetime=3600, flaky_faults=False
        ) as server,
        dg.DagsterInstance.from_config(str(tmp_path)) as instance,
    ):
        server.held = lambda _: held
        env = {
            "COMPOSER_OPENROUTER_URL": server.url, "COMPOSER_LOOPBACK_KEY": "any",
            "COMPOSER_LEDGER": ledger, "COMPOSER_FIRST_DAY": DAYS[0],
        }  # fmt: skip
        context = multiprocessing.get_context("spawn")
        with pytest.MonkeyPatch.context() as patch:
            for name, value in env.items():
                patch.setenv(name, value)  # days are made when a process imports the assets
            running = [
                context.Process(target=one_run, args=(str(tmp_path), env, days)) for days in RUNS
            ]
            for process in running:
                process.start()
        started = dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED])
        wait_until(lambda: not all(p.is_alive() for p in running) or (
            instance.get_runs_count(started) == len(RUNS) and server.generating > 0
        ), "every run has begun, and one asks")  # fmt: skip
        held = False
        for process in running:
            process.join()
        said = "".join(path.read_text() for path in tmp_path.glob("*.log"))
        assert [process.exitcode for process in running] == [0] * len(RUNS), said[-3000:]
        for name in NAMES:
            key = dg.AssetKey(["teacher_replies", name])
            assert sorted(instance.get_materialized_partitions(key)) == DAYS
        billed, bills = server.billed, len(server.account.bills)
    assert "locked" not in said
    assert "OperationalError" not in said
    rows = lake.rows("replies")
    assert bills == len(rows) == 6 * len(DAYS) * len(NAMES)
    with Ledger(ledger) as books:
        status = books.status()["global"]
    assert (status.spent, status.held) == (billed, 0)
    assert sum(Decimal(row["cost_picodollars"]) for row in rows) == billed
    assert set(lake.days("normalized_pairs")) == set(DAYS)
