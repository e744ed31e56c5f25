"""Being exact again: late answers, sweeps, reconciliation, quarantine, other machines."""

import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from composer_pipeline.money import Pico, billed_pico
from composer_pipeline.teachers.ledger import operations, transaction
from composer_pipeline.teachers.ledger.ledger import Ledger
from composer_pipeline.teachers.ledger.sweep import proportional, set_run_key, sweep
from composer_pipeline.teachers.ledger.transaction import lives, new_owner, retire
from composer_pipeline.teachers.ledger.values import (
    Bill,
    CacheHit,
    Call,
    NotQuiescent,
    Reply,
    SweepMismatch,
)

SCOPES = ["run:r", "teacher:t", "global"]
CALL = Call("state", "t", "session", "2026-11-16", {})


@pytest.fixture
def ledger(target: str | Path) -> Iterator[Ledger]:
    with Ledger(target) as ledger:
        ledger.do(operations.set_ceiling("run:r", Decimal(1000) / 10**12))
        yield ledger


def sums(ledger: Ledger, scope: str = "run:r") -> tuple[int, int, int]:
    status = ledger.status()[scope]
    return status.spent, status.reserved, status.unknown


def events(ledger: Ledger, kind: str) -> list[tuple[Any, ...]]:
    return ledger._store.read("SELECT teacher, attempt FROM event WHERE kind = ?", (kind,))[1]


def send(ledger: Ledger, key: str, amount: int = 100, call: Call = CALL) -> str:
    admission = ledger.do(operations.reserve(key, Pico(amount), SCOPES, call))
    assert admission.kind == "reserved", admission
    return admission.attempt


# -- sweep ---------------------------------------------------------------------------


def test_a_sweep_makes_the_ledger_equal_to_the_bill(ledger: Ledger) -> None:
    ledger.do(operations.settle(send(ledger, "a"), Bill(Pico(40)), Reply(200, b"{}")))
    for key in "bcd":
        ledger.do(operations.mark_unknown(send(ledger, key), "reset"))
    assert sums(ledger) == (40, 0, 300)
    result = ledger.do(sweep("run:r", Pico(1057), Pico(1000)))
    assert (result.attempts, result.unknown_pico, result.swept_pico) == (3, 300, 17)
    assert result.spent_pico == 57
    assert sums(ledger) == sums(ledger, "teacher:t") == sums(ledger, "global") == (57, 0, 0)
    # Swept again, it only says that both still agree.
    assert ledger.do(sweep("run:r", Pico(1057), Pico(1000))).attempts == 0
    with pytest.raises(SweepMismatch):
        ledger.do(sweep("run:r", Pico(1058), Pico(1000)))
    assert len(events(ledger, "swept")) == 1


@pytest.mark.parametrize("usage", [39, 141])
def test_a_bill_that_cannot_be_is_refused(ledger: Ledger, usage: int) -> None:
    ledger.do(operations.settle(send(ledger, "a"), Bill(Pico(40)), Reply(200, b"{}")))
    ledger.do(operations.mark_unknown(send(ledger, "b"), "reset"))
    with pytest.raises(SweepMismatch, match="run:r") as found:
        ledger.do(sweep("run:r", Pico(usage), Pico(0)))
    assert (found.value.value_pico, found.value.unknown_pico) == (usage - 40, 100)
    assert sums(ledger) == (40, 0, 100)


def test_no_sweep_while_calls_are_in_flight_or_the_meter_may_lag(ledger: Ledger) -> None:
    flying = send(ledger, "a")
    with pytest.raises(NotQuiescent, match="in flight"):
        ledger.do(sweep("run:r", Pico(0), Pico(0)))
    ledger.do(operations.mark_unknown(flying, "reset"))
    with pytest.raises(NotQuiescent) as found:
        ledger.do(sweep("run:r", Pico(5), Pico(0), grace_s=60))
    assert 50 < found.value.wait_s <= 60
    assert ledger.do(sweep("run:r", Pico(5), Pico(0))).swept_pico == 5


def test_a_sweep_leaves_other_runs_alone(ledger: Ledger) -> None:
    ledger.do(operations.mark_unknown(send(ledger, "a"), "reset"))
    other = ledger.do(operations.reserve("b", Pico(100), ["run:other", "global"], CALL)).attempt
    assert (
        ledger.do(sweep("run:r", Pico(9), Pico(0))).attempts == 1
    )  # the other run may be in flight
    ledger.do(operations.mark_unknown(other, "reset"))
    assert ledger.do(sweep("run:r", Pico(9), Pico(0))).attempts == 0
    assert sums(ledger, "run:other") == (0, 0, 100)
    assert sums(ledger, "global") == (9, 0, 100)


