"""What is drawn: two actions side by side, and a plan's teachers."""

import io
from decimal import Decimal
from typing import Any

import pytest
from rich.console import Console

from composer_pipeline.cli import common
from composer_pipeline.cli.preferences import show_pair
from composer_pipeline.cli.teachers import plan_tables
from composer_pipeline.teachers.plan import ReplayPlan, TeacherPlan

RED, GREEN = "\x1b[31m", "\x1b[32m"
BOLD_RED, BOLD_GREEN = "\x1b[1;31m", "\x1b[1;32m"


def side_by_side(
    agent: tuple[str, dict[str, Any]], teachers: tuple[str, dict[str, Any]], reason: str = "pair"
) -> str:
    def action(call: tuple[str, dict[str, Any]]) -> dict[str, Any]:
        return {"model": "m", "text": "", "tool_calls": [{"name": call[0], "arguments": call[1]}]}

    facts: dict[str, Any] = {
        "pair_id": "p" if reason == "pair" else "", "state_id": "s", "session_id": "s1", "turn": 1,
        "day": "2026-11-16", "project": "/srv/p", "cost_usd": "0.1", "n_replies": 2, "why": "so",
        "reason": reason, "margin": 0.5, "entropy": 1.0, "rule": "r", "fate": {}, "hint": None,
        "error_kind": None, "agent": action(agent), "chosen": action(teachers),
        "teachers": [], "chain": [],
    }  # fmt: skip
    out = io.StringIO()
    console = Console(file=out, width=120, force_terminal=True, color_system="standard")
    show_pair(console, facts)
    return out.getvalue()


def test_what_differs_is_in_colour_and_what_is_the_same_is_not() -> None:
    text = side_by_side(("Bash", {"command": "cat a.py"}), ("Bash", {"command": "cat b.py"}))
    assert f"{BOLD_RED}a\x1b[0m" in text
    assert f"{BOLD_GREEN}b\x1b[0m" in text
    assert "\x1b[0mcat " in text  # neither in colour nor dim, as the name before it is


def test_arguments_of_other_tools_are_not_compared() -> None:
    text = side_by_side(("LS", {"path": "src"}), ("Grep", {"path": "src", "pattern": "x"}))
    assert f"{RED}src" in text
    assert f"{GREEN}src" in text


def test_both_sides_stand_in_the_agents_order() -> None:
    text = side_by_side(
        ("Bash", {"command": "ls", "description": "List"}),
        ("Bash", {"description": "Look", "command": "ls -a"}),
    )
    lines = [line for line in text.splitlines() if "command:" in line or "description:" in line]
    assert [line.count("command:") for line in lines] == [2, 0]


@pytest.mark.parametrize(("reason", "heading"), [("pair", "chosen"), ("style", "the teachers")])
def test_only_a_pair_has_a_chosen_side(reason: str, heading: str) -> None:
    text = side_by_side(("LS", {"path": "a"}), ("LS", {"path": "b"}), reason)
    assert f"{heading}: ?" in text


def test_teachers_stand_in_the_order_of_asking_and_say_why_they_stop() -> None:
    asked = {
        "alpha": TeacherPlan(calls=4, rank=3, stop="the catalogue has no such model"),
        "beta": TeacherPlan(calls=4, rank=1, warnings=["prices rose"]),
        "gamma": TeacherPlan(calls=4, rank=2),
    }
    plan = ReplayPlan(4, 12, 0, Decimal(1), Decimal(2), asked)
    _, rows, notes = plan_tables(plan)
    assert [str(cell) for cell in rows.columns[1].cells] == ["beta", "gamma", "alpha"]
    about, words = ([str(cell) for cell in notes.columns[n].cells] for n in (0, 1))
    said = dict(zip(words, about, strict=True))
    assert said["the catalogue has no such model"] == said["prices rose"] == "note"


def test_a_long_stage_tells_a_line_each_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, now = io.StringIO(), [0.0]
    monkeypatch.setattr(common, "err", Console(file=shown, force_terminal=False, width=80))
    with common.Bar(clock=lambda: now[0]) as progress:
        for done in range(1, 31):
            now[0] = float(done)
            progress("plan", 1000 * done, 30_000)
    lines = [f"plan: {n}0,000 of 30,000, {n}0 s" for n in (1, 2, 3)]
    assert shown.getvalue().splitlines() == lines
