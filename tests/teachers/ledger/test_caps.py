"""A key leaves the price cap out: bytes under one cap never settle those under another."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from composer_pipeline.money import Pico
from composer_pipeline.teachers.ledger import operations
from composer_pipeline.teachers.ledger.ledger import Ledger
from composer_pipeline.teachers.ledger.owner import retire
from composer_pipeline.teachers.ledger.values import Admission, Asked, Bill, CacheHit, Call, Reply

CALL = Call("state", "t", "session", "2026-11-16", {})
SCOPES = ["run:r", "global"]
#: Two caps of one question, and the keys that it had while they were part of them.
A = Asked("k", "a", "cap a", ("k", "a", "b"), kept_s=3600)
B = Asked("k", "b", "cap b", ("k", "a", "b"), kept_s=3600)


@pytest.fixture
def ledger(target: str | Path) -> Iterator[Ledger]:
    with Ledger(target) as ledger:
        yield ledger


def reserve(ledger: Ledger, asked: Asked | str, amount: int = 100, **options: Any) -> Admission:
    return ledger.do(operations.reserve(asked, Pico(amount), SCOPES, CALL, send=True, **options))


def lose(ledger: Ledger, asked: Asked | str, generation: str = "") -> str:
    admission = reserve(ledger, asked)
    assert admission.kind == "reserved", admission
    ledger.do(operations.mark_unknown(admission.attempt, "reset", generation=generation))
    return admission.attempt


def sums(ledger: Ledger) -> tuple[int, int, int]:
    held = ledger.status()["run:r"]
    return held.spent, held.reserved, held.unknown


def again(asked: Asked, told: Admission, tried: tuple[str, ...] = ()) -> Asked:
    return Asked(told.key, told.digest or asked.digest, told.cap, asked.keys, asked.kept_s, tried)


def test_a_reply_under_one_cap_answers_every_other(ledger: Ledger) -> None:
    bought = reserve(ledger, A)
    ledger.do(operations.settle(bought.attempt, Bill(Pico(7)), Reply(200, b"paid")))
    assert reserve(ledger, B) == Admission("cached", outcome="billed", key="k")
    assert ledger.do(operations.outcome(B, CALL)) == "billed"
    assert sums(ledger) == (7, 0, 0)


def test_a_lost_call_is_asked_again_with_its_own_bytes(ledger: Ledger) -> None:
    lose(ledger, A)
    told = reserve(ledger, B)
    assert (told.kind, told.key, told.digest, told.cap) == ("resume", "k", "a", "cap a")
    assert sums(ledger) == (0, 0, 100)  # nothing was reserved for it
    hit = reserve(ledger, again(B, told))
    assert hit.kind == "reserved"
    ledger.do(operations.settle(hit.attempt, CacheHit("gen-1", Pico(9)), Reply(200, b"hit")))
    assert sums(ledger) == (9, 0, 0)
    assert reserve(ledger, B).kind == "cached"


def test_a_hit_of_other_bytes_settles_nothing(ledger: Ledger) -> None:
    lost = lose(ledger, A)
    only_b = Asked("k", "b", "cap b", ("k",), tried=("a",))
    hit = reserve(ledger, only_b)
    ledger.do(operations.settle(hit.attempt, CacheHit("gen-1", Pico(9)), Reply(200, b"hit")))
    assert sums(ledger) == (0, 0, 100)
    assert [one.id for one in ledger.unknown_attempts()] == [lost]
    assert ledger.unsettled_generations() == []


def test_a_hit_settles_the_lost_call_of_its_own_bytes_alone(ledger: Ledger) -> None:
    lost = lose(ledger, A)
    lose(ledger, Asked("k", "b", "cap b", ("k",), tried=("a",)))
    # Both are lost; the file's own bytes are the ones to go on with.
    hit = reserve(ledger, B)
    assert hit.kind == "reserved"
    ledger.do(operations.settle(hit.attempt, CacheHit("gen-1", Pico(9)), Reply(200, b"hit")))
    assert sums(ledger) == (9, 0, 100)
    assert [one.id for one in ledger.unknown_attempts()] == [lost]


def test_a_source_that_other_bytes_are_known_to_have_bought_settles_no_one_else(
    ledger: Ledger,
) -> None:
    named = lose(ledger, A, generation="gen-1")
    nameless = lose(ledger, Asked("k", "b", "cap b", ("k",), tried=("a",)))
    hit = reserve(ledger, B)
    ledger.do(operations.settle(hit.attempt, CacheHit("gen-1", Pico(9)), Reply(200, b"hit")))
    assert {one.id for one in ledger.unknown_attempts()} == {named, nameless}
    assert ledger.unsettled_generations() == [(named, "gen-1")]
    ledger.do(operations.reconcile(named, Pico(9)))
    assert sums(ledger) == (9, 0, 100)


def test_a_reply_is_not_given_the_cost_of_other_bytes(ledger: Ledger) -> None:
    lost = lose(ledger, A, generation="gen-a")
    kept = reserve(ledger, Asked("k", "b", "cap b", ("k",), tried=("a",)))
    ledger.do(operations.keep(kept.attempt, Reply(200, b"no cost", "gen-b")))

    def cost() -> Any:
        (row,) = ledger.rows("t", "2026-11-16")
        return row["cost"]

    ledger.do(operations.reconcile(lost, Pico(9)))
    assert (cost(), sums(ledger)) == (None, (9, 0, 100))
    ledger.do(operations.reconcile(kept.attempt, Pico(5)))
    assert (cost(), sums(ledger)) == (5, (14, 0, 0))


def test_bytes_that_the_provider_keeps_no_more_are_left_alone(ledger: Ledger) -> None:
    lose(ledger, A)
    late = Asked("k", "b", "cap b", ("k",), kept_s=0)
    bought = reserve(ledger, late)
    assert bought.kind == "reserved"
    ledger.do(operations.settle(bought.attempt, Bill(Pico(5)), Reply(200, b"paid")))
    assert sums(ledger) == (5, 0, 100)


def test_bytes_that_came_to_nothing_are_not_asked_again(ledger: Ledger) -> None:
    lose(ledger, A)
    told = reserve(ledger, B)
    tried = reserve(ledger, again(B, told))
    ledger.do(operations.release(tried.attempt, "constraint_filtered"))
    assert reserve(ledger, B).kind == "resume"
    mine = Asked("k", "b", "cap b", B.keys, 3600, ("a",))
    assert reserve(ledger, mine).kind == "reserved"
    assert sums(ledger) == (0, 100, 100)


def test_two_caps_at_once_are_one_flight(ledger: Ledger) -> None:
    assert reserve(ledger, A).kind == "reserved"
    assert reserve(ledger, B).kind == "busy"


def test_what_the_dead_left_is_asked_with_its_own_bytes(target: str | Path) -> None:
    dead = Ledger(target)
    reserve(dead, A)
    retire(dead.owner)
    with Ledger(target) as ledger:
        assert reserve(ledger, B, recover_after_s=60).kind == "resume"
        told = reserve(ledger, B)
        assert (told.kind, told.digest) == ("resume", "a")
        # Its generation may still run: the same bytes are not sent at once.
        assert reserve(ledger, again(B, told), recover_after_s=60).kind == "busy"
        assert reserve(ledger, again(B, told)).kind == "reserved"
    dead.close()


def test_a_forgotten_reply_is_had_again_with_its_own_bytes(ledger: Ledger) -> None:
    bought = reserve(ledger, A)
    ledger.do(operations.settle(bought.attempt, Bill(Pico(7)), Reply(200, b"odd", "gen-1")))
    ledger.do(operations.forget("k"))
    told = reserve(ledger, B)
    assert (told.kind, told.digest, told.cap) == ("resume", "a", "cap a")
    hit = reserve(ledger, again(B, told))
    ledger.do(
        operations.settle(hit.attempt, CacheHit("gen-1", Pico(7)), Reply(200, b"whole", "gen-2"))
    )
    assert sums(ledger) == (7, 0, 0)
    (row,) = ledger.rows("t", "2026-11-16")
    assert (row["body"], row["cost"]) == (b"whole", 7)


def test_where_the_older_key_has_come_to_nothing_the_new_one_is_next(ledger: Ledger) -> None:
    gone = Asked("a", "a", "", ("k", "a"), kept_s=3600)
    assert reserve(ledger, gone) == Admission("resume", key="k")
