"""Days, sessions, projects and teachers: one meaning on every command that has the options."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from composer_pipeline.cli.__main__ import main
from composer_pipeline.cli.common import DayFilter, SessionFilter
from composer_pipeline.errors import InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.settings import recipes_dir
from tests.fixtures.whole_lake import DAY

TEACHERS = str(recipes_dir() / "teachers" / "demo.yaml")
Run = Callable[..., list[Any]]


@pytest.fixture
def run(whole_lake: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: str) -> list[Any]:
        with pytest.raises(SystemExit) as left:
            main([*arguments, "--lake", str(whole_lake), "--json"])
        out, err = capsys.readouterr()
        assert not left.value.code, err
        return [json.loads(line) for line in out.splitlines()]

    return call


@pytest.fixture
def known(whole_lake: Path) -> list[dict[str, Any]]:
    return Lake(whole_lake).rows("states", columns=["state_id", "session_id", "project"])


def test_listing_and_planning_mean_the_same(run: Run, known: list[dict[str, Any]]) -> None:
    session, project = known[0]["session_id"], known[0]["project"]
    folder = project.rpartition("/")[2]
    last = "2026-11-19"
    for options, meant in (
        (["--session", session[:9]], lambda row: row["session_id"] == session),
        (["--project", folder], lambda row: row["project"] == project),
        (["--project", f"*/{folder[:3]}*"], lambda row: row["project"] == project),
        (["--since", last], lambda row: row["day"] == last),
        (["--until", DAY], lambda row: row["day"] == DAY),
        (["--day", DAY, "--day", last], lambda row: row["day"] in (DAY, last)),
        (
            ["--project", folder, "--since", "2026-11-17"],
            lambda row: row["project"] == project and row["day"] > DAY,
        ),
    ):
        rows = [row for row in known if meant(row)]
        assert {row["state_id"] for row in run("states", *options)} == {r["state_id"] for r in rows}
        sessions = {row["session_id"] for row in run("sessions", *options)}
        assert sessions == {row["session_id"] for row in rows}
        (plan,) = run("plan", "--teachers", TEACHERS, *options)
        assert plan["states"] == len(rows), options


def test_a_dry_run_of_a_replay_is_its_plan(run: Run) -> None:
    options = ["--teachers", TEACHERS, "--day", "2026-11-17", "--teacher", "steady"]
    assert run("replay", *options, "--dry-run") == run("plan", *options)
    (plan,) = run("plan", *options)
    assert list(plan["by_teacher"]) == ["steady"]


def test_a_session_is_named_by_its_beginning(known: list[dict[str, Any]], whole_lake: Path) -> None:
    lake, session = Lake(whole_lake), known[0]["session_id"]
    assert SessionFilter(session=session[:9]).sessions(lake) == {session}
    with pytest.raises(InputError, match="no states of session"):
        SessionFilter(session=session[5:20]).sessions(lake)


def test_what_was_typed_is_said_again() -> None:
    only = SessionFilter(day=(DAY,), until=DAY, project="a b*")
    assert only.typed() == [f"--until {DAY}", "--project 'a b*'", f"--day {DAY}"]
    assert SessionFilter().typed() == []


def test_no_filter_is_none(whole_lake: Path) -> None:
    assert DayFilter().days(Lake(whole_lake)) is None
    assert SessionFilter().sessions(Lake(whole_lake)) is None


@pytest.mark.parametrize("command", ["pairs", "normalize", "verify", "reparse"])
def test_stages_take_days(
    whole_lake: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    text = capsys.readouterr().out
    assert all(option in text for option in ("--day", "--since", "--until"))
