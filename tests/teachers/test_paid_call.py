"""One paid call: every way out of it is in the books."""

import asyncio
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from composer_pipeline.money import PICO, Pico
from composer_pipeline.teachers.client import Wire
from composer_pipeline.teachers.ledger import operations
from composer_pipeline.teachers.ledger.group_commit import Commits
from composer_pipeline.teachers.ledger.ledger import Ledger
from composer_pipeline.teachers.ledger.values import Call
from composer_pipeline.teachers.outcome import Outcome, TokenPrice
from composer_pipeline.teachers.paid_call import PaidCalls
from composer_pipeline.teachers.teachers import Endpoint

CALL = Call("state", "t", "session", "2026-11-16", {})
ENDPOINT = Endpoint.model_validate(
    {"name": "nobody", "base_url": "http://127.0.0.1:9/api/v1", "simulated": True}
)
HIT = Outcome("billed", 200, b"{}", Pico(0), "gen-2", "gen-1")


class Slow(Wire):
    """An endpoint that never answers; says when it was asked."""

    def __init__(self, endpoint: Endpoint, key: str | None) -> None:
        super().__init__(endpoint, key)
        self.asked = asyncio.Event()

    async def chat(self, body: bytes, price: TokenPrice | None = None) -> Outcome:
        self.asked.set()
        return await asyncio.Future[Outcome]()

    async def generation_cost(self, generation_id: str) -> Pico | None:
        self.asked.set()
        return await asyncio.Future[Pico]()


async def cancelled(wire: Wire, task: "asyncio.Task[object]") -> None:
    assert isinstance(wire, Slow)
    await wire.asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_call_is_charged_to_all_its_scopes_at_the_time_it_is_sent(tmp_path: Path) -> None:
    async def main(ledger: Ledger) -> None:
        async with Commits(ledger) as commits:
            await PaidCalls(commits, "r").reserve("k", Pico(5), CALL)

    with Ledger(tmp_path / "ledger.db") as ledger:
        before = datetime.now(UTC).strftime("%Y-%m-%d")
        asyncio.run(main(ledger))
        days = {before, datetime.now(UTC).strftime("%Y-%m-%d")}
        held = {name: sums.held for name, sums in ledger.status().items()}
    (day,) = [name.removeprefix("day:") for name in held if name.startswith("day:")]
    assert day in days
    assert held == dict.fromkeys(
        ["run:r", f"day:{day}", f"month:{day[:7]}", "teacher:t", "partition:2026-11-16", "global"],
        5,
    )


def test_of_two_ceilings_that_refuse_the_one_that_can_be_raised_is_named(tmp_path: Path) -> None:
    """A run's ceiling cannot be raised once it has ended; that of a backfill can."""

    async def main(ledger: Ledger) -> str:
        async with Commits(ledger) as commits:
            paid = PaidCalls(commits, "r", budget="backfill:b")
            return (await paid.reserve("k", Pico(5), CALL)).scope

    with Ledger(tmp_path / "ledger.db") as ledger:
        for scope in ("backfill:b", "run:r"):
            ledger.do(operations.set_ceiling(scope, Decimal(1) / PICO))
        assert asyncio.run(main(ledger)) == "backfill:b"


def test_a_cancelled_call_stays_charged(tmp_path: Path) -> None:
    async def main(ledger: Ledger) -> None:
        async with Commits(ledger) as commits, Slow(ENDPOINT, None) as wire:
            calls = PaidCalls(commits, "r")
            admission = await calls.reserve("k", Pico(5), CALL)
            await cancelled(wire, asyncio.create_task(calls.send(wire, admission.attempt, b"{}")))
        sums = ledger.status()["run:r"]
        assert (sums.spent, sums.reserved, sums.unknown) == (0, 0, 5)

    with Ledger(tmp_path / "ledger.db") as ledger:
        asyncio.run(main(ledger))


def test_a_hit_whose_source_is_asked_for_when_it_is_cancelled_is_kept(tmp_path: Path) -> None:
    async def main(ledger: Ledger) -> None:
        async with Commits(ledger) as commits, Slow(ENDPOINT, None) as wire:
            calls = PaidCalls(commits, "r")
            lost = await calls.reserve("k", Pico(5), CALL)
            await commits.do(operations.mark_unknown(lost.attempt, "reset"))
            again = await calls.reserve("k", Pico(5), CALL)
            await cancelled(wire, asyncio.create_task(calls.settle(wire, again.attempt, HIT)))

    with Ledger(tmp_path / "ledger.db") as ledger:
        asyncio.run(main(ledger))
        sums = ledger.status()["run:r"]
        assert (sums.spent, sums.reserved, sums.unknown) == (0, 0, 5)
        assert ledger.replied(["k"])
        assert [generation for _, generation in ledger.unsettled_generations()] == ["gen-1"]
