"""A key leaves the price cap out: bytes under one cap never settle those under another."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from composer_pipeline.money import Pico
from composer_pipeline.teachers.ledger import operations
from composer_pipeline.teachers.ledger.ledger import Ledger
from composer_pipeline.teachers.ledger.transaction import retire
from composer_pipeline.teachers.ledger.values import Admission, Bill, CacheHit, Call, Reply

CALL = Call("state", "t", "session", "2026-11-16", {})
SCOPES = ["run:r", "global"]
#: The digests of one question under two caps.
A, B = "a", "b"


@pytest.fixture
def ledger(target: str | Path) -> Iterator[Ledger]:
    with Ledger(target) as ledger:
        yield ledger


def reserve(ledger: Ledger, digest: str, amount: int = 100, **options: Any) -> Admission:
    return ledger.do(operations.reserve("k", Pico(amount), SCOPES, CALL, digest=digest, **options))


def lose(ledger: Ledger, digest: str, generation: str = "") -> str:
    admission = reserve(ledger, digest)
    assert admission.kind == "reserved", admission
    ledger.do(operations.mark_unknown(admission.attempt, "reset", generation=generation))
    return admission.attempt


def sums(ledger: Ledger) -> tuple[int, int, int]:
    held = ledger.status()["run:r"]
    return held.spent, held.reserved, held.unknown


def test_a_reply_under_one_cap_answers_every_other(ledger: Ledger) -> None:
    bought = reserve(ledger, A)
    ledger.do(operations.settle(bought.attempt, Bill(Pico(7)), Reply(200, b"paid")))
    assert reserve(ledger, B) == Admission("cached", outcome="billed")
    assert ledger.do(operations.outcome("k", CALL)) == "billed"
    assert sums(ledger) == (7, 0, 0)


def test_what_was_lost_under_one_cap_stays_charged_beside_the_next(ledger: Ledger) -> None:
    lost = lose(ledger, A)
    bought = reserve(ledger, B)
    assert bought.kind == "reserved"
    assert sums(ledger) == (0, 100, 100)
    ledger.do(operations.settle(bought.attempt, Bill(Pico(5)), Reply(200, b"paid")))
    assert sums(ledger) == (5, 0, 100)
    assert [one.id for one in ledger.unknown_attempts()] == [lost]


def test_a_hit_of_other_bytes_settles_nothing(ledger: Ledger) -> None:
    lost = lose(ledger, A)
    hit = reserve(ledger, B)
    ledger.do(operations.settle(hit.attempt, CacheHit("gen-1", Pico(9)), Reply(200, b"hit")))
    assert sums(ledger) == (0, 0, 100)
    assert [one.id for one in ledger.unknown_attempts()] == [lost]
    assert ledger.unsettled_generations() == []


def test_a_hit_settles_the_lost_call_of_its_own_bytes_alone(ledger: Ledger) -> None:
    lost = lose(ledger, A)
    lose(ledger, B)
    hit = reserve(ledger, B)
    assert hit.kind == "reserved"
    ledger.do(operations.settle(hit.attempt, CacheHit("gen-1", Pico(9)), Reply(200, b"hit")))
    assert sums(ledger) == (9, 0, 100)
    assert [one.id for one in ledger.unknown_attempts()] == [lost]


def test_a_source_that_other_bytes_are_known_to_have_bought_settles_no_one_else(
    ledger: Ledger,
) -> None:
    named = lose(ledger, A, generation="gen-1")
    nameless = lose(ledger, B)
    hit = reserve(ledger, B)
    ledger.do(operations.settle(hit.attempt, CacheHit("gen-1", Pico(9)), Reply(200, b"hit")))
    assert {one.id for one in ledger.unknown_attempts()} == {named, nameless}
    assert ledger.unsettled_generations() == [(named, "gen-1")]
    ledger.do(operations.reconcile(named, Pico(9)))
    assert sums(ledger) == (9, 0, 100)


def test_a_reply_is_not_given_the_cost_of_other_bytes(ledger: Ledger) -> None:
    lost = lose(ledger, A, generation="gen-a")
    kept = reserve(ledger, B)
    ledger.do(operations.keep(kept.attempt, Reply(200, b"no cost", "gen-b")))

    def cost() -> Any:
        (row,) = ledger.rows("t", "2026-11-16")
        return row["cost"]

    ledger.do(operations.reconcile(lost, Pico(9)))
    assert (cost(), sums(ledger)) == (None, (9, 0, 100))
    ledger.do(operations.reconcile(kept.attempt, Pico(5)))
    assert (cost(), sums(ledger)) == (5, (14, 0, 0))


def test_two_caps_at_once_are_one_flight(ledger: Ledger) -> None:
    assert reserve(ledger, A).kind == "reserved"
    assert reserve(ledger, B).kind == "busy"


def test_what_the_dead_left_may_still_be_generated_under_any_cap(target: str | Path) -> None:
    dead = Ledger(target)
    reserve(dead, A)
    retire(dead.owner)
    with Ledger(target) as ledger:
        assert reserve(ledger, B, recover_after_s=60).kind == "busy"
        assert reserve(ledger, A, recover_after_s=60).kind == "busy"
        assert reserve(ledger, A).kind == "reserved"
    dead.close()


def test_a_forgotten_reply_is_had_again_with_the_same_bytes(ledger: Ledger) -> None:
    bought = reserve(ledger, A)
    ledger.do(operations.settle(bought.attempt, Bill(Pico(7)), Reply(200, b"odd", "gen-1")))
    ledger.do(operations.forget("k"))
    hit = reserve(ledger, A)
    ledger.do(
        operations.settle(hit.attempt, CacheHit("gen-1", Pico(7)), Reply(200, b"whole", "gen-2"))
    )
    assert sums(ledger) == (7, 0, 0)
    (row,) = ledger.rows("t", "2026-11-16")
    assert (row["body"], row["cost"]) == (b"whole", 7)
