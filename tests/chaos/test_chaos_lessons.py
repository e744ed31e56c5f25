"""What the chaos test taught, each as the smallest case."""

from decimal import Decimal
from pathlib import Path

from composer_pipeline.replay.ledger import Call, Ledger
from composer_pipeline.replay.wire_outcome import classify


def test_a_sweep_never_frees_money_of_a_teacher_that_was_billed(tmp_path: Path) -> None:
    """The provider tells the sum of a run, not whose it is.

    Two teachers have one unknown attempt each; only the first one was billed. Sharing the
    sum out would leave room under the first one's ceiling that is already spent.
    """
    with Ledger(tmp_path / "ledger.db") as ledger:
        ledger.set_ceiling("teacher:a", Decimal("0.000000000100"))
        for teacher in ("a", "b"):
            call = Call(teacher, teacher, "s", "2026-11-16", {})
            scopes = ["run:r", f"teacher:{teacher}", "global"]
            attempt = ledger.reserve(teacher, 100, scopes, call).attempt
            ledger.mark_sent(attempt)
            ledger.mark_unknown(attempt, "reset")
        ledger.sweep("run:r", 90, 0)
        status = ledger.status()
        assert status["run:r"].spent == status["global"].spent == 90
        assert status["teacher:a"].spent >= 90
        call = Call("more", "a", "s", "2026-11-16", {})
        more = ledger.reserve("more", 11, ["run:r", "teacher:a", "global"], call)
        assert (more.kind, more.scope) == ("refused", "teacher:a")
        # What the provider's meter says later is still what the run has spent.
        assert ledger.sweep("run:r", 90, 0).spent_pico == 90


def test_half_a_cache_hit_is_not_the_reply() -> None:
    """It cost nothing, and the whole reply can be had once more: it must not be stored."""
    headers = {"x-generation-id": "gen-2", "x-openrouter-cache-source-id": "gen-1"}
    outcome = classify(200, headers, b'{"id":"gen-1","choices":[{"ind', 1.0)
    assert (outcome.kind, outcome.retryable) == ("unbilled", True)
    whole = classify(200, headers, b'{"id":"gen-1","choices":[],"usage":{"cost":0}}', 1.0)
    assert (whole.kind, whole.cost, whole.source_id) == ("billed", 0, "gen-1")
