"""Every odd answer of the loopback provider in one run: the ledger is its books."""

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest

from composer_pipeline.lake.store import Lake
from composer_pipeline.teachers.ledger.ledger import Ledger, ledger_target
from composer_pipeline.teachers.run import replay
from composer_pipeline.teachers.teachers import TeacherSet
from composer_pipeline.testing.openrouter.faults import (
    ODD_ANSWERS,
    ODD_REFUSALS,
    Fault,
    SeenRequest,
)
from composer_pipeline.testing.openrouter.server import LoopbackOpenRouter
from tests.fixtures.lake_states import write_sessions

Serve = Callable[..., LoopbackOpenRouter]

#: What is in a row of each odd answer; "ok" where it is not said.
STATUS = {
    **dict.fromkeys(
        ("deep", "utf16"), "unreadable"),
    "wrong_model": "wrong_model",
    **dict.fromkeys(
        ("error_beside_answer", "error_text_beside_answer", "error_billed", "no_usage_no_end",
         "tool_calls_object", "tool_calls_text", "tool_calls_junk", "arguments_object",
         "reasoning_only", "refusal_text", "choices_object", "choices_empty", "message_null",
         "end_number", "end_unknown"), "unusable"),
}  # fmt: skip


@pytest.mark.parametrize("cache", [True, False])
def test_the_ledger_is_the_books_whatever_is_answered(
    tmp_path: Path, teacher_set: TeacherSet, serve: Serve, cache: bool
) -> None:
    lake = Lake(tmp_path / "many")
    write_sessions(lake, sessions=10, turns=7)
    names = [*ODD_ANSWERS, *(name for name in ODD_REFUSALS if name != "redirect")]
    of_body: dict[str, str] = {}

    def faults(asked: SeenRequest) -> Fault | None:
        name = of_body.setdefault(asked.digest, names[len(of_body) % len(names)])
        if name in ODD_REFUSALS:
            return Fault("odd_refusal", code=name) if asked.nth == 1 else None
        return Fault("odd", code=name)

    server = serve(faults=faults, response_cache=cache)
    data = teacher_set.model_dump()
    data["limits"] |= {"recover_after_s": 0, "attempts": 3}
    data["endpoint"]["recovery_cache_s"] = 86_400 if cache else 0
    data["teachers"] = [t for t in data["teachers"] if t["name"] == "careful"]
    teachers = TeacherSet.model_validate(data)
    report = replay(lake, teachers, max_usd=Decimal(5), run_id="odd")
    assert len(of_body) >= len(names)
    again = replay(lake, teachers, max_usd=Decimal(5), run_id="odd")
    assert again.calls <= sum(1 for pair in report.not_bought) * 3
    with Ledger(ledger_target(lake)) as ledger:
        held = ledger.status()["global"]
        assert not ledger.quarantined()
    assert (held.spent, held.reserved, held.unknown) == (server.billed, 0, 0)
    rows = lake.rows("replies")
    by_digest = {bill.generation_id: of_body[bill.digest] for bill in server.bills}
    for row in rows:
        name = by_digest.get(row["generation_id"] or "", "")
        if name and name not in ODD_REFUSALS and row["status"] != "unknown":
            assert row["status"] == STATUS.get(name, "ok"), name
    billed_answers = {
        generation for generation, name in by_digest.items() if name not in ("empty_200",)
    }
    assert billed_answers <= {row["generation_id"] for row in rows}
    assert sum(row["cost_picodollars"] for row in rows) <= server.billed