def test_an_answer_after_the_sweep_is_kept_and_charged_once(ledger: Ledger) -> None:
    late = send(ledger, "a")
    ledger.do(operations.mark_unknown(late, "timeout"))
    ledger.do(sweep("run:r", Pico(30), Pico(0)))
    again = send(ledger, "a")  # a recovery: the provider's cache answers
    ledger.do(operations.settle(again, CacheHit("gen-1", Pico(30)), Reply(200, b"{}")))
    assert sums(ledger) == (30, 0, 0)
    assert ledger.rows("t", "2026-11-16")[0]["cost"] == 30
    ledger.do(operations.settle(late, Bill(Pico(30)), Reply(200, b"{}")))
    assert sums(ledger) == (30, 0, 0)


def test_shares_are_whole_and_within_their_weights() -> None:
    assert proportional(0, [5, 5]) == [0, 0]
    assert proportional(10, [5, 5]) == [5, 5]
    assert proportional(0, []) == []
    for total in range(24):
        parts = proportional(total, [1, 7, 0, 15])
        assert sum(parts) == total
        assert all(0 <= part <= most for part, most in zip(parts, [1, 7, 0, 15], strict=True))


def test_keys_of_a_run_are_remembered_by_their_hash(ledger: Ledger) -> None:
    ledger.do(set_run_key("run:r", "sha256:1", Pico(1000)))
    ledger.do(set_run_key("run:r", "sha256:1", Pico(2000)))
    ledger.do(set_run_key("run:other", "sha256:2", Pico(5)))
    (key,) = ledger.run_keys("run:r")
    assert (key.key_hash, key.baseline_pico) == ("sha256:1", 1000)


# -- answers that come late, and generations -------------------------------------------


@pytest.mark.parametrize("end", ["settle", "release", "unknown"])
def test_an_owner_that_was_not_dead_may_still_end_its_call(
    ledger: Ledger, target: str | Path, end: str
) -> None:
    attempt = send(ledger, "a")
    retire(ledger.owner)
    with Ledger(target) as other:
        assert other.do(operations.adopt_dead()) == 1
        assert sums(other) == (0, 0, 100)
        flying = send(other, "a")
        if end == "settle":
            ledger.do(operations.settle(attempt, Bill(Pico(7)), Reply(200, b"{}")))
            assert sums(ledger) == (7, 100, 0)
        elif end == "release":
            ledger.do(operations.release(attempt, "429"))
            assert sums(ledger) == (0, 100, 0)
        else:
            ledger.do(operations.mark_unknown(attempt, "reset", generation="gen-1"))
            assert ledger.unsettled_generations() == [(attempt, "gen-1")]
        # The other owner's claim is not touched by any of it.
        assert ledger.do(operations.reserve("a", Pico(1), [], CALL)).kind == (
            "cached" if end == "settle" else "busy"
        )
        other.do(operations.release(flying, ""))


def test_a_generation_is_kept_for_everyone(ledger: Ledger, target: str | Path) -> None:
    attempt = send(ledger, "a")
    ledger.do(operations.mark_unknown(attempt, "half a reply", generation="gen-9"))
    retire(ledger.owner)
    with Ledger(target) as other:
        assert other.unsettled_generations() == [(attempt, "gen-9")]
        (unknown,) = other.unknown_attempts("run:r")
        assert (unknown.id, unknown.teacher, unknown.answered) == (attempt, "t", False)
        assert other.unknown_attempts("run:other") == []
        assert other.do(operations.reconcile(attempt, Pico(12)))
        assert other.do(operations.reconcile(attempt, Pico(99)))
    assert sums(ledger) == (12, 0, 0)
    # Its cached answer costs what the generation did, and nothing more.
    ledger.do(operations.settle(send(ledger, "a"), CacheHit("gen-9", None), Reply(200, b"{}")))
    assert sums(ledger) == (12, 0, 0)
    assert ledger.rows("t", "2026-11-16")[0]["cost"] == 12


def test_a_generation_is_not_forgotten_by_a_later_look(ledger: Ledger) -> None:
    attempt = send(ledger, "a")
    ledger.do(operations.mark_unknown(attempt, "half a reply", generation="gen-9"))
    ledger.do(operations.mark_unknown(attempt, "the stream broke"))
    assert ledger.unsettled_generations() == [(attempt, "gen-9")]


def test_a_bill_replaces_a_refusal(ledger: Ledger) -> None:
    first = send(ledger, "a")
    ledger.do(operations.mark_unknown(first, "reset"))
    ledger.do(operations.release(send(ledger, "a"), "no", Reply(403, b"no")))
    ledger.do(operations.settle(first, Bill(Pico(5)), Reply(200, b"{}")))
    assert ledger.do(operations.outcome("a", CALL)) == "billed"


