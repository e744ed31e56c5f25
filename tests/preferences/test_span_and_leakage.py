"""What a hint is about, and whether it gives the whole action away."""

from pathlib import Path

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.lake.store import Lake
from composer_pipeline.preferences.hints import _reveals, build_hints, span_text
from tests.fixtures.lake_states import DAY, write_session


def test_the_span_of_a_call_is_its_own_arguments():
    calls = (ToolCall("Bash", {"command": "ls"}), ToolCall("Read", {"file_path": "/a"}))
    action = Action("", calls)
    assert span_text(action, 0) == '{"command":"ls"}'
    assert span_text(action, 1) == '{"file_path":"/a"}'
    assert span_text(action, -1) == '{"command":"ls"}\n{"file_path":"/a"}'
    assert span_text(Action("Done."), -1) == "Done."


def test_a_description_does_not_hide_that_all_is_given_away():
    arguments = {"command": "pytest -x tests", "description": "Checks everything quickly"}
    assert _reveals("Run pytest -x tests instead.", arguments)
    assert not _reveals("Run the checks.", arguments)


def test_a_hint_of_blanks_is_no_hint(tmp_path: Path):
    lake = Lake(tmp_path)
    turn = (Action("", (ToolCall("Bash", {"command": "ls"}),)), "no such folder")
    write_session(lake, "s", [turn, turn], error_turns=[0, 1])
    rows = [{k: v for k, v in row.items() if k != "day"} for row in lake.rows("states")]
    told = {"error_kind": "exit_code", "hint_source": "exit_code", "verdict": "mistake",
            "culprit_call": 0}  # fmt: skip
    hints = ("no such folder", " \n")
    lake.write(
        "states",
        [
            {**row, **told, "lesson": hint.strip(), "culprit_state_id": row["state_id"]}
            for row, hint in zip(rows, hints, strict=True)
        ],
        day=DAY,
    )
    assert build_hints(lake).hints == 1
    assert {row["state_id"] for row in lake.rows("hints")} == {rows[0]["state_id"]}
