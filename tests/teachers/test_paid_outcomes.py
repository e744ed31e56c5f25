"""What a paid call leaves in the books: scopes by UTC, refusals, costs that are asked for."""

import asyncio
import os
import sqlite3
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import zstandard

from composer_pipeline.money import Pico
from composer_pipeline.teachers.client import Wire
from composer_pipeline.teachers.ledger.group_commit import Commits
from composer_pipeline.teachers.ledger.ledger import Ledger
from composer_pipeline.teachers.ledger.values import Call
from composer_pipeline.teachers.outcome import Outcome
from composer_pipeline.teachers.paid_call import PaidCalls
from composer_pipeline.teachers.teachers import Endpoint

CALL = Call("state", "t", "session", "2026-11-16", {})
ENDPOINT = Endpoint.model_validate(
    {"name": "nobody", "base_url": "http://127.0.0.1:9/api/v1", "simulated": True}
)


class Told(Wire):
    """An endpoint that knows what each generation cost."""

    async def generation_cost(self, generation_id: str) -> Pico | None:
        return Pico(3)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger(tmp_path / "ledger.db") as ledger:
        yield ledger


def book(ledger: Ledger, outcome: Outcome) -> tuple[int, int, int]:
    """Reserve 100, settle an outcome; return what is spent, reserved and unknown."""

    async def main() -> None:
        async with Commits(ledger) as commits, Told(ENDPOINT, None) as wire:
            calls = PaidCalls(commits, "r")
            admission = await calls.reserve("k", Pico(100), CALL)
            await calls.settle(wire, admission.attempt, outcome)

    asyncio.run(main())
    sums = ledger.status()["run:r"]
    return sums.spent, sums.reserved, sums.unknown


@pytest.fixture(params=["Pacific/Kiritimati", "Pacific/Pago_Pago"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Two zones, in at least one of which it is another day than in UTC."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


def test_the_day_of_a_budget_is_the_day_in_utc(ledger: Ledger, zone: str) -> None:
    assert os.environ["TZ"] == zone
    before = datetime.now(UTC)
    book(ledger, Outcome("unbilled", 503))
    days = {moment.strftime("%Y-%m-%d") for moment in (before, datetime.now(UTC))}
    named = [name for name in ledger.status() if name.startswith(("day:", "month:"))]
    assert any(sorted(named) == [f"day:{day}", f"month:{day[:7]}"] for day in days)


def test_a_refusal_is_kept_and_a_failure_is_not(ledger: Ledger) -> None:
    assert book(ledger, Outcome("unbilled", 503, b"busy")) == (0, 0, 0)
    assert not ledger.replied(["k"])
    assert book(ledger, Outcome("refused", 400, b"too long", detail="refusal")) == (0, 0, 0)
    (row,) = ledger.rows("t", CALL.day)
    assert (row["outcome"], row["body"], row["detail"]) == ("refused", b"too long", "refusal")


def test_a_lost_reply_whose_generation_ended_is_asked_for_its_cost(ledger: Ledger) -> None:
    cut = Outcome("unknown", 200, b'{"id"', generation_id="gen-1", ended=True)
    assert book(ledger, cut) == (3, 0, 0)
    assert not ledger.replied(["k"])  # it is still to be fetched
    assert ledger.unknown_calls() == {("state", "t")}


def test_the_id_of_an_error_names_no_generation(ledger: Ledger) -> None:
    gateway = Outcome("unknown", 502, b"<html>", generation_id="req-1", ended=False)
    assert book(ledger, gateway) == (0, 0, 100)
    assert ledger.unsettled_generations() == []


def test_the_beginning_of_a_lost_reply_is_kept(ledger: Ledger) -> None:
    book(ledger, Outcome("unknown", 200, b'{"id": "gen', detail="cut"))
    assert ledger.path is not None
    with sqlite3.connect(ledger.path) as database:
        ((packed,),) = database.execute("SELECT raw FROM attempt")
    assert zstandard.decompress(packed) == b'{"id": "gen'
