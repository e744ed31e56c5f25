"""``pairs`` with a judge of meaning: end to end through the command line, money and rows."""

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.cli.__main__ import main
from composer_pipeline.lake.store import Lake
from composer_pipeline.preferences.vote_rows import level_of
from composer_pipeline.teachers.ledger.ledger import Ledger
from composer_pipeline.testing.openrouter.server import LoopbackOpenRouter
from composer_pipeline.testing.personas import PersonaName, Script
from tests.fixtures.lake_states import DAY, write_session
from tests.places import ROOT

AGENT = Action("", (ToolCall("Grep", {"pattern": "class Parser"}),))
SAME = Action("", (ToolCall("Grep", {"pattern": "parser = "}),))
OTHER = Action("", (ToolCall("Grep", {"pattern": "lexer"}),))
THIRD = Action("", (ToolCall("Grep", {"pattern": "token"}),))


class Judge(Script):
    """Says SAME where both sides look for a parser."""

    def decide(self, persona: PersonaName, body: Mapping[str, Any]) -> Action:
        first, second = body["messages"][-1]["content"].split("\n\nSecond:\n")
        same = "arser" in first and "arser" in second
        return Action("SAME" if same else "DIFFERENT")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackOpenRouter]:
    with LoopbackOpenRouter(Judge(), lifetime=120) as server:
        monkeypatch.setenv("COMPOSER_OPENROUTER_URL", server.url)
        yield server


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Four states: two families agree on another meaning, on the same one, on the agent's own
    action; and on nothing."""
    lake = Lake(tmp_path / "lake")
    ids = write_session(lake, "s1", [(AGENT, "found")] * 4)
    for family, last in (("a", OTHER), ("b", THIRD)):
        rows = [
            {"state_id": state_id, "session_id": "s1", "family": family, "status": "ok",
             "request_hash": f"{family}{state_id}", "model": f"m/{family}",
             "action": action.to_json(), "completion_tokens": 9, "cost_picodollars": 7,
             "simulated": True, "created_at": datetime(2026, 11, 20, tzinfo=UTC)}
            for state_id, action in zip(ids, (OTHER, SAME, AGENT, last), strict=True)
        ]  # fmt: skip
        lake.write("replies", rows, day=DAY, teacher=family)
    return lake


def recipe(folder: Path, judge: Any) -> str:
    file = folder / "preferences.yaml"
    file.write_text(yaml.safe_dump({"semantic_judge": judge}))
    return str(file)


def pairs(lake: Lake, rules: str, *more: str) -> int:
    teachers = str(ROOT / "recipes" / "teachers" / "demo.yaml")
    options = ["--rules", rules, "--teachers", teachers, *more]
    return run(["pairs", "--lake", lake.root, "--json", *options])


def run(arguments: list[str]) -> int:
    try:
        main(arguments)
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def told(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    return report


def test_nobody_is_asked_by_default(
    server: LoopbackOpenRouter,
    lake: Lake,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert pairs(lake, recipe(tmp_path, None)) == 0
    report = told(capsys)
    assert (report["pairs"], "judge" in report) == (2, False)
    assert server.requests == 0
    assert pairs(lake, recipe(tmp_path, None), "--judge-max-usd", "1") == 2
    assert "names no semantic_judge" in capsys.readouterr().err


def test_the_judge_drops_a_pair_that_means_the_same_and_is_paid_once(
    server: LoopbackOpenRouter,
    lake: Lake,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rules = recipe(tmp_path, {"teacher": "careful", "max_usd": "0.50"})
    assert pairs(lake, rules) == 0
    report = told(capsys)
    assert report["pairs"] == 1
    assert report["by_reason"] == {
        "agrees_with_student": 1, "no_quorum": 1, "pair": 1, "same_meaning": 1,
    }  # fmt: skip
    # Only where a pair would be made: one question a state, both families gave one action.
    assert (report["judge"]["asked"], report["judge"]["unjudged"]) == (2, 0)
    with Ledger(Path(lake.root) / "ledger.db") as ledger:
        status = ledger.status()
        assert ledger.unknown_attempts() == []
    (scope,) = [name for name in status if name.startswith("run:judge-")]
    assert (status[scope].spent, status[scope].held) == (server.billed, 0)
    assert status[scope].ceiling == 5 * 10**11
    assert status["global"].spent == status["teacher:judge:careful"].spent == server.billed > 0

    rows = {row["reason"]: row for row in lake.rows("votes")}
    same = rows["same_meaning"]
    assert (same["student_level"], same["tier"]) == ("L3", "none")
    assert [level_of(same, 0, 1).label, level_of(same, 1, 2).label] == ["L3", "L0"]
    assert level_of(rows["pair"], 0, 1).label == "L4"
    assert same["cost_picodollars"] == 14  # of the replies, as everywhere in the table

    before = lake.rows("votes")
    assert pairs(lake, rules) == 0  # what was judged costs nothing, and gives the same rows
    assert told(capsys)["judge"]["cached"] == 2
    assert (lake.rows("votes"), server.requests) == (before, 2)
    assert run(["pair", same["state_id"], "--lake", lake.root, "--json"]) == 0
    facts = told(capsys)
    assert (facts["reason"], facts["student_level"]) == ("same_meaning", "L3")
    assert {teacher["level_to_agent"]["level"] for teacher in facts["teachers"]} == {"L3"}


def test_its_ceiling_ends_the_stage_and_nothing_of_the_day_is_written(
    server: LoopbackOpenRouter,
    lake: Lake,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rules = recipe(tmp_path, {"teacher": "careful", "max_usd": "0.50"})
    assert pairs(lake, rules, "--judge-max-usd", "0.000001") == 3
    assert "semantic judge" in capsys.readouterr().err
    assert (lake.rows("votes"), lake.rows("pairs"), server.requests) == ([], [], 0)


@pytest.mark.parametrize(
    ("judge", "field"),
    [
        ({"teacher": "nobody", "max_usd": "1"}, "nobody"),
        ({"teacher": "careful"}, "max_usd"),
        ({"teacher": "careful", "max_usd": "0"}, "max_usd"),
        ({"teacher": "careful", "max_usd": "nan"}, "max_usd"),
        ({"teacher": "careful", "max_usd": "1", "modle": "x"}, "modle"),
        ("careful", "semantic_judge"),
    ],
)
def test_a_bad_judge_is_one_sentence(
    lake: Lake, tmp_path: Path, capsys: pytest.CaptureFixture[str], judge: Any, field: str
) -> None:
    assert pairs(lake, recipe(tmp_path, judge)) == 2
    message = capsys.readouterr().err
    assert field in message
    assert "Traceback" not in message
