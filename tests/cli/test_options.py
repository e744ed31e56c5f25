"""What a person types is what the stage is asked for: every option, and what comes of it.

The stages have tests of their own; here each is replaced by a recorder of what it was asked.
"""

import importlib
import io
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from rich.console import Console

from composer_pipeline.cli import common
from composer_pipeline.cli.__main__ import main
from composer_pipeline.lake.store import Lake
from composer_pipeline.settings import recipes_dir
from composer_pipeline.teachers.report import ReplayReport, TeacherFigures
from tests.fixtures.lake_states import DAY
from tests.fixtures.recorded_calls import record

Run = Callable[..., tuple[int, str, str]]
Asked = Callable[..., dict[Any, Any]]
TEACHERS = str(recipes_dir() / "teachers" / "demo.yaml")


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """A lake with a day of nothing in each table; the environment names other places."""
    lake = Lake(tmp_path / "lake")
    for table in ("states", "pairs", "votes"):
        lake.write(table, [], day=DAY)
    elsewhere = tmp_path / "elsewhere"
    monkeypatch.setenv("COMPOSER_LAKE", str(elsewhere / "lake"))
    for name in ("PREFERENCES", "NORMALIZE", "TRAIN", "TEACHERS"):
        monkeypatch.setenv(f"COMPOSER_{name}", str(elsewhere / f"{name.lower()}.yaml"))
    return lake