def test_own_provider_keys_cost_both() -> None:
    assert billed_pico(Pico(5), Pico(100), is_byok=True) == 105
    assert billed_pico(Pico(5), Pico(100), is_byok=False) == 5


# -- quarantine ------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["settle", "reconcile", "source"])
def test_a_bill_above_its_worst_case_quarantines_the_teacher(
    ledger: Ledger, target: str | Path, how: str
) -> None:
    attempt = send(ledger, "a")
    if how == "settle":
        assert not ledger.do(operations.settle(attempt, Bill(Pico(101)), Reply(200, b"{}")))
    else:
        ledger.do(operations.mark_unknown(attempt, "reset"))
    if how == "reconcile":
        assert not ledger.do(operations.reconcile(attempt, Pico(101)))
    elif how == "source":
        ledger.do(
            operations.settle(send(ledger, "a"), CacheHit("gen-1", Pico(101)), Reply(200, b"{}"))
        )
    assert sums(ledger) == (101, 0, 0)
    with Ledger(target) as other:  # durably, for everyone
        admission = other.do(operations.reserve("b", Pico(1), SCOPES, CALL))
        assert (admission.kind, admission.scope) == ("quarantined", "teacher:t")
        assert "worst case of 100" in admission.why
        assert events(other, "bound_violation") == [("t", attempt)]
        assert (
            other.do(operations.reserve("b", Pico(1), SCOPES, Call("s", "u", "x", "d", {}))).kind
            == "reserved"
        )
        assert other.do(operations.lift_quarantine("t"))
        assert not other.do(operations.lift_quarantine("t"))
    assert ledger.quarantined() == {}
    assert ledger.do(operations.reserve("c", Pico(1), SCOPES, CALL)).kind == "reserved"


# -- owners ----------------------------------------------------------------------------


def elsewhere(owner: str) -> str:
    """The same owner as another machine would have named it."""
    return "00000000-other-boot@1:" + owner.partition(":")[2]


def beat(ledger: Ledger) -> None:
    ledger._beat = 0.0
    ledger.apply([])


