"""A ceiling leaves whole days, in the order that was asked for."""

import shutil
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from composer_pipeline.errors import InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.maintenance.status import days_held
from composer_pipeline.preferences.vote import VoteDecision
from composer_pipeline.teachers.ledger.ledger import Ledger
from composer_pipeline.teachers.plan import selector_for
from composer_pipeline.teachers.report import ReplayReport
from composer_pipeline.teachers.run import replay
from composer_pipeline.teachers.selection import DaysFirst
from composer_pipeline.teachers.teachers import TeacherSet
from composer_pipeline.testing.openrouter.server import LoopbackOpenRouter
from tests.fixtures.lake_states import write_sessions

Serve = Callable[..., LoopbackOpenRouter]
DAYS = ["2026-11-16", "2026-11-17", "2026-11-18", "2026-11-19"]
TEACHERS = ["careful", "steady"]
BUDGET = "backfill:b"


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(tmp_path / "lake")
    for number, day in enumerate(DAYS):
        write_sessions(lake, sessions=3, turns=3, day=day, first=3 * number)
    return lake


@pytest.fixture
def teacher_set(teacher_set: TeacherSet) -> TeacherSet:
    """The worst case of a call is near its cost, so that a few days' money buys a few days."""
    data = teacher_set.model_dump()
    for teacher in data["teachers"]:
        teacher |= {"prompt_cache": "none", "max_tokens": 80}
    return TeacherSet.model_validate(data)


def run(lake: Lake, teacher_set: TeacherSet, usd: Decimal, **more: Any) -> ReplayReport:
    options: dict[str, Any] = {"teachers": TEACHERS, "days_first": "oldest", "budget": BUDGET}
    return replay(lake, teacher_set, max_usd=usd, **{**options, **more})


def bought(lake: Lake) -> dict[str, int]:
    counts = dict.fromkeys(DAYS, 0)
    for row in lake.rows("replies"):
        counts[row["day"]] += 1
    return counts


def cost_of_all(lake: Lake, teacher_set: TeacherSet, tmp_path: Path, **more: Any) -> Decimal:
    """What everything costs, asked of another lake."""
    other = Lake(shutil.copytree(lake.root, tmp_path / "other"))
    return run(other, teacher_set, Decimal(5), **more).spent_usd


@pytest.mark.parametrize(("first", "selected"), [("oldest", False), ("newest", True)])
def test_a_ceiling_leaves_whole_days(
    lake: Lake,
    teacher_set: TeacherSet,
    serve: Serve,
    tmp_path: Path,
    first: DaysFirst,
    selected: bool,
) -> None:
    data = teacher_set.model_dump()
    if selected:
        data["selection"] = {"curtail": "exact", "audit_share": 0.2}
        for number, day in enumerate(DAYS):  # a state is begun only with the worst case of its vote
            write_sessions(lake, sessions=12, turns=3, day=day, first=100 + 12 * number)
    teacher_set = TeacherSet.model_validate(data)

    def selector() -> dict[str, Any]:
        found = selector_for(lake, teacher_set, VoteDecision(), teachers=TEACHERS, days_first=first)
        return {"selector": found, "days_first": first}

    seen: list[tuple[str, Mapping[str, int], dict[str, int]]] = []
    order = DAYS if first == "oldest" else DAYS[::-1]
    serve()
    usd = cost_of_all(lake, teacher_set, tmp_path, **selector())
    serve()  # one that has answered none of this yet
    report = run(
        lake,
        teacher_set,
        usd * Decimal("0.6"),
        **selector(),
        on_day=lambda day, missing: seen.append((day, dict(missing), bought(lake))),
    )
    assert report.exhausted_scope
    assert [day for day, _, _ in seen] == order
    assert report.stopped_day in order[1:3]
    at = order.index(report.stopped_day)
    for number, (day, missing, rows) in enumerate(seen):
        assert (not missing) == (number < at), (day, missing)
        assert rows[day] > 0 or number > at
        # It is told when it is done: nothing of the next days is there yet.
        assert not any(rows[later] for later in order[number + 1 :])
    assert all(bought(lake)[day] == 0 for day in order[at + 1 :])
    assert set(report.missing) == set(order[at:])
    sentence = report.at_the_ceiling()
    for part in (report.stopped_day, report.exhausted_scope, f"Complete days: {at};"):
        assert part in sentence
    # The same runs with more money: the rest, and nothing twice.
    again = run(lake, teacher_set, usd * 3, **selector())
    assert not again.missing
    assert not again.exhausted_scope
    assert again.spent_usd == usd - report.spent_usd
    with Ledger(tmp_path / "lake" / "ledger.db") as ledger:
        assert ledger.status()[BUDGET].spent / Decimal(10**12) == usd


def test_a_day_that_was_paid_before_is_whole_behind_the_one_that_stopped(
    lake: Lake, teacher_set: TeacherSet, serve: Serve
) -> None:
    whole: list[str] = []

    def note(day: str, missing: Mapping[str, int]) -> None:
        if not missing:
            whole.append(day)

    serve()
    paid = run(lake, teacher_set, Decimal(5), days=DAYS[3:])
    ceiling = paid.spent_usd + paid.spent_usd * Decimal("1.5")
    report = run(lake, teacher_set, ceiling, budget="root:r", on_day=note)
    assert report.exhausted_scope
    assert whole[-1] == DAYS[3]
    assert DAYS[2] not in whole
    assert bought(lake)[DAYS[3]] == 18


def test_runs_that_share_a_scope_share_what_was_typed(
    lake: Lake, teacher_set: TeacherSet, serve: Serve
) -> None:
    serve()
    usd = run(lake, teacher_set, Decimal(5), days=DAYS[:1], budget="root:r").spent_usd
    chunks = [run(lake, teacher_set, 2 * usd, days=[day]).spent_usd for day in DAYS[1:]]
    assert usd < sum(chunks) <= 2 * usd
    assert run(lake, teacher_set, usd / 2).spent_usd == 0  # lower: no way around it
    assert run(lake, teacher_set, 2 * usd, budget="").spent_usd > 0  # another purchase


def test_a_scope_of_every_run_is_no_budget(lake: Lake, teacher_set: TeacherSet) -> None:
    with pytest.raises(InputError, match="neither backfill"):
        run(lake, teacher_set, Decimal(1), budget="global")


def test_a_run_about_a_few_states_finishes_no_day(
    lake: Lake, teacher_set: TeacherSet, serve: Serve
) -> None:
    serve()

    def finished() -> dict[str, list[str]]:
        found = days_held(lake, teacher_set)
        return {name: found[f"teacher_replies/{name}"] for name in TEACHERS}

    run(lake, teacher_set, Decimal(5), max_states=2)
    assert sum(bought(lake).values()) > 0
    assert finished() == {name: [] for name in TEACHERS}
    run(lake, teacher_set, Decimal(5))
    assert finished() == dict.fromkeys(TEACHERS, DAYS)
