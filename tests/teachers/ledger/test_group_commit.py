"""Group commit: durable before it returns, one failure alone, nothing lost by cancelling."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from composer_pipeline.errors import ComposerError
from composer_pipeline.money import Pico
from composer_pipeline.teachers.ledger import group_commit
from composer_pipeline.teachers.ledger import operations as rules
from composer_pipeline.teachers.ledger.group_commit import Commits
from composer_pipeline.teachers.ledger.ledger import Ledger
from composer_pipeline.teachers.ledger.values import AttemptClosed, Bill, Call, Reply
from tests.fixtures.waiting import DEADLINE_S

CALL = Call("state", "teacher", "session", "2026-11-16", {})
SCOPES = ["run:r", "global"]


@pytest.fixture
def ledger(target: str | Path) -> Iterator[Ledger]:
    with Ledger(target) as ledger:
        ledger.do(rules.set_ceiling("run:r", Decimal(100) / 10**12))
        yield ledger


def sums(ledger: Ledger) -> tuple[int, int, int]:
    status = ledger.status()["run:r"]
    return status.spent, status.reserved, status.unknown


def test_many_calls_share_few_commits_and_the_ceiling_holds(ledger: Ledger) -> None:
    async def one(commits: Commits, number: int) -> str:
        admission = await commits.do(rules.reserve(f"k{number}", Pico(4), SCOPES, CALL))
        if admission.kind == "reserved":
            assert await commits.do(
                rules.settle(admission.attempt, Bill(Pico(3)), Reply(200, b"{}"))
            )
        return admission.kind

    async def main() -> tuple[list[str], int]:
        async with Commits(ledger) as commits:
            kinds = await asyncio.gather(*(one(commits, n) for n in range(60)))
            return list(kinds), commits.commits

    kinds, commits = asyncio.run(main())
    assert set(kinds) == {"reserved", "wait"}
    assert kinds.count("reserved") == 25  # 25 * 4 = 100, admitted together
    assert sums(ledger) == (75, 0, 0)
    assert commits < 60


def test_sending_is_part_of_the_same_commit(ledger: Ledger, target: str | Path) -> None:
    async def main() -> None:
        async with Commits(ledger) as commits:
            await commits.do(rules.reserve("k", Pico(4), SCOPES, CALL))
            assert commits.commits == 1

    asyncio.run(main())
    ledger.close()  # what was sent may have been billed
    with Ledger(target) as other:
        assert sums(other) == (0, 0, 4)


def test_one_failure_fails_alone(ledger: Ledger) -> None:
    async def main() -> tuple[Any, ...]:
        async with Commits(ledger) as commits:
            first = await commits.do(rules.reserve("a", Pico(4), SCOPES, CALL))
            return await asyncio.gather(
                commits.do(rules.release("no such attempt", "")),
                commits.do(rules.settle(first.attempt, Bill(Pico(2)), Reply(200, b"{}"))),
                commits.do(rules.release(first.attempt, "too late")),
                commits.do(rules.reserve("b", Pico(4), SCOPES, CALL)),
                return_exceptions=True,
            )

    missing, held, late, admission = asyncio.run(main())
    assert isinstance(missing, AttemptClosed)
    assert held is True
    assert isinstance(late, AttemptClosed)
    assert admission.kind == "reserved"
    assert sums(ledger) == (2, 4, 0)


def test_a_cancelled_settlement_is_written(ledger: Ledger) -> None:
    async def main() -> None:
        async with Commits(ledger) as commits:
            admission = await commits.do(rules.reserve("a", Pico(4), SCOPES, CALL))
            task = asyncio.create_task(
                commits.do(rules.settle(admission.attempt, Bill(Pico(2)), Reply(200, b"{}")))
            )
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())
    assert sums(ledger) == (2, 0, 0)
    assert ledger.replied(["a"])


def test_a_cancelled_reservation_is_given_back(ledger: Ledger) -> None:
    async def main() -> int:
        async with Commits(ledger) as commits:
            tasks = []
            for number in range(20):
                reserve = commits.do(rules.reserve(f"k{number}", Pico(5), SCOPES, CALL))
                tasks.append(asyncio.create_task(reserve))
                await asyncio.sleep(0)
            # A fast database has answered some by now; those are no longer cancelled.
            kept = sum(not task.cancel() for task in tasks)
            await asyncio.gather(*tasks, return_exceptions=True)
            return kept

    held = 5 * asyncio.run(main())
    assert sums(ledger) == (0, held, 0)
    assert ledger.do(rules.reserve("k", Pico(100 - held), SCOPES, CALL)).kind == "reserved"


class Watched(Commits):
    """Knows that an answer was given, before the task that waits for it has run."""

    answered = False

    def _resolve(self, *arguments: Any) -> None:
        super()._resolve(*arguments)
        self.answered = True


def test_a_reservation_cancelled_after_its_answer_is_given_back(ledger: Ledger) -> None:
    async def main() -> None:
        async with Watched(ledger) as commits:
            task = asyncio.create_task(commits.do(rules.reserve("k", Pico(5), SCOPES, CALL)))
            while not commits.answered:
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())
    assert sums(ledger) == (0, 0, 0)


def test_leaving_writes_what_was_queued(ledger: Ledger) -> None:
    async def main() -> None:
        async with Commits(ledger) as commits:
            admission = await commits.do(rules.reserve("a", Pico(4), SCOPES, CALL))
            task = asyncio.create_task(
                commits.do(rules.settle(admission.attempt, Bill(Pico(2)), Reply(200, b"{}")))
            )
            await asyncio.sleep(0)
        assert task.done()
        with pytest.raises(ComposerError, match="closed"):
            await commits.do(rules.reserve("b", Pico(4), SCOPES, CALL))

    asyncio.run(main())
    assert sums(ledger) == (2, 0, 0)


def test_admissions_wait_for_a_place_but_settlements_do_not(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "QUEUE", 1)

    async def main() -> None:
        async with Commits(ledger) as commits:
            first = await commits.do(rules.reserve("a", Pico(4), SCOPES, CALL))
            more = [
                asyncio.create_task(commits.do(rules.reserve(f"k{n}", Pico(4), SCOPES, CALL)))
                for n in range(5)
            ]
            await asyncio.sleep(0)
            assert len(commits._queue) <= 1
            await commits.do(rules.settle(first.attempt, Bill(Pico(2)), Reply(200, b"{}")))
            kinds = [(await task).kind for task in more]
            assert kinds == ["reserved"] * 5

    asyncio.run(main())


def test_those_that_wait_are_woken_by_a_settlement(ledger: Ledger) -> None:
    async def main() -> None:
        async with Commits(ledger) as commits:
            first = await commits.do(rules.reserve("a", Pico(90), SCOPES, CALL))
            assert (await commits.do(rules.reserve("b", Pico(90), SCOPES, CALL))).kind == "wait"
            waiting = asyncio.create_task(commits.changed(10**6))
            await asyncio.sleep(0)
            await commits.do(rules.settle(first.attempt, Bill(Pico(1)), Reply(200, b"{}")))
            await asyncio.wait_for(waiting, DEADLINE_S)
            assert (await commits.do(rules.reserve("b", Pico(90), SCOPES, CALL))).kind == "reserved"
            await asyncio.wait_for(commits.changed(0.01), DEADLINE_S)

    asyncio.run(main())


def test_a_defect_reaches_everyone_who_waits(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(operations: Any) -> None:
        raise ZeroDivisionError

    async def main() -> list[Any]:
        async with Commits(ledger) as commits:
            monkeypatch.setattr(ledger, "apply", broken)
            return await asyncio.gather(
                *(commits.do(rules.reserve(str(n), Pico(1), SCOPES, CALL)) for n in range(3)),
                return_exceptions=True,
            )

    monkeypatch.setattr("threading.excepthook", lambda _: None)
    assert {type(found) for found in asyncio.run(main())} == {ZeroDivisionError}
    monkeypatch.undo()


KILLED = """
import asyncio, os, signal, sys
from composer_pipeline.teachers.ledger.group_commit import Commits
from composer_pipeline.teachers.ledger import operations as rules
from composer_pipeline.teachers.ledger.values import Bill, Call, Reply
from composer_pipeline.teachers.ledger.ledger import Ledger
call = Call("state", "teacher", "session", "2026-11-16", {})
async def main():
    async with Commits(Ledger(sys.argv[1])) as commits:
        async def one(n):
            got = await commits.do(rules.reserve(f"k{n}", 5, ["run:r"], call))
            print(f"sent k{n}", flush=True)
            if n % 2:
                await commits.do(rules.settle(got.attempt, Bill(3), Reply(200, b"x")))
                print(f"done k{n}", flush=True)
        await asyncio.gather(*(one(n) for n in range(10)))
        os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""


def test_what_was_answered_is_there_after_kill_nine(ledger: Ledger, target: str | Path) -> None:
    command = [sys.executable, "-c", KILLED, str(target)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    assert done.stdout.count("sent") == 10
    assert done.stdout.count("done") == 5
    assert all(ledger.replied([f"k{n}"]) for n in range(1, 10, 2))
    assert sums(ledger) == (15, 25, 0)
    assert ledger.do(rules.adopt_dead()) == 5
    assert sums(ledger) == (15, 0, 25)
