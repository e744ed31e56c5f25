"""Standing notes: mistakes that repeat in a working directory, with a count and an example."""

import json
from pathlib import Path
from typing import Any

import pytest

from composer_pipeline.cli.__main__ import main
from composer_pipeline.lake.store import Lake
from composer_pipeline.preferences.hints import standing_notes
from composer_pipeline.preferences.pairs import build_pairs
from composer_pipeline.traces.ingest import ingest
from tests.fixtures.sessions import Script

FLAG = "Exit code 2\nerror: unexpected argument '--fsat' found at {}"
GONE = "<tool_use_error>File does not exist.</tool_use_error>"
UNFOUND = "<tool_use_error>String to replace not found in file.</tool_use_error>"


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


@pytest.fixture
def noted(lake: Lake, tmp_path: Path) -> Any:
    projects = tmp_path / "projects"

    def notes(*sessions: Script) -> list[Any]:
        for s in sessions:
            s.say("end", "done")
            s.write(projects)
        ingest(lake, [projects])
        build_pairs(lake)
        return standing_notes(lake)

    return notes


def fail(s: Script, call: str, tool: str, output: str, **arguments: Any) -> None:
    s.call(f"m{call}-{s.session}", call, tool, **arguments)
    s.result(call, output, error=True)


def sessions(number: int = 2) -> list[Script]:
    made = [Script(f"s{at}") for at in range(number)]
    for s in made:
        s.user(f"go {s.session}")
    return made


def test_the_same_complaint_about_a_command_is_one_habit(
    noted: Any, lake: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = sessions()
    for at, s in enumerate((one, one, two)):
        fail(s, f"c{at}", "Bash", FLAG.format(at), command=f"tool --fsat {at}")
    fail(two, "other", "Bash", "Exit code 127\nbash: line 1: jqq: command not found", command="jqq")
    (note,) = noted(one, two)
    assert (note.turns, note.sessions) == (3, 2)
    assert note.message == "error: unexpected argument '--fsat' found at N"
    assert note.example.startswith("Bash tool --fsat")

    def shown(*options: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["statistics", "--notes", *options, "--lake", lake.url])
        assert not ended.value.code
        return capsys.readouterr().out

    text = shown()
    assert text.splitlines()[0] == f"## Mistakes that repeat in `{note.project}`"
    assert f"- `{note.message}`: 3 times in 2 sessions, for example `Bash tool --fsat" in text
    assert "worked" not in text
    assert json.loads(shown("--json"))["notes"] == [note.to_dict()]


def test_what_happens_in_one_session_or_twice_is_no_habit(noted: Any) -> None:
    one, two = sessions()
    for at in range(4):
        fail(one, f"c{at}", "Bash", FLAG.format(at), command="tool --fsat")
    fail(one, "x", "Bash", "Exit code 127\nbash: line 1: jqq: command not found", command="jqq")
    fail(two, "y", "Bash", "Exit code 127\nbash: line 1: jqq: command not found", command="jqq")
    assert noted(one, two) == []


def test_a_wrong_path_is_a_habit_of_that_path(noted: Any) -> None:
    one, two = sessions()
    for at, s in enumerate((one, two, two)):
        fail(s, f"same{at}", "Read", GONE, file_path="/srv/p/none.py")
        fail(s, f"other{at}", "Read", GONE, file_path=f"/srv/p/none{at}.py")
    (note,) = noted(one, two)
    assert (note.turns, note.example) == (3, "Read /srv/p/none.py")


def test_white_space_that_is_wrong_again_and_again_is_named(noted: Any) -> None:
    one, two = sessions()
    for at, s in enumerate((one, two, two)):
        path = f"/srv/p/{at}.go"
        fail(s, f"e{at}", "Edit", UNFOUND, file_path=path, old_string="\tx := 1", new_string="\ty")
        s.call(f"right{at}", f"r{at}", "Edit", file_path=path, old_string="\t\tx := 1",
               new_string="\ty")  # fmt: skip
        s.result(f"r{at}", f"The file {path} has been updated successfully.")
        s.say(f"after{at}", "so")
    (note,) = noted(one, two)
    assert note.message == "String to replace not found in file. (only the white space was wrong)"
    assert (note.turns, note.instead) == (3, "")


def test_what_worked_in_its_place_stands_beside_the_habit(
    noted: Any, lake: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = sessions()
    for at, s in enumerate((one, two, two)):
        fail(s, f"c{at}", "Bash", FLAG.format(at), command="tool --fsat x.py")
        if at == 1:
            s.call("right", "r", command="tool --fast x.py")
            s.result("r", "fine")
            s.say("after", "so")
    (note,) = noted(one, two)
    assert note.instead == "Bash tool --fast x.py"
    with pytest.raises(SystemExit):
        main(["statistics", "--notes", "--lake", lake.url])
    assert "; `Bash tool --fast x.py` worked." in capsys.readouterr().out


def test_a_failing_test_is_no_mistake_to_be_noted(noted: Any) -> None:
    one, two = sessions()
    for at, s in enumerate((one, two, two)):
        output = "Exit code 1\ntests/test_z.py:2: AssertionError\n==== 1 failed in 0.1s ===="
        fail(s, f"t{at}", "Bash", output, command="pytest")
    assert noted(one, two) == []
