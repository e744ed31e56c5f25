"""The command `sufficiency`: its table, its JSON, the file that it writes, and what it refuses."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.cli.__main__ import main
from composer_pipeline.lake.store import Lake
from composer_pipeline.teachers.teachers import TeacherSet
from tests.fixtures.lake_states import DAY, write_session

Run = Callable[..., tuple[int, str, str]]
OTHER_DAY = "2026-11-17"
#: Teacher: (family, cost in picodollars, None if it repeats the agent or what it reads).
TEACHERS = {"low": ("fa", 10**6, "x"), "mid": ("fb", 2 * 10**6, "x"), "top": ("fc", 10**7, "x")}
FILE = """
endpoint: {name: loopback, base_url: "http://127.0.0.1:1/v1", api_key_env: KEY, simulated: true}
teachers:
"""


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Eighty states that three families answered alike; on a second day one of them alone."""
    lake = Lake(tmp_path / "lake")
    read = [ToolCall("Read", {"file_path": f"/home/user/shop/{n}.py"}) for n in range(80)]
    turns = [(Action("", (call,)), "1  x = 1") for call in read]
    ids = {DAY: write_session(lake, "s1", turns)}
    ids[OTHER_DAY] = write_session(lake, "s2", turns[:3], day=OTHER_DAY)
    for name, (family, cost, path) in TEACHERS.items():
        action = Action("", (ToolCall("Read", {"file_path": path}),))
        for day, states in ids.items():
            if day == DAY or name == "low":
                rows = [
                    {
                        "state_id": state_id, "session_id": "s", "family": family,
                        "request_hash": f"{name}-{state_id}", "model": f"m/{name}",
                        "status": "ok", "action": action.to_json(), "cost_picodollars": cost,
                        "simulated": True, "created_at": datetime(2026, 11, 20, tzinfo=UTC),
                    }
                    for state_id in states
                ]  # fmt: skip
                lake.write("replies", rows, day=day, teacher=name)
    return lake


@pytest.fixture
def file(tmp_path: Path) -> Path:
    entry = "  - {{name: {}, family: {}, model: a/b, licence: MIT, max_price: {}}}\n"
    price = "{prompt: 1, completion: 1}"
    text = FILE + "".join(entry.format(n, f, price) for n, (f, _, _) in TEACHERS.items())
    path = tmp_path / "teachers.yaml"
    path.write_text(text)
    return path


@pytest.fixture
def run(
    lake: Lake,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Run:
    monkeypatch.setenv("COLUMNS", "110")
    monkeypatch.setenv("COMPOSER_TEACHERS", str(tmp_path / "nowhere.yaml"))

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main(["sufficiency", "--lake", lake.url, *arguments])
        return (int(left.value.code or 0), *capsys.readouterr())

    return call


def test_the_table_says_it_in_words(run: Run) -> None:
    code, out, err = run()
    assert (code, err) == (0, "")
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines()]
    row = ["80", "100% (95%-100%)", "100% (95%-100%)", "-", "one", "$0.00096"]
    assert ["Read", *row] in cells
    assert ["all", *row] in cells
    said = " ".join(out.split())
    assert "One is low, two are low and mid; all are the families fa, fb, fc." in said
    assert "80 states were asked in full, 3 others with replies are left out." in said
    assert "at least 1 - max(0.05, noise floor)" in said
    assert "no known cost" not in said


def test_costs_that_nobody_knows_are_said(run: Run, lake: Lake) -> None:
    rows = lake.rows("replies", days=[DAY], teacher="top")
    unknown = [
        {**{k: v for k, v in row.items() if k not in ("day", "teacher")}, "cost_picodollars": None}
        for row in rows
    ]
    lake.write("replies", unknown, day=DAY, teacher="top")
    assert "80 overpaid replies have no known cost." in " ".join(run()[1].split())


def test_json_is_the_report(run: Run) -> None:
    code, out, _ = run("--json")
    found = json.loads(out)
    assert code == 0
    assert set(found) == {
        "states", "left_out", "families", "cheapest", "mean_picodollars", "total", "by_kind",
        "rule",
    }  # fmt: skip
    assert found["total"]["overpaid_picodollars"] == 80 * (2 * 10**6 + 10**7)
    assert found["total"]["one"] | {"low": 0, "high": 0} == {
        "hits": 80, "of": 80, "share": 1.0, "low": 0, "high": 0,
    }  # fmt: skip
    assert json.loads(run("--json", "--day", DAY)[1])["left_out"] == 0
    assert json.loads(run("--json", "--session", "s1")[1])["left_out"] == 0


def test_a_file_is_written_once(run: Run, file: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.yaml"
    code, out, _ = run("--teachers", str(file), "--write", str(new))
    assert code == 0
    assert f"Written: {new}" in out.replace("\n", "")
    found = TeacherSet.load(new)
    assert [teacher.name for teacher in found.teachers] == ["low", "mid"]
    assert found.selection.curtail == "student"
    before = new.read_bytes()
    code, out, err = run("--teachers", str(file), "--write", str(new))
    assert (code, out, err) == (2, "", f"composer-pipeline: {new}: exists and is not overwritten\n")
    assert new.read_bytes() == before
    other = tmp_path / "other.yaml"
    found = json.loads(run("--teachers", str(file), "--write", str(other), "--json")[1])
    assert found["written"] == str(other)
    assert other.read_bytes() == before


def test_a_link_is_a_file_too(run: Run, file: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.yaml"
    link.symlink_to(tmp_path / "gone.yaml")
    code, _, err = run("--teachers", str(file), "--write", str(link))
    assert (code, "link.yaml: exists" in err) == (2, True)
    assert link.is_symlink()


def test_the_teachers_of_the_settings_are_the_default(
    run: Run, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = tmp_path / "new.yaml"
    code, _, err = run("--write", str(new))
    assert (code, "nowhere.yaml" in err) == (2, True)
    assert not new.exists()
    monkeypatch.setenv("COMPOSER_TEACHERS", str(file))
    assert run("--write", str(new))[0] == 0
    assert new.is_file()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--teachers", "{tmp}/none.yaml"), "none.yaml: No such file"),
        (("--day", OTHER_DAY), "two voting families must have replied, not fa"),
        (("--session", "s2"), "has no state that all of fa, fb, fc answered"),
        (("--session", "s3"), "has no states of session 's3'"),
        (("--day", "yesterday"), "--day 'yesterday' is not a date"),
    ],
)
def test_bad_input(run: Run, tmp_path: Path, options: tuple[str, ...], said: str) -> None:
    code, out, err = run(*(option.format(tmp=tmp_path) for option in options))
    assert (code, out, said in err) == (2, "", True), err
    assert err.count("\n") == 1


def test_a_lake_without_replies(run: Run, lake: Lake) -> None:
    write_session(lake, "s3", [(Action("Done."), "ok")], day="2026-11-18")
    code, out, err = run("--day", "2026-11-18")
    assert (code, out) == (2, "")
    assert err.endswith("has no replies to these states; run replay first\n")


def test_a_file_that_lacks_the_cheapest_writes_nothing(
    run: Run, file: Path, tmp_path: Path
) -> None:
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(line for line in lines if "name: low" not in line))
    code, _, err = run("--teachers", str(file), "--write", str(tmp_path / "new.yaml"))
    assert (code, err) == (
        2, f"composer-pipeline: {file}: has no voting teacher low, one of the cheapest\n",
    )  # fmt: skip
    assert not (tmp_path / "new.yaml").exists()
