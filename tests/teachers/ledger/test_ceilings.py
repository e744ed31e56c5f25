"""Ceilings that several runs share, and what counts as an overspend."""

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from composer_pipeline.errors import InputError
from composer_pipeline.money import PICO, Pico
from composer_pipeline.teachers.ledger import operations
from composer_pipeline.teachers.ledger.ledger import Ledger, check_shared
from composer_pipeline.teachers.ledger.values import Bill, Call, Reply

CALL = Call("state", "t", "session", "2026-11-16", {})
SHARED = "backfill:b"


@pytest.fixture
def ledger(target: str | Path) -> Iterator[Ledger]:
    with Ledger(target) as ledger:
        yield ledger


def usd(pico: int) -> Decimal:
    return pico / PICO


def ceiling(ledger: Ledger, scope: str = SHARED) -> int | None:
    return ledger.status()[scope].ceiling


def buy(ledger: Ledger, key: str, reserve: int, cost: int, scopes: list[str]) -> None:
    admission = ledger.do(operations.reserve(key, Pico(reserve), scopes, CALL))
    assert admission.kind == "reserved", admission
    ledger.do(operations.settle(admission.attempt, Bill(Pico(cost)), Reply(200, b"{}")))


def test_a_later_run_raises_and_never_lowers_or_resets(ledger: Ledger) -> None:
    assert ledger.do(operations.raise_ceiling(SHARED, usd(100))) == 100
    buy(ledger, "a", 60, 60, [SHARED])
    assert ledger.do(operations.raise_ceiling(SHARED, usd(80))) == 100
    assert ledger.do(operations.raise_ceiling(SHARED, usd(100))) == 100
    assert ledger.status()[SHARED].spent == 60
    assert ledger.do(operations.raise_ceiling(SHARED, usd(150))) == 150
    assert ledger.status()[SHARED].spent == 60


@pytest.mark.parametrize("chosen", [40, None])
def test_what_a_person_set_meanwhile_stays(ledger: Ledger, chosen: int | None) -> None:
    ledger.do(operations.raise_ceiling(SHARED, usd(100)))
    ledger.do(operations.set_ceiling(SHARED, None if chosen is None else usd(chosen)))
    ledger.do(operations.raise_ceiling(SHARED, usd(100)))  # the next run of the same backfill
    assert ceiling(ledger) == chosen
    ledger.do(operations.set_ceiling(SHARED, usd(500)))
    ledger.do(operations.raise_ceiling(SHARED, usd(200)))
    assert ceiling(ledger) == 500


def test_a_ceiling_set_below_what_was_spent_is_no_overspend(ledger: Ledger) -> None:
    ledger.do(operations.set_ceiling("global", usd(1000)))
    buy(ledger, "a", 60, 60, ["global"])
    ledger.do(operations.set_ceiling("global", usd(10)))
    assert ledger.overspent() == {}
    assert ledger.do(operations.reserve("b", Pico(1), ["global"], CALL)).kind == "refused"


def test_a_call_that_ends_below_a_ceiling_set_meanwhile_is_no_overspend(ledger: Ledger) -> None:
    """A person lowers the ceiling while calls are out; what they give back admits nothing."""
    ledger.do(operations.set_ceiling("global", usd(100)))
    out = ledger.do(operations.reserve("a", Pico(60), ["global"], CALL))
    ledger.do(operations.set_ceiling("global", usd(10)))
    ledger.do(operations.settle(out.attempt, Bill(Pico(50)), Reply(200, b"{}")))
    assert ledger.overspent() == {}


def test_a_bill_above_its_reservation_that_passes_the_ceiling_is_one(ledger: Ledger) -> None:
    ledger.do(operations.set_ceiling("global", usd(100)))
    ledger.do(operations.set_ceiling("run:r", usd(1000)))
    buy(ledger, "a", 90, 130, ["global", "run:r"])
    assert ledger.overspent() == {"global": 30}
    ledger.do(operations.set_ceiling("global", usd(20)))  # stopping does not hide it
    assert ledger.overspent() == {"global": 30}
    ledger.do(operations.set_ceiling("global", usd(200)))  # its owner has accepted it
    assert ledger.overspent() == {}


def test_an_unknown_outcome_counts_at_its_worst_case(ledger: Ledger) -> None:
    ledger.do(operations.set_ceiling("global", usd(100)))
    admission = ledger.do(operations.reserve("a", Pico(90), ["global"], CALL))
    ledger.do(operations.mark_unknown(admission.attempt, "reset"))
    ledger.do(operations.reconcile(admission.attempt, Pico(120)))
    assert ledger.overspent() == {"global": 20}


@pytest.mark.parametrize("name", ["global", "run:r", "month:2026-11", "backfill:", "root:a b", "x"])
def test_only_scopes_of_runs_that_belong_together_are_shared(name: str) -> None:
    with pytest.raises(InputError, match=name):
        check_shared(name)