@pytest.fixture
def run(lake: Lake, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main([*arguments, "--lake", lake.url])
        return (int(left.value.code or 0), *capsys.readouterr())

    return call


@pytest.fixture
def asked(run: Run, monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Run a command and return what it asked a stage for; positional values by number."""

    def call(stage: str, *arguments: str) -> dict[Any, Any]:
        seen = record(monkeypatch, stage)
        assert run(*arguments) == (2, "", "composer-pipeline: recorded\n")
        return seen

    return call


def test_publish_is_private_and_for_real_unless_someone_says_otherwise(asked: Asked) -> None:
    plain = {"private": True, "dry_run": False, "allow_simulated": False}
    for stage, model in (("publish", ()), ("publish_model", ("--model", "runs/x"))):
        command = (f"publishing.publish.{stage}", "publish", "--repo", "a/b", *model)
        assert asked(*command).items() >= plain.items()
        assert asked(*command, "--public")["private"] is False
        assert asked(*command, "--dry-run")["dry_run"] is True
        assert asked(*command, "--allow-simulated")["allow_simulated"] is True
    asks = ("publishing.publish.publish", "publish", "--repo", "a/b", "--consent", "c.yaml")
    assert asked(*asks)["consent"] == "c.yaml"


def test_normalize_takes_a_recipe(asked: Asked) -> None:
    seen = asked("normalization.stage.normalize", "normalize", "--recipe", "r.yaml")
    assert seen[1] == "r.yaml"


def test_columns_alone_are_written_without_normalising(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module("composer_pipeline.normalization.stage")
    monkeypatch.setattr(module, "normalize", lambda *_, **__: pytest.fail("it normalised"))
    file = tmp_path / "columns.jsonl"
    code, out, _ = run("normalize", "--columns", str(file), "--json")
    assert (code, json.loads(out)) == (0, {"rows": 0, "file": str(file)})


def test_export_takes_its_own_rules(asked: Asked, tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("max_pairs_per_session: 3\n")
    command = ("export", "--format", "dpo", "--out", "x.parquet", "--rules", str(rules))
    seen = asked("exporting.columns.export", *command, "--full-arguments")
    assert seen["rules"].max_pairs_per_session == 3
    assert seen["full_arguments"] is True


def test_train_takes_its_options_and_keeps_its_runs_in_the_lake(asked: Asked, lake: Lake) -> None:
    seen = asked("training.run.train", "train", "--recipe", "r.yaml", "--merge")
    assert (seen[0].url, seen[1], seen[2]) == (lake.url, "r.yaml", Path(lake.url) / "runs")
    assert (seen["merge"], seen["force"]) == (True, False)
    assert asked("training.run.train", "train", "--force")["force"] is True


def test_train_extends_a_run_with_its_own_recipe(
    asked: Asked, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    longer = object()
    module = importlib.import_module("composer_pipeline.training.run")
    monkeypatch.setattr(module, "extended", lambda *given: longer if given == ("r", 9) else None)
    assert asked("training.run.train", "train", "--extend", "r", "--rounds", "9")[1] is longer
    for options, said in (
        (("--extend", "r"), "--extend and --rounds need each other"),
        (("--rounds", "9"), "--extend and --rounds need each other"),
        (("--extend", "r", "--rounds", "9", "--recipe", "x.yaml"), "leave --recipe out"),
    ):
        code, out, err = run("train", *options)
        assert (code, out) == (2, "")
        assert said in err


def test_plan_and_replay_ask_about_the_days_that_were_named(asked: Asked) -> None:
    some = ("--teachers", TEACHERS, "--day", "2026-11-15", "--day", DAY, "--max-states", "7")
    for stage, more in (("plan.plan", ()), ("run.replay", ("--max-usd", "0.5", "--json"))):
        command = stage.split(".")[-1]
        seen = asked(f"teachers.{stage}", command, *some, *more)
        assert (seen["days"], seen["max_states"]) == (["2026-11-15", DAY], 7)
        every = asked(f"teachers.{stage}", command, *some[:2], "--json")
        assert (every["days"], every["max_states"]) == (None, None)
    assert seen["max_usd"] == Decimal("0.5")
    again = asked("teachers.run.replay", "replay", *some[:2], "--again", "unreadable", "--json")
    assert again["again"] == "unreadable"


REPORT = ReplayReport(
    run_id="run:r", simulated=True, states=2, calls=1, replies=1, cached=0, recovered=0,
    refused=0, unknown=0, spent_usd=Decimal("0.1"), reserved_usd=Decimal(0),
    ceiling_usd=Decimal(1), exhausted_scope="", by_teacher={}, by_day_teacher={}, skipped=[],
    not_bought=[],
)  # fmt: skip
STOPPED = {"kimi": TeacherFigures(stopped="no such model", stopped_scope="teacher:kimi")}


@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        ({}, 0, ""),
        ({"exhausted_scope": "run:r", "not_bought": [{"why": "budget"}]}, 3, "scope run:r; 1 repl"),
        ({"unknown": 1}, 1, "1 lost"),
        ({"by_teacher": STOPPED}, 1, "no such model"),
    ],
)
def test_replay_says_by_its_exit_code_what_is_missing(
    run: Run, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], code: int, said: str
) -> None:
    report = msgspec.structs.replace(REPORT, **changes)
    engine = importlib.import_module("composer_pipeline.teachers.run")
    monkeypatch.setattr(engine, "replay", lambda *_, **__: report)
    found = run("replay", "--teachers", TEACHERS, "--max-usd", "1", "--json")
    assert (found[0], said in found[2]) == (code, True), found[2]
    printed = json.loads(found[1])
    assert printed.pop("selection")["states"] == 0
    assert printed == report.to_dict()  # the report is printed in any case


def test_a_quarantine_is_told_in_its_own_words(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    why = "the bill passed its worst case [call 7]"
    ledger = importlib.import_module("composer_pipeline.teachers.ledger.ledger")
    report = {"ledger": "x", "scopes": [], "quarantined": {"kimi": why}}
    monkeypatch.setattr(ledger, "budget_report", lambda _: report)
    assert f"quarantined: kimi: {why}" in " ".join(run("budget")[1].split())


def test_the_judge_is_in_the_teachers_that_were_named(asked: Asked, tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("max_pairs_per_session: 3\n")
    command = ("pairs", "--rules", str(rules), "--teachers", TEACHERS, "--judge-max-usd", "0.25")
    seen = asked("preferences.judge.open_judge", *command)
    assert seen[2] == TEACHERS
    assert seen["max_usd"] == Decimal("0.25")


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_a_failing_check_fails_the_doctor(
    run: Run, monkeypatch: pytest.MonkeyPatch, form: tuple[str, ...]
) -> None:
    def checks(*bad: str) -> list[dict[str, str]]:
        return [{"name": n, "status": "fail" if n in bad else "ok", "detail": ""} for n in "ab"]

    doctor = importlib.import_module("composer_pipeline.maintenance.doctor")
    for bad, code in (("", 0), ("b", 1)):
        monkeypatch.setattr(doctor, "run_checks", lambda *_, bad=bad: checks(*bad))
        assert run("doctor", *form)[0] == code


def test_statistics_need_votes(
    lake: Lake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unvoted = Lake(tmp_path / "unvoted")
    unvoted.write("states", [], day=DAY)
    with pytest.raises(SystemExit) as left:
        main(["statistics", "--lake", unvoted.url])
    assert left.value.code == 2
    assert "has no votes; run pairs first" in capsys.readouterr().err


def test_a_statistic_of_nought_is_a_number(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    blank = {"a": "", "b": "", "tool": "", "n": 3, "note": ""}
    rows = [
        {**blank, "statistic": "near", "value": 0.0},
        {**blank, "statistic": "alpha", "value": None, "note": "not measured"},
    ]
    quality = importlib.import_module("composer_pipeline.preferences.quality")
    measured = SimpleNamespace(by_scope={quality.ALL: SimpleNamespace(rows=lambda: rows)})
    monkeypatch.setattr(quality, "write_statistics", lambda *_, **__: measured)
    rules = str(recipes_dir() / "preferences" / "default.yaml")
    views = importlib.import_module("composer_pipeline.preferences.quality")
    monkeypatch.setattr(views, "verdicts", lambda *_: [])
    code, out, _ = run("statistics", "--verbose", "--rules", rules)
    cells = [[cell.strip() for cell in line.split("│")] for line in out.splitlines()]
    assert code == 0
    assert ["", "near", "", "0", "3", ""] in cells
    assert ["", "alpha", "", "not measured", "3", ""] in cells


def test_compare_wants_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["compare", str(tmp_path)])
    assert (left.value.code, capsys.readouterr().err) == (
        2,
        f"composer-pipeline: {tmp_path}: no such file\n",
    )


def test_redact_tells_the_whole_length_and_prints_one_object(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    secret = "sk-ant-api03-" + "Ab3" * 20
    file = tmp_path / "notes.txt"
    file.write_text(f"key {secret}\n")
    out = []
    for form in ((), ("--json",)):
        with pytest.raises(SystemExit):
            main(["redact", str(file), *form])
        out.append(capsys.readouterr().out)
    (found,) = json.loads(out[1])["replacements"]
    assert found["length"] == len(secret)
    assert f"({len(secret)})" in out[0]
    assert secret not in out[0] + out[1]


def test_redact_says_how_many_are_left_for_review_and_shows_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    token = "vK3xQz8LpT2mWn6RbY9d"
    file = tmp_path / "notes.txt"
    file.write_text(f"mail bob@acme.com\nx = '{token}'\n")
    out = []
    for form in ((), ("--review",), ("--json",)):
        with pytest.raises(SystemExit):
            main(["redact", str(file), *form])
        out.append(capsys.readouterr().out)
    assert "left for review (--review): 1" in out[0]
    assert "quoted" not in out[0]
    assert "2:6" in out[1]
    assert "vK3… (20)" in out[1]
    assert "quoted" in out[1]
    (left,) = json.loads(out[2])["review"]
    assert (left["place"], left["length"]) == ("2:6", 20)
    assert token not in "".join(out)


def test_the_bar_stands_where_the_work_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn(*, terminal: bool) -> str:
        out = io.StringIO()
        monkeypatch.setattr(common, "err", Console(file=out, force_terminal=terminal, width=100))
        with common.Bar() as report:
            for done in (1, 2, 3):
                report("states", done, 4)
        return out.getvalue()

    assert "3/4" in drawn(terminal=True)
    assert drawn(terminal=False) == ""


def test_the_table_of_a_report_leaves_the_days_out(capsys: pytest.CaptureFixture[str]) -> None:
    report = {"rows": 3, "by_day": {DAY: 1}, "by_day_teacher": {DAY: {"kimi": 2}}}
    common.show(report, False, "replay")
    text = capsys.readouterr().out
    assert "rows" in text
    assert DAY not in text
    common.show(report, True, "replay")
    assert json.loads(capsys.readouterr().out) == report
