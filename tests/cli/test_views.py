"""What is drawn: two actions side by side, and a plan's teachers."""

import io
import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from composer_pipeline.cli import common
from composer_pipeline.cli.__main__ import main
from composer_pipeline.cli.preferences import show_pair
from composer_pipeline.cli.teachers import plan_tables
from composer_pipeline.diloco.log import Commit, Included, OuterLog, Rejected
from composer_pipeline.diloco.spec import DiLoCoSpec
from composer_pipeline.settings import recipes_dir
from composer_pipeline.teachers.plan import ReplayPlan, TeacherPlan
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.run import write_recipe
from tests.fixtures.whole_lake import DAY

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


def test_nothing_is_cut_at_80_columns(
    whole_lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    shutil.copytree(whole_lake, tmp_path / "lake", copy_function=shutil.copy2)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("COMPOSER_LAKE", str(tmp_path / "lake"))
    monkeypatch.setenv("COMPOSER_TEACHERS", str(recipes_dir() / "teachers" / "demo.yaml"))
    write_recipe(TrainingRecipe.load(recipes_dir() / "train" / "demo.yaml"), tmp_path)
    log = OuterLog.open(str(tmp_path / "outer"), "run")
    log.agree(DiLoCoSpec(rounds=2, inner_steps=1, replicas=2, heartbeat_timeout_s=50))
    part = Included(0, "k", "", 12_345_678, 1.0, 1_234_567, 1, steps=98_765, seconds=1.5)
    log.try_commit(Commit(0, (), (), "", "s", "k", 1, 0))
    log.try_commit(Commit(1, (part,), (Rejected(1, "late"),), "s", "t", "k", 1, 0, 7))

    def shown(*words: str) -> str:
        with pytest.raises(SystemExit) as left:
            main(list(words))
        out = capsys.readouterr().out
        assert not left.value.code
        assert "\N{HORIZONTAL ELLIPSIS}" not in out
        assert all(len(line) <= 80 for line in out.splitlines() if line.startswith(("│", "┃")))
        return out

    replicas = shown("replicas", str(tmp_path))
    assert replicas == shown("replicas", str(tmp_path / "outer"))
    for word in (
        "machine",
        "starts",
        "merged",
        "waited",
        "1,234,567",
        "12.35 MB",
        "98,765",
        "1.50 s",
    ):
        assert f" {word} " in replicas
    assert "uncached" in shown("plan")
    assert shown("plan", "--day", DAY).splitlines() == [
        "Every reply is paid for; nothing would be asked (39 states, 156 replies)."
    ]
    assert "not measured" in shown("statistics", "--verbose")
    shown("budget", "set", "global", "5")
    assert " 0.02425333 " in shown("budget")
    said = shown("status")
    assert "$0.0243 of $5.0000 spent, $0.0000 reserved" in said
    assert "outcomes  │ not yet" in said
    assert "archive: " not in said
    assert "archive: " in shown("status", "--sizes")


def test_a_verdict_has_its_colour_on_a_terminal_only() -> None:
    for terminal in (True, False):
        console = Console(file=(out := io.StringIO()), force_terminal=terminal, width=80)
        console.print(common.coloured("look", "  at it"))
        assert ("\x1b[33mlook\x1b[0m" in out.getvalue()) == terminal


def test_a_long_stage_tells_a_line_each_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, now = io.StringIO(), [0.0]
    monkeypatch.setattr(common, "err", Console(file=shown, force_terminal=False, width=80))
    with common.Bar(clock=lambda: now[0]) as progress:
        for done in range(1, 31):
            now[0] = float(done)
            progress("plan", 1000 * done, 30_000)
    lines = [f"plan: {n}0,000 of 30,000, {n}0 s" for n in (1, 2, 3)]
    assert shown.getvalue().splitlines() == lines
