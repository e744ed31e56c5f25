"""What the chaos test taught, each as the smallest case."""

import time
from decimal import Decimal
from pathlib import Path

from composer_pipeline.money import Pico
from composer_pipeline.teachers.ledger import operations
from composer_pipeline.teachers.ledger.ledger import Ledger
from composer_pipeline.teachers.ledger.sweep import sweep
from composer_pipeline.teachers.ledger.values import CacheHit, Call, Reply
from composer_pipeline.teachers.outcome import classify


def test_a_sweep_never_frees_money_of_a_teacher_that_was_billed(tmp_path: Path) -> None:
    """The provider tells the sum of a run, not whose it is.

    Two teachers have one unknown attempt each; only the first one was billed. Sharing the
    sum out would leave room under the first one's ceiling that is already spent.
    """
    with Ledger(tmp_path / "ledger.db") as ledger:
        ledger.do(operations.set_ceiling("teacher:a", Decimal("0.000000000100")))
        for teacher in ("a", "b"):
            call = Call(teacher, teacher, "s", "2026-11-16", {})
            scopes = ["run:r", f"teacher:{teacher}", "global"]
            attempt = ledger.do(operations.reserve(teacher, Pico(100), scopes, call)).attempt
            ledger.do(operations.mark_unknown(attempt, "reset"))
        ledger.do(sweep("run:r", Pico(90), Pico(0)))
        status = ledger.status()
        assert status["run:r"].spent == status["global"].spent == 90
        assert status["teacher:a"].spent >= 90
        call = Call("more", "a", "s", "2026-11-16", {})
        more = ledger.do(
            operations.reserve("more", Pico(11), ["run:r", "teacher:a", "global"], call)
        )
        assert (more.kind, more.scope) == ("refused", "teacher:a")
        # What the provider's meter says later is still what the run has spent.
        assert ledger.do(sweep("run:r", Pico(90), Pico(0))).spent_pico == 90


def test_half_a_cache_hit_is_not_the_reply() -> None:
    """It cost nothing, and the whole reply can be had once more: it must not be stored."""
    headers = {"x-generation-id": "gen-2", "x-openrouter-cache-source-id": "gen-1"}
    outcome = classify(200, headers, b'{"id":"gen-1","choices":[{"ind', 1.0)
    assert (outcome.kind, outcome.retryable) == ("unbilled", True)
    whole = classify(200, headers, b'{"id":"gen-1","choices":[],"usage":{"cost":0}}', 1.0)
    assert (whole.kind, whole.cost, whole.source_id) == ("billed", 0, "gen-1")


def test_what_a_sweep_has_charged_is_not_charged_again_by_a_hit(tmp_path: Path) -> None:
    """A call is lost and swept; asked again it is lost once more; then a hit tells its source.

    The sweep has charged the first loss. Which of the two the source is nobody knows, so the
    second one stays unknown until the next sweep, and the ledger stays equal to the bill.
    """
    call = Call("s1", "a", "s", "2026-11-16", {})
    scopes = ["run:r", "teacher:a", "global"]
    with Ledger(tmp_path / "ledger.db") as ledger:
        first = ledger.do(operations.reserve("k", Pico(100), scopes, call)).attempt
        ledger.do(operations.mark_unknown(first, "owner died"))
        ledger.do(sweep("run:r", Pico(40), Pico(0)))  # gen-1 was billed 40
        second = ledger.do(operations.reserve("k", Pico(100), scopes, call)).attempt
        ledger.do(
            operations.mark_unknown(second, "reset")
        )  # a hit of gen-1 that was lost on its way
        third = ledger.do(operations.reserve("k", Pico(100), scopes, call)).attempt
        reply = Reply(200, b"{}", "gen-3", 1.0)
        assert ledger.do(operations.settle(third, CacheHit("gen-1", Pico(40)), reply))
        sums = ledger.status()["run:r"]
        assert (sums.spent, sums.unknown) == (40, 100)
        swept = ledger.do(sweep("run:r", Pico(40), Pico(0)))
        assert (swept.swept_pico, swept.spent_pico) == (0, 40)
        (row,) = ledger.rows("a", "2026-11-16")
        assert row["cost"] == 40


def test_a_call_that_died_is_not_bought_again_while_it_is_generated(tmp_path: Path) -> None:
    """Another process may not send the same bytes at once, whoever lost the call."""
    call = Call("s1", "a", "s", "2026-11-16", {})
    ledger = Ledger(tmp_path / "ledger.db")
    with Ledger(tmp_path / "ledger.db") as other:
        lost = ledger.do(operations.reserve("k", Pico(100), ["global"], call)).attempt
        ledger.do(operations.mark_unknown(lost, "reset"))
        assert (
            other.do(operations.reserve("k", Pico(100), ["global"], call, recover_after_s=60)).kind
            == "busy"
        )
        assert other.do(
            operations.reserve("other", Pico(100), ["global"], call, recover_after_s=60)
        ).attempt
        ledger.do(operations.reserve("dies", Pico(100), ["global"], call))
        ledger.close()
        assert (
            other.do(
                operations.reserve("dies", Pico(100), ["global"], call, recover_after_s=60)
            ).kind
            == "busy"
        )
        time.sleep(0.2)
        assert other.do(
            operations.reserve("dies", Pico(100), ["global"], call, recover_after_s=0.1)
        ).attempt
        assert other.do(operations.reserve("k", Pico(100), ["global"], call)).attempt
