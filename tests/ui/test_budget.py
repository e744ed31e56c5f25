"""Two backfills, started in a real browser, run at once against one ceiling and stop at it.

One teacher of four is not in the catalogue.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml
from playwright.sync_api import TimeoutError as Late
from playwright.sync_api import expect

from composer_pipeline.lake.store import Lake
from composer_pipeline.settings import recipes_dir
from composer_pipeline.teachers.ledger import operations
from composer_pipeline.teachers.ledger.ledger import Ledger, ledger_target
from composer_pipeline.testing.openrouter.server import LoopbackOpenRouter
from composer_pipeline.testing.personas import Script
from composer_pipeline.testing.samples import answers, sample_sessions_dir
from composer_pipeline.traces.ingest import ingest
from tests.fixtures.waiting import wait_until
from tests.ui.conftest import PATIENCE_S
from tests.ui.lineage_facts import NODES, states

pytestmark = pytest.mark.ui

PICO = 10**12


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackOpenRouter]:
    script = Script.from_sessions(sample_sessions_dir(), answers())
    with LoopbackOpenRouter(script, latency=0.1, flaky_faults=False) as server:
        monkeypatch.setenv("COMPOSER_OPENROUTER_URL", server.url)
        yield server


#: A dialog opens in seconds.
SOON_MS = 60_000


def _backfill(dagster: Any, page: Any, first: str, last: str) -> None:
    """Start a backfill of all teachers for a range of days, as a user would."""
    launch = page.get_by_role("dialog").get_by_role("button", name="Launch")
    for _ in range(PATIENCE_S * 1000 // SOON_MS):
        page.goto(f"{dagster.url}/locations/composer_pipeline/asset-groups/replay/lineage")
        expect(page.get_by_text("careful").first).to_be_visible()
        # Once the dialog was not there to type into; why is not known. Nothing has started yet.
        with suppress(Late):
            _choose(page, launch, f"[{first}...{last}]")
            break
    launch.click()
    expect(launch).to_have_count(0)


def _choose(page: Any, launch: Any, days: str) -> None:
    """Open the dialog of the whole group and type days into it, until they can be launched."""
    page.get_by_role("button", name="Materialize all").click(timeout=SOON_MS)
    confirm = page.get_by_role("dialog").get_by_role("button", name="Confirm")
    confirm.or_(launch).first.wait_for(timeout=SOON_MS)
    if confirm.count():  # the states were ingested without Dagster
        confirm.click(timeout=SOON_MS)
    launch.wait_for(timeout=SOON_MS)
    field = page.get_by_role("dialog").locator("input[type=text]:visible").last
    for _ in range(100):  # what is typed before the days are there is lost, and nothing can start
        field.fill(days, timeout=SOON_MS)
        field.press("Enter", timeout=SOON_MS)
        page.wait_for_timeout(500)
        if launch.is_enabled(timeout=SOON_MS):
            break


def _spent(lake: Lake) -> tuple[int, int, int]:
    with Ledger(ledger_target(lake)) as ledger:
        status = ledger.status()["global"]
    return status.spent, status.reserved, status.unknown


def _red(dagster: Any) -> set[str]:
    found = states(dagster.graphql(NODES))
    return {asset for asset, colour in found.items() if colour == "red"}


def _open_check(dagster: Any, page: Any, asset: str, check: str) -> None:
    """Click a box of the lineage, and one of its checks in the panel beside it."""
    page.goto(f"{dagster.url}/locations/composer_pipeline/asset-groups/replay/lineage")
    page.get_by_text(asset, exact=True).first.click()
    page.get_by_role("link", name=check).click()


def test_two_backfills_stop_at_one_ceiling(
    start_dagster: Callable[..., Any],
    lake: Lake,
    page: Any,
    server: LoopbackOpenRouter,
    tmp_path: Path,
) -> None:
    ingest(lake, [sample_sessions_dir()])
    days = lake.days("states")
    ceiling = Decimal("0.06")
    with Ledger(ledger_target(lake)) as ledger:
        ledger.do(operations.set_ceiling("global", ceiling))
    teachers = yaml.safe_load((recipes_dir() / "teachers" / "demo.yaml").read_text())
    teachers["limits"]["read_timeout_s"] = 3000
    teachers["teachers"][1]["model"] = "loopback/gone-20261101"
    assert teachers["teachers"][1]["name"] == "steady"
    (tmp_path / "teachers.yaml").write_text(yaml.safe_dump(teachers))
    dagster = start_dagster(COMPOSER_TEACHERS=str(tmp_path / "teachers.yaml"))

    # No reply comes before both are at work, however long the second takes to start.
    together = False
    server.held = lambda asked: not together
    _backfill(dagster, page, days[0], days[1])
    _backfill(dagster, page, days[2], days[3])

    def at_work() -> set[str]:
        """Runs of days; the budget, which has none, is a run of its own."""
        return {
            run["runId"]
            for run in dagster.runs()
            if run["status"] == "STARTED"
            and "dagster/asset_partition_range_start" in {tag["key"] for tag in run["tags"]}
        }

    wait_until(lambda: len(at_work()) == 2, "both runs start")
    buying = at_work()
    together = True
    every = dagster.wait_for_runs(2)
    runs = [run for run in every if run["runId"] in buying]
    assert {run["status"] for run in runs} == {"SUCCESS"}, "a ceiling that is reached is an outcome"
    assert max(run["startTime"] for run in runs) < min(run["endTime"] for run in runs)
    spent, reserved, unknown = _spent(lake)
    assert (reserved, unknown) == (0, 0)
    assert spent == server.billed <= int(ceiling * PICO)

    # One box is red, and says why; a ceiling is a warning.
    assert _red(dagster) == {"teacher_replies/steady"}
    _open_check(dagster, page, "steady", "replies_cover_states")
    expect(page.get_by_text("loopback/gone-20261101 is not in the catalogue").first).to_be_visible()
    _open_check(dagster, page, "budget", "ceiling_not_reached")
    expect(page.get_by_text("Stopped at the ceiling of global").first).to_be_visible()

    with Ledger(ledger_target(lake)) as ledger:
        ledger.do(operations.set_ceiling("global", Decimal(5)))
    bought = len(server.bills)
    _backfill(dagster, page, days[0], days[3])
    latest = [run for run in dagster.wait_for_runs(len(every) + 1) if run not in every]
    assert {run["status"] for run in latest} == {"SUCCESS"}
    assert _spent(lake)[0] == server.billed
    assert len({bill.digest for bill in server.bills}) == len(server.bills) > bought
    rows = lake.rows("replies")
    assert {row["status"] for row in rows} <= {"ok", "unusable"}
    assert _red(dagster) == {"teacher_replies/steady"}
    assert len(rows) == 3 * lake.read("states").num_rows