def test_on_another_machine_the_heartbeat_decides(
    ledger: Ledger, target: str | Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.owner = elsewhere(ledger.owner)
    beat(ledger)
    attempt = send(ledger, "a")
    with Ledger(target) as other:
        assert other.do(operations.reserve("a", Pico(1), [], CALL)).kind == "busy"
        assert other.do(operations.adopt_dead()) == 0
        monkeypatch.setattr(transaction, "STALE_S", -1)
        assert other.do(operations.adopt_dead()) == 1
        assert sums(other) == (0, 0, 100)
    ledger.do(operations.settle(attempt, Bill(Pico(1)), Reply(200, b"{}")))


@pytest.mark.parametrize(("silent_s", "adopted"), [(40, 0), (80, 1)])
def test_an_owner_elsewhere_is_dead_after_a_minute_without_a_beat(
    ledger: Ledger, target: str | Path, silent_s: int, adopted: int
) -> None:
    ledger.owner = elsewhere(ledger.owner)
    beat(ledger)
    send(ledger, "a")
    with Ledger(target) as other, other._store.transaction() as session:
        earlier = "UPDATE owner SET beat_us = beat_us - ? WHERE id = ?"
        session.write([(earlier, [(silent_s * 1_000_000, ledger.owner)])])
    with Ledger(target) as other:
        assert other.do(operations.adopt_dead()) == adopted


def test_an_owner_elsewhere_that_never_beat_is_dead(ledger: Ledger, target: str | Path) -> None:
    ledger.owner = elsewhere(ledger.owner)
    beat(ledger)
    send(ledger, "a")
    with Ledger(target) as other, other._store.transaction() as session:
        session.write([("DELETE FROM owner WHERE id = ?", [(ledger.owner,)])])
    with Ledger(target) as other:
        assert other.do(operations.adopt_dead()) == 1


def test_closing_gives_up_what_is_open(ledger: Ledger, target: str | Path) -> None:
    with Ledger(target) as other:
        send(other, "sent")
    assert sums(ledger) == (0, 0, 100)
    assert ledger.do(operations.reserve("sent", Pico(50), SCOPES, CALL)).kind == "reserved"


def test_identity_of_owners() -> None:
    owner = new_owner()
    assert lives(owner)
    assert lives(elsewhere(owner)) is None
    retire(owner)
    assert lives(owner) is False


def test_a_hit_settles_what_its_own_run_lost(ledger: Ledger) -> None:
    """Two runs lost a call of the same key; the hit of the second one is the second's bill."""
    call = Call("s1", "a", "s", "2026-11-16", {})
    lost = {}
    for name in ("first", "second"):
        scopes = [f"run:{name}", "global"]
        lost[name] = ledger.do(operations.reserve("k", Pico(100), scopes, call)).attempt
        ledger.do(operations.mark_unknown(lost[name], "reset"))
    hit = ledger.do(operations.reserve("k", Pico(100), ["run:second", "global"], call))
    paid = CacheHit("gen-1", Pico(40))
    ledger.do(operations.settle(hit.attempt, paid, Reply(200, b"{}", "gen-2")))
    status = ledger.status()
    assert (status["run:second"].spent, status["run:second"].unknown) == (40, 0)
    assert (status["run:first"].spent, status["run:first"].unknown) == (0, 100)


@pytest.mark.parametrize("minted", [True, False])
def test_a_hit_of_a_later_run_settles_an_earlier_one_unless_the_key_is_its_own(
    ledger: Ledger, minted: bool
) -> None:
    call = Call("s1", "a", "s", "2026-11-16", {})
    lost = ledger.do(operations.reserve("k", Pico(100), ["run:first"], call)).attempt
    ledger.do(operations.mark_unknown(lost, "reset"))
    if minted:
        ledger.do(set_run_key("run:second", "hash", Pico(0)))
    hit = ledger.do(operations.reserve("k", Pico(100), ["run:second"], call))
    ledger.do(
        operations.settle(hit.attempt, CacheHit("gen-1", Pico(40)), Reply(200, b"{}", "gen-2"))
    )
    first = ledger.status()["run:first"]
    assert (first.spent, first.unknown) == ((0, 100) if minted else (40, 0))


def test_a_baseline_that_holds_lost_bills_frees_nothing(ledger: Ledger) -> None:
    """The meter was read after a call was lost: it says nothing of that call any more."""
    call = Call("s1", "a", "s", "2026-11-16", {})
    old = ledger.do(operations.reserve("old", Pico(100), ["global"], call)).attempt
    ledger.do(operations.mark_unknown(old, "reset"))
    time.sleep(0.01)
    ledger.do(set_run_key("global", "hash", Pico(70)))  # 70 of it are the lost bill
    (noted,) = ledger.run_keys("global")
    time.sleep(0.01)
    new = ledger.do(operations.reserve("new", Pico(50), ["global"], call)).attempt
    ledger.do(operations.mark_unknown(new, "reset"))
    result = ledger.do(sweep("global", Pico(90), Pico(70), since_us=noted.created_us))
    assert (result.attempts, result.swept_pico) == (1, 20)
    held = ledger.status()["global"]
    assert (held.spent, held.unknown) == (20, 100)
    # What the old one cost is learned later, and the meter still agrees.
    ledger.do(operations.reconcile(old, Pico(70)))
    result = ledger.do(sweep("global", Pico(90), Pico(70), since_us=noted.created_us))
    assert (result.attempts, ledger.status()["global"].spent) == (0, 90)


def test_what_becomes_unknown_while_the_meter_is_read_waits_its_grace(ledger: Ledger) -> None:
    call = Call("s1", "a", "s", "2026-11-16", {})
    assert ledger.do(sweep("run:r", Pico(0), Pico(0), grace_s=60)).attempts == 0
    lost = ledger.do(operations.reserve("k", Pico(100), ["run:r"], call)).attempt
    ledger.do(operations.mark_unknown(lost, "owner died"))
    with pytest.raises(NotQuiescent):
        ledger.do(sweep("run:r", Pico(0), Pico(0), grace_s=60))


def test_an_answer_without_a_cost_is_kept_and_charged(ledger: Ledger) -> None:
    call = Call("s1", "a", "s", "2026-11-16", {})
    attempt = ledger.do(operations.reserve("k", Pico(100), ["run:r"], call)).attempt
    ledger.do(operations.keep(attempt, Reply(200, b"\xff", "gen-1", detail="unreadable")))
    assert ledger.status()["run:r"].unknown == 100
    assert ledger.do(operations.reserve("k", Pico(100), ["run:r"], call)).kind == "cached"
    assert not ledger.unknown_calls()
    (row,) = ledger.rows("a", "2026-11-16")
    assert (row["body"], row["cost"], row["detail"]) == (b"\xff", None, "unreadable")
    ledger.do(operations.reconcile(attempt, Pico(40)))
    (row,) = ledger.rows("a", "2026-11-16")
    assert (row["cost"], ledger.status()["run:r"].spent) == (40, 40)
    # Asked for once more, its bytes stay with the attempt.
    ledger.do(operations.forget("k"))
    assert ledger.do(operations.reserve("k", Pico(100), ["run:r"], call)).kind == "reserved"
