"""Curtailed runs over the wire: fewer bills, the plan's expectation, the same pairs."""

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.lake.store import Lake
from composer_pipeline.preferences.pairs import build_pairs
from composer_pipeline.preferences.vote import VoteDecision
from composer_pipeline.states.load import load_states
from composer_pipeline.teachers.plan import plan, selector_for
from composer_pipeline.teachers.report import ReplayReport
from composer_pipeline.teachers.run import replay
from composer_pipeline.teachers.teachers import TeacherSet
from composer_pipeline.testing.openrouter.server import LoopbackOpenRouter
from composer_pipeline.testing.personas import Script
from tests.fixtures.lake_states import write_session

Serve = Callable[..., LoopbackOpenRouter]
#: Cheapest first: contrarian (the agent's action), careful, steady (both the better one).
NAMES = ["contrarian", "careful", "steady"]
DAY, LATER = "2026-11-18", "2026-11-20"
BETTER = Action(tool_calls=(ToolCall("Bash", {"command": "pytest -k 'shop'"}),))


def selected(teacher_set: TeacherSet, **section: Any) -> TeacherSet:
    given = {"audit_share": 0.0, **section}
    return TeacherSet.model_validate(teacher_set.model_dump() | {"selection": given})


def write(lake: Lake, day: str) -> None:
    for number in range(8):
        steps = [
            (
                Action(tool_calls=(ToolCall("Read", {"file_path": f"/srv/{day}/{number}/{n}"}),)),
                f"line {n} of {number}\n" * (30 + 11 * (n % 4)),
            )
            for n in range(10)
        ]
        write_session(lake, f"{day}-{number}", steps, day=day, prompt=f"Task {day} {number}.")


@pytest.fixture
def served(lake: Lake, serve: Serve) -> LoopbackOpenRouter:
    write(lake, DAY)
    write(lake, LATER)
    states = list(load_states(lake))
    poor = {s.message_id: BETTER for s in states if int(s.state_id[:2], 16) % 3 == 0}
    return serve(script=Script.from_states(states, poor), keep_bodies=False)


def run(lake: Lake, teacher_set: TeacherSet, day: str, **options: Any) -> ReplayReport:
    budget = Decimal(5)
    return replay(lake, teacher_set, max_usd=budget, teachers=NAMES, days=[day], **options)


def test_a_curtailed_run_costs_less_and_finds_the_same_pairs(
    lake: Lake, teacher_set: TeacherSet, served: LoopbackOpenRouter
) -> None:
    curtailed = selected(teacher_set, curtail="exact")
    selector = selector_for(lake, curtailed, VoteDecision(), teachers=NAMES)
    assert selector is not None
    report = run(lake, curtailed, DAY, selector=selector)
    found = selector.report()
    bill, pairs = served.billed, build_pairs(lake, days=[DAY]).pairs
    assert found.pairs == pairs > 0
    assert report.calls == found.asked == len(served.bills)
    assert found.asked < found.full == 3 * found.states == 240
    full = run(lake, teacher_set, DAY)
    assert full.cached == report.replies == found.asked  # nothing is bought twice
    assert full.calls == found.full - found.asked
    assert build_pairs(lake, days=[DAY]).pairs == pairs
    assert bill < served.billed


def test_the_curtailed_plan_is_the_curtailed_bill_within_five_percent(
    lake: Lake, teacher_set: TeacherSet, served: LoopbackOpenRouter
) -> None:
    """Tokens and agreement measured on one day, the bill of another one."""
    decide = VoteDecision()
    run(lake, teacher_set, DAY)
    curtailed = selected(teacher_set, curtail="exact")
    expected = plan(lake, curtailed, teachers=NAMES, days=[DAY, LATER], decide=decide)
    assert expected.calls == 240
    assert expected.agreement.shares[:2] == [1.0, 1.0]
    assert 0.1 < expected.agreement.shares[2] < 0.6
    before = served.billed
    selector = selector_for(lake, curtailed, decide, teachers=NAMES)
    run(lake, curtailed, LATER, selector=selector)
    bill = (served.billed - before) / 10**12
    assert float(expected.expected_usd) == pytest.approx(bill, rel=0.05)


def test_no_selection_no_selector(lake: Lake, teacher_set: TeacherSet) -> None:
    in_time = teacher_set.model_dump() | {"selection": {"prioritise": False}}
    assert selector_for(lake, TeacherSet.model_validate(in_time), VoteDecision()) is None
    assert selector_for(lake, teacher_set, VoteDecision()) is not None


@pytest.mark.parametrize(
    ("curtail", "cents"), [("exact", 1), ("exact", 2), ("exact", 4), ("student", 1)]
)
def test_a_ceiling_leaves_no_state_with_one_reply_that_can_never_vote(
    lake: Lake, teacher_set: TeacherSet, served: LoopbackOpenRouter, curtail: str, cents: int
) -> None:
    """A reply alone is worth nothing but where it says that the agent was right."""
    curtailed = selected(teacher_set, curtail=curtail)
    options: dict[str, Any] = {"max_usd": Decimal(cents) / 100, "teachers": NAMES}

    def go() -> ReplayReport:
        selector = selector_for(lake, curtailed, VoteDecision(), teachers=NAMES)
        return replay(lake, curtailed, selector=selector, **options)

    report = go()
    assert report.exhausted_scope.startswith("run:")
    assert report.left_usd is not None
    assert report.next_call_usd is not None
    assert report.next_call_usd > report.left_usd
    replies: dict[str, set[str]] = {}
    for row in lake.rows("replies"):
        replies.setdefault(row["state_id"], set()).add(row["teacher"])
    assert 0 < len(replies) < 160
    alone = [names for names in replies.values() if len(names) == 1]
    assert all(names == {"contrarian"} for names in alone)
    assert curtail == "student" or not alone
    assert served.billed <= cents * 10**10
    options["max_usd"] = Decimal(5)
    again = go()
    assert again.cached == report.replies
    assert not again.exhausted_scope
    assert served.duplicate_bills() == 0
