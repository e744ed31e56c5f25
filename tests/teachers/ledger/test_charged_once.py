"""What is charged is charged once, to the scopes it concerns, for as long as it is not known."""

import sqlite3
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest
import zstandard

from composer_pipeline.money import PICO, Pico
from composer_pipeline.teachers.ledger import operations
from composer_pipeline.teachers.ledger.ledger import Ledger
from composer_pipeline.teachers.ledger.sweep import sweep
from composer_pipeline.teachers.ledger.values import Bill, CacheHit, Call, NotQuiescent, Reply

DAY = "2026-11-16"
CALL = Call("state", "t", "session", DAY, {})
SCOPES = ["run:a", "teacher:t", "global"]


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger(tmp_path / "ledger.db") as ledger:
        yield ledger


def sums(ledger: Ledger, scope: str = "run:a") -> tuple[int, int, int]:
    held = ledger.status()[scope]
    return held.spent, held.reserved, held.unknown


def send(ledger: Ledger, key: str, amount: int = 100, scopes: list[str] = SCOPES) -> str:
    admission = ledger.do(operations.reserve(key, Pico(amount), scopes, CALL))
    assert admission.kind == "reserved", admission
    return admission.attempt


def lose(ledger: Ledger, key: str, scopes: list[str] = SCOPES) -> str:
    attempt = send(ledger, key, scopes=scopes)
    ledger.do(operations.mark_unknown(attempt, "reset"))
    return attempt


def raw(ledger: Ledger, attempt: str) -> bytes:
    assert ledger.path is not None
    with sqlite3.connect(ledger.path) as database:
        ((packed,),) = database.execute("SELECT raw FROM attempt WHERE id = ?", (attempt,))
    return b"" if packed is None else zstandard.decompress(packed)


def test_a_lost_call_is_held_back_for_seconds(ledger: Ledger) -> None:
    def ago(seconds: int) -> None:
        assert ledger.path is not None
        with sqlite3.connect(ledger.path) as database:
            database.execute("UPDATE attempt SET created_us = created_us - ?", (seconds * 10**6,))

    lose(ledger, "k")
    again = operations.reserve("k", Pico(100), SCOPES, CALL, recover_after_s=1000)
    assert ledger.do(again).kind == "busy"
    ago(700)
    assert ledger.do(again).kind == "busy"
    ago(300)
    assert ledger.do(again).kind == "reserved"


def test_a_call_that_is_given_up_twice_is_charged_once(ledger: Ledger) -> None:
    attempt = lose(ledger, "k")
    ledger.do(operations.mark_unknown(attempt, "cancelled"))
    assert sums(ledger) == sums(ledger, "global") == (0, 0, 100)
    ledger.do(operations.reconcile(attempt, Pico(7)))
    assert sums(ledger) == sums(ledger, "global") == (7, 0, 0)


def test_a_scope_that_is_named_twice_is_charged_once(ledger: Ledger) -> None:
    attempt = send(ledger, "k", scopes=["run:a", "global", "run:a"])
    assert sums(ledger) == (0, 100, 0)
    ledger.do(operations.settle(attempt, Bill(Pico(40)), Reply(200, b"{}")))
    assert sums(ledger) == sums(ledger, "global") == (40, 0, 0)


def test_the_bytes_of_a_lost_reply_outlive_its_end(ledger: Ledger) -> None:
    attempt = send(ledger, "k")
    ledger.do(operations.mark_unknown(attempt, "cut", raw=b'{"id": "gen', generation="gen-1"))
    assert raw(ledger, attempt) == b'{"id": "gen'
    ledger.do(operations.mark_unknown(attempt, "cancelled"))
    ledger.do(operations.reconcile(attempt, Pico(7)))
    assert raw(ledger, attempt) == b'{"id": "gen'


def test_a_known_price_is_not_rewritten_by_another_attempt(ledger: Ledger) -> None:
    lost = lose(ledger, "k")
    ledger.do(operations.settle(send(ledger, "k"), Bill(Pico(30)), Reply(200, b"{}")))
    ledger.do(operations.reconcile(lost, Pico(50)))
    assert [row["cost"] for row in ledger.rows("t", DAY)] == [30]
    assert sums(ledger) == (80, 0, 0)


def test_the_late_end_of_one_attempt_leaves_the_key_to_another(ledger: Ledger) -> None:
    lost = lose(ledger, "k")
    send(ledger, "k")  # in flight again
    ledger.do(operations.mark_unknown(lost, "cancelled"))
    assert ledger.do(operations.reserve("k", Pico(100), SCOPES, CALL)).kind == "busy"


def test_a_call_fits_a_ceiling_that_it_reaches_exactly(ledger: Ledger) -> None:
    ledger.do(operations.set_ceiling("run:a", Decimal(300) / PICO))
    lose(ledger, "a")
    send(ledger, "b")
    send(ledger, "c")
    # 100 are unknown for good: 201 more never fit, 200 do once the others came back.
    assert ledger.do(operations.reserve("d", Pico(201), SCOPES, CALL)).kind == "refused"
    assert ledger.do(operations.reserve("d", Pico(200), SCOPES, CALL)).kind == "wait"


# -- sweeps --------------------------------------------------------------------------------


def test_the_whole_grace_is_waited_for(ledger: Ledger) -> None:
    lose(ledger, "a")
    assert ledger.path is not None
    with sqlite3.connect(ledger.path) as database:  # 700 of 1000 seconds ago
        database.execute("UPDATE scope SET touched_us = touched_us - 700000000")
    with pytest.raises(NotQuiescent) as early:
        ledger.do(sweep("run:a", Pico(5), Pico(0), grace_s=1000))
    assert 0 < early.value.wait_s <= 300
    with sqlite3.connect(ledger.path) as database:
        database.execute("UPDATE scope SET touched_us = touched_us - 300000000")
    assert ledger.do(sweep("run:a", Pico(5), Pico(0), grace_s=1000)).swept_pico == 5


def test_a_run_is_not_taken_for_another_whose_name_begins_alike(ledger: Ledger) -> None:
    mine = lose(ledger, "a", ["run:a", "global"])
    lose(ledger, "b", ["run:ab", "global"])
    send(ledger, "c", scopes=["run:ab", "global"])  # in flight
    assert [attempt.id for attempt in ledger.unknown_attempts("run:a")] == [mine]
    assert ledger.do(sweep("run:a", Pico(9), Pico(0))).attempts == 1
    assert sums(ledger, "run:ab") == (0, 100, 100)


def test_a_scope_with_a_part_of_the_attempts_is_charged_no_more_than_their_worst(
    ledger: Ledger,
) -> None:
    lose(ledger, "a", ["run:a", "teacher:t"])
    lose(ledger, "b", ["run:a", "teacher:other"])
    ledger.do(sweep("run:a", Pico(150), Pico(0)))
    assert sums(ledger) == (150, 0, 0)
    assert sums(ledger, "teacher:t") == sums(ledger, "teacher:other") == (100, 0, 0)


def test_what_a_sweep_settled_is_still_to_be_fetched(ledger: Ledger) -> None:
    lose(ledger, "a")
    ledger.do(sweep("run:a", Pico(30), Pico(0)))
    assert ledger.unknown_calls() == {("state", "t")}
    ledger.do(operations.settle(send(ledger, "a"), CacheHit("gen-1", None), Reply(200, b"{}")))
    assert ledger.unknown_calls() == set()
